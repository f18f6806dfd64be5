"""Queues over Unix sockets."""

from ucall.queue.unix import client, server

__all__ = ["client", "server"]
