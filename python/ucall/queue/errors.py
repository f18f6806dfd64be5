"""The exceptions of the queues."""

from __future__ import annotations

import pickle
import queue
import uuid

from ucall import errors

__all__ = ["ConnectionError", "FullError", "RefusedError"]


class _PeerError(Exception):
    """An exception that concerns one peer."""

    peer: uuid.UUID | None
    #: Of a future: whether a peer may have received the message. False if `put` has raised it.
    may_have_arrived: bool = False

    def __init__(self, peer: uuid.UUID | None, reason: str) -> None:
        super().__init__(peer, reason)
        self.peer = peer

    def __str__(self) -> str:
        peer, reason = self.args
        return str(reason) if peer is None else f"{reason}: {peer}"


class ConnectionError(_PeerError, errors.ConnectionError):
    """The peer or this communicator has closed, and will not reconnect.

    Attributes:
        peer: The id of the peer. If this communicator has closed, and the error concerns no single
            peer, its own id. None if no peer is known: a client has had no session with its server,
            or a server has no client to put to.
        may_have_arrived: Of a future: whether a peer may have received the message. If not, putting
            the object again makes no repeat.
    """

    def __init__(self, peer: uuid.UUID | None = None, reason: str = "closed") -> None:
        super().__init__(peer, reason)


class FullError(_PeerError, queue.Full):
    """The queue for a peer is full: see `ConnectionOptions.queue_size`.

    Attributes:
        peer: The id of the peer; None if it never connected.
    """

    def __init__(self, peer: uuid.UUID | None = None, reason: str = "the queue is full") -> None:
        super().__init__(peer, reason)


class RefusedError(_PeerError, pickle.UnpicklingError):
    """A message contains an object that its receiver does not allow, or cannot read.

    `put` raises it, or the future, if the receiver has announced what it allows. Else `get` raises
    it, and the future if ``ack`` is ``"taken"`` or ``"explicit"``.

    Attributes:
        peer: The id of the receiver; in the receiver's `get`, that of the sender.
    """

    def __init__(self, peer: uuid.UUID | None = None, reason: str = "refused") -> None:
        super().__init__(peer, reason)

    def __str__(self) -> str:
        reason = str(self.args[1])
        return reason if self.peer is None else f"{reason} (peer {self.peer})"
