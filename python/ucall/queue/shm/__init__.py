"""Queues over shared memory."""

from ucall.queue.shm import client, server

__all__ = ["client", "server"]
