"""The server's side of a queue over shared memory."""

from __future__ import annotations

from ucall.queue.shm.location import Communicator as _Communicator

__all__ = ["Communicator"]


class Communicator(_Communicator):
    """See `ucall.queue.core.Communicator`."""

    is_server = True
