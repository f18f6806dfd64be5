"""Queues through a broker."""
