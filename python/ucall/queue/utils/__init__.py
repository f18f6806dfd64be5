"""Tools that the queues are made of."""
