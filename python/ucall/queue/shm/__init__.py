"""Queues over shared memory, between processes of one user on one host."""
