"""Events of the connections of a communicator."""

from __future__ import annotations

import uuid
from typing import Literal, NamedTuple, cast

__all__ = ["ConnectionEvent", "Kind", "event_of"]

Kind = Literal["started", "lost", "resumed", "expired", "refused", "ended"]


class ConnectionEvent(NamedTuple):
    """What `Communicator.on_connection` reports.

    Attributes:
        kind: ``"started"``, the session with a peer has started; ``"lost"``, its connection was
            lost; ``"resumed"``, another connection continues the session; ``"expired"``, the peer
            was gone for longer than ``expire_s``, and the messages for it fail; ``"refused"``, a
            connection was refused, by the server or by this side; ``"ended"``, the session is over.
        peer: The id of the peer; None for a client that has never connected.
        reason: Why, for ``"lost"``, ``"expired"`` and ``"refused"``; else None.
    """

    kind: Kind
    peer: uuid.UUID | None
    reason: str | None = None


def event_of(item: tuple[str, uuid.UUID | None, str | None]) -> ConnectionEvent:
    """An event of `QueueCore._next_changes`."""
    kind, peer, reason = item
    return ConnectionEvent(cast(Kind, kind), peer, reason)
