"""The client of a queue over Unix sockets."""

from ucall.queue.transports import Unix

__all__ = ["Communicator"]


class Communicator(Unix):
    """A client over Unix sockets: see `ucall.queue.Communicator`."""

    is_server = False
