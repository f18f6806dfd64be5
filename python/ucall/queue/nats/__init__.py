"""Queues over NATS."""

from ucall.queue.nats import client, server

__all__ = ["client", "server"]
