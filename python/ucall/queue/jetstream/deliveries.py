"""The messages that the broker has delivered to a server and that it has not acknowledged, without
I/O, and which of them may be repeats."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

__all__ = ["Counted", "Deliveries", "Delivery", "Repeats", "Uncounted"]

#: Parts of the subject to which a message is acknowledged, and of one with the broker's domain.
_PARTS, _PARTS_WITH_DOMAIN = 9, 11


class Delivery(NamedTuple):
    """One message of the stream, and what the broker says of its delivery."""

    #: The subject to which it is acknowledged.
    reply: str
    data: bytes
    headers: Mapping[str, str]
    #: How often it was delivered.
    times: int
    #: Its number in the stream, and the number of this delivery in the group.
    sequence: int
    number: int
    #: Messages that the stream has left for the group.
    there: int

    @classmethod
    def of(cls, message: Any) -> Delivery:
        """That of a message of nats-py.

        Raises:
            ValueError: The broker's subject for the acknowledgement is not one of JetStream.
        """
        reply = message.reply
        parts = reply.split(".")
        if len(parts) >= _PARTS_WITH_DOMAIN:
            del parts[2:4]
        if len(parts) < _PARTS or parts[0] != "$JS" or parts[1] != "ACK":
            raise ValueError(f"not a message of JetStream: {reply!r}")
        times, sequence, number, there = parts[4], parts[5], parts[6], parts[8]
        headers = message.headers or {}
        return cls(reply, message.data, headers, int(times), int(sequence), int(number), int(there))


class Deliveries:
    """Those of one stream. Each message is in one of three places.

    The owner guards it with a lock. Once another stream takes the place of this one, nothing that
    is acknowledged here is sent.
    """

    def __init__(self) -> None:
        #: Messages that `get` has not returned.
        self.pulled: deque[Delivery] = deque()
        #: Those that the program has to acknowledge: the subjects for it.
        self._held: dict[str, None] = {}
        #: Those whose acknowledgement is to be sent.
        self.acknowledged: deque[str] = deque()

    def take(self, *, acknowledges: bool) -> Delivery:
        """Hands out the next message that was pulled."""
        delivery = self.pulled.popleft()
        if acknowledges:
            self.acknowledged.append(delivery.reply)
        else:
            self._held[delivery.reply] = None
        return delivery

    def acknowledge(self, reply: str) -> None:
        """The program acknowledges a message.

        Raises:
            KeyError: It is not held: it was given back.
        """
        del self._held[reply]
        self.acknowledged.append(reply)

    def give_back_pulled(self) -> list[str]:
        """Removes what the program has not asked for; returns the subjects."""
        replies = [delivery.reply for delivery in self.pulled]
        self.pulled.clear()
        return replies

    def give_back(self) -> list[str]:
        """Removes what the program has not acknowledged; returns the subjects."""
        replies = [*self.give_back_pulled(), *self._held]
        self._held.clear()
        return replies

    def is_held(self, reply: str) -> bool:
        return reply in self._held

    def held(self) -> list[str]:
        return list(self._held)


@dataclass(frozen=True, slots=True, eq=False)
class Counted:
    """Messages up to this number in the stream may be repeats, and no others."""

    to: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Uncounted:
    """All messages that are stored by now may be repeats. Those up to this number are known."""

    to: int = 0


Repeats = Counted | Uncounted
