"""The client of a queue over shared memory."""

from ucall.queue.transports import Shm

__all__ = ["Communicator"]


class Communicator(Shm):
    """A client over shared memory: see `ucall.queue.Communicator`."""

    is_server = False
