"""Mounted applications of ASGI: where they are, and their lifespan.

Imported by `Server.mount` alone.
"""
