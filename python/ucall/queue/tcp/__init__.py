"""Queues over TCP."""

from ucall.queue.tcp import client, server

__all__ = ["client", "server"]
