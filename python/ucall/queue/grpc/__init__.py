"""Queues over gRPC."""

from ucall.queue.grpc import client, server

__all__ = ["client", "server"]
