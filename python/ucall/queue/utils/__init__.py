"""The serializers of the queues."""
