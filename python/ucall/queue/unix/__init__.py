"""Queues over Unix sockets."""
