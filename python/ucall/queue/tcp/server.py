"""The server of a queue over TCP."""

from ucall.queue.transports import Tcp

__all__ = ["Communicator"]


class Communicator(Tcp):
    """A server over TCP: see `ucall.queue.Communicator`."""

    is_server = True
