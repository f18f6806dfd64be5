"""The server of a queue over NATS."""

from ucall.queue.transports import Nats

__all__ = ["Communicator"]


class Communicator(Nats):
    """A server over NATS: see `ucall.queue.Communicator`."""

    is_server = True
