"""Queues that a NATS server stores, with JetStream."""

from ucall.queue.jetstream import client, server

__all__ = ["client", "server"]
