"""Queues over gRPC."""
