"""NATS, by nats-py: servers that clients find by it, and the connections of queues to it.

Imported only by servers, clients and queues that are given a broker of NATS.
"""
