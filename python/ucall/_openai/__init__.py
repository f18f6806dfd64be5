"""Answers requests in the form of OpenAI's API by calls of a server's functions.

A request becomes calls over a connection within the process (`functions`), so that functions of
each kind serve it, batches and slots included, with all checks of other calls. `options` says which
members of a request a function gets, `choices` makes text, tool calls and usage of what it yields,
and `chat`, `responses` and `embeddings` write these in the forms of their paths.
"""
