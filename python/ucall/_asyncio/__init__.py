"""Runs of a server: without an event loop, on a loop of its own, or on a program's loop.

Importing this imports no asyncio: `run` imports `event_loop` with the first async function.
"""
