"""The server of a queue over shared memory."""

from ucall.queue.transports import Shm

__all__ = ["Communicator"]


class Communicator(Shm):
    """A server over shared memory: see `ucall.queue.Communicator`."""

    is_server = True
