"""Queues over TCP."""
