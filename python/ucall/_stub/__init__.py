"""Writes typed clients from a server's description, in Python and TypeScript."""
