"""Queues over an MQTT broker."""

from ucall.queue.mqtt import client, server

__all__ = ["client", "server"]
