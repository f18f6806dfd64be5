"""Calls over UDP: retransmission, windows and cookies, without sockets and clocks.

A `Window` sends each request in a datagram of its own, and sends it again until its reply comes,
with growing pauses (RFC 8085, 3.1). The server answers a request that it has run with the reply
that it had. A server that asks for a cookie includes one, which all later requests carry.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Sequence

from ucall import _core
from ucall.errors import ConnectionError

__all__ = [
    "COOKIE_REQUIRED",
    "WINDOW",
    "Call",
    "Cookie",
    "RoundTrips",
    "Window",
    "add_cookie",
    "check_length",
    "parse_reply",
    "wants_tcp",
]

#: The code of an error that asks for a cookie.
COOKIE_REQUIRED = -32006
#: The longest datagram that IPv4 carries.
DATAGRAM_BYTES_MAX = 65_507
#: Requests in flight. A server allows 64 deferred calls of one address.
WINDOW = 32
#: Seconds between copies of a request: before the first reply (RFC 8085, 3.1.1), the shortest, and
#: the longest, of which several fit in the time that a server keeps a reply.
FIRST_PAUSE_S = 1.0
PAUSE_S_MIN = 0.05
PAUSE_S_MAX = 2.0
#: Pauses vary by this share, so that clients that lost datagrams together do not repeat together.
JITTER = 0.25
#: How often one call is sent again with another cookie.
COOKIES_MAX = 3
#: A longer one would make the `_meta` of all later requests invalid. Ours have 32.
COOKIE_CHARACTERS_MAX = 256

Call = tuple[object, bytes]


class RoundTrips:
    """Estimates how long a reply takes (RFC 6298)."""

    __slots__ = ("_smoothed", "_variation")

    def __init__(self) -> None:
        self._smoothed: float | None = None
        self._variation = 0.0

    def add(self, seconds: float) -> None:
        """Counts a reply to a request that was sent once: any other is ambiguous."""
        if self._smoothed is None:
            self._smoothed, self._variation = seconds, seconds / 2
            return
        self._variation += (abs(seconds - self._smoothed) - self._variation) / 4
        self._smoothed += (seconds - self._smoothed) / 8

    @property
    def pause_s(self) -> float:
        """Seconds before a request is sent again for the first time."""
        if self._smoothed is None:
            return FIRST_PAUSE_S
        return min(max(self._smoothed + 4 * self._variation, PAUSE_S_MIN), PAUSE_S_MAX)


class Cookie:
    """The newest cookie of a server, for all calls of a client."""

    __slots__ = ("text",)

    def __init__(self) -> None:
        self.text: str | None = None


class _Sent:
    """A request in flight."""

    __slots__ = ("begun_at", "cookies", "copies", "data", "due_at", "pause_s")

    def __init__(self, data: bytes, now: float, pause_s: float) -> None:
        self.data = data
        self.begun_at = self.due_at = now
        self.pause_s = pause_s
        self.copies = self.cookies = 0


class Window:
    """The calls on one socket: at most `WINDOW` are in flight, and the others wait in their order.

    Args:
        round_trips, cookie: Those of the client.
        uniform: Returns a random number between its two arguments.
    """

    def __init__(
        self,
        round_trips: RoundTrips,
        cookie: Cookie,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._round_trips = round_trips
        self._cookie = cookie
        self._uniform = uniform
        self._unsent: dict[object, bytes] = {}
        self._sent: dict[object, _Sent] = {}
        #: The replies by the ids of their calls, until `discard`.
        self.replies: dict[object, _core.Reply] = {}

    def add(self, calls: Sequence[Call]) -> None:
        """Adds calls, whose ids no other call has.

        Raises:
            ValueError: A request is too long for a datagram.
        """
        for _, data in calls:
            check_length(data)
        self._unsent.update(calls)

    def discard(self, ids: Iterable[object]) -> None:
        """Forgets calls and their replies. A reply that is still to come answers no call."""
        for id in ids:
            self._unsent.pop(id, None)
            self._sent.pop(id, None)
            self.replies.pop(id, None)

    def holds(self, ids: Iterable[object]) -> bool:
        """Whether none of these calls was sent."""
        return all(id in self._unsent for id in ids)

    @property
    def sent_count(self) -> int:
        """The number of calls that were sent and not answered."""
        return len(self._sent)

    @property
    def is_done(self) -> bool:
        """Whether all calls are answered."""
        return not (self._unsent or self._sent)

    def take_due(self, now: float) -> list[bytes]:
        """The datagrams to send now."""
        while self._unsent and len(self._sent) < WINDOW:
            id = next(iter(self._unsent))
            self._sent[id] = _Sent(self._unsent.pop(id), now, self._round_trips.pause_s)
        datagrams = []
        for sent in self._sent.values():
            if sent.due_at > now:
                continue
            jitter = self._uniform(1 - JITTER, 1 + JITTER)
            sent.due_at = now + min(sent.pause_s, PAUSE_S_MAX) * jitter
            sent.pause_s *= 2
            sent.copies += 1
            datagrams.append(add_cookie(sent.data, self._cookie.text))
        return datagrams

    @property
    def due_at(self) -> float | None:
        """When `take_due` has the next datagram, unless a reply comes before; ``None`` while no
        call is in flight."""
        return min((sent.due_at for sent in self._sent.values()), default=None)

    def take_reply(self, id: object, reply: _core.Reply, now: float) -> bool:
        """Handles a reply of `parse_reply`; returns whether it answers a call.

        One that answers no call is dropped: it may be late.
        """
        sent = self._sent.get(id)
        if sent is None or (reply.is_error and self._takes_cookie(sent, reply, now)):
            return False
        if sent.copies == 1:
            self._round_trips.add(now - sent.begun_at)
        del self._sent[id]
        self.replies[id] = reply
        return True

    def _takes_cookie(self, sent: _Sent, reply: _core.Reply, now: float) -> bool:
        """Sends a request again with the cookie in an error, if it asks for one."""
        error = reply.error()
        if error.get("code") != COOKIE_REQUIRED or sent.cookies == COOKIES_MAX:
            return False
        data = error.get("data")
        text = data.get("cookie") if isinstance(data, dict) else None
        if not isinstance(text, str) or len(text) > COOKIE_CHARACTERS_MAX:
            return False
        self._cookie.text = text
        sent.cookies += 1
        sent.due_at = now
        return True


def check_length(data: bytes) -> None:
    """Raises ValueError if a request is too long for a datagram."""
    if len(data) > DATAGRAM_BYTES_MAX:
        raise ValueError(
            f"the request has {len(data)} bytes; expected at most {DATAGRAM_BYTES_MAX}, "
            "or tcp:// instead of udp://"
        )


def parse_reply(
    datagram: bytes, reply_bytes_max: int
) -> tuple[int | str, _core.Reply] | tuple[None, None]:
    """The reply in a datagram, and its id; None if it has none, as a forged one may."""
    reader = _core.ReplyReader(http=False, reply_bytes_max=reply_bytes_max)
    try:
        messages = reader.feed(datagram + b"\n")
        if len(messages) != 1 or not isinstance(reply := messages[0], _core.Reply):
            return None, None
        if reply.is_batch or (reply.is_error and not isinstance(reply.error(), dict)):
            return None, None
        id = reply.id
    except (ConnectionError, ValueError):
        # An integer may have more digits than Python reads.
        return None, None
    # Others are never looked up: millions of them may have one hash.
    return (id, reply) if type(id) in (int, str) else (None, None)


def add_cookie(data: bytes, cookie: str | None) -> bytes:
    """A request with a cookie in its `_meta`. Its other bytes stay, as the server compares them.

    A second `_meta` replaces the first, and so has its members.
    """
    request = data.rstrip()
    if cookie is None or not request.endswith(b"}"):
        return data
    meta = json.loads(request).get("_meta", {}) if b'"_meta"' in request else {}
    meta["cookie"] = cookie
    return request[:-1] + b',"_meta":' + json.dumps(meta).encode() + b"}"


def wants_tcp(reply: _core.Reply) -> bool:
    """Whether a reply says that the result is too long for a datagram."""
    if not reply.is_error:
        return False
    data = reply.error().get("data")
    return isinstance(data, dict) and data.get("transport") == "tcp"
