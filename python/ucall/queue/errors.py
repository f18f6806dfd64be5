"""The exceptions of the queues."""

from __future__ import annotations

import queue
import uuid

from ucall import errors

__all__ = ["ConnectionError", "FullError"]


class ConnectionError(errors.ConnectionError):
    """A peer, or this side, has closed for good.

    Attributes:
        peer: The id of the peer; None if it was never met, or if it is this side.
    """

    peer: uuid.UUID | None

    def __init__(self, peer: uuid.UUID | None = None, reason: str = "closed") -> None:
        super().__init__(peer, reason)
        self.peer = peer

    def __str__(self) -> str:
        peer, reason = self.args
        return str(reason) if peer is None else f"{reason}: {peer}"


class FullError(queue.Full):
    """There is no room in the queue for a peer.

    Attributes:
        peer: The id of the peer; None if it was never met.
    """

    peer: uuid.UUID | None

    def __init__(self, peer: uuid.UUID | None = None, reason: str = "the queue is full") -> None:
        super().__init__(peer, reason)
        self.peer = peer

    def __str__(self) -> str:
        peer, reason = self.args
        return str(reason) if peer is None else f"{reason}: {peer}"
