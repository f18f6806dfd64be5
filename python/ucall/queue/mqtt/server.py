"""The server's side of a queue through a broker."""

from __future__ import annotations

from ucall.queue.mqtt.location import Communicator as _Communicator

__all__ = ["Communicator"]


class Communicator(_Communicator):
    """See `ucall.queue.core.Communicator`."""

    is_server = True
