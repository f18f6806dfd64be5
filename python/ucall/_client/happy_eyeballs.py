"""Connects to one of the addresses of a name (Happy Eyeballs, RFC 8305). It never waits.

| event | then |
|---|---|
| 250 ms have passed, or an attempt has failed | the next address is tried beside the others |
| an attempt has succeeded | its socket is the result, and the others are closed |
| the last attempt has failed | its error is raised |

`attempts` reads no clock: it yields the sockets to wait for, and for how long, and gets the time.
The synchronous client waits by poll(2), that of asyncio in the event loop. Event loops other than
that of the standard library, such as uvloop, have no Happy Eyeballs of their own.
"""

from __future__ import annotations

import errno
import os
import select
import socket
from collections import deque
from collections.abc import Generator, Iterable
from itertools import zip_longest
from typing import Any, TypeAlias

from ucall.errors import ConnectionError

__all__ = ["DELAY_S", "Place", "attempts", "interleaved", "literal"]

Place: TypeAlias = tuple[int, int, int, str, Any]
"""An address, as ``getaddrinfo`` returns it."""

#: Seconds between two attempts (RFC 8305, section 5).
DELAY_S = 0.25


def literal(host: str, port: int) -> list[Place] | None:
    """The address if the host is one already; ``None`` for a name, which has to be resolved."""
    for family, more in ((socket.AF_INET, ()), (socket.AF_INET6, (0, 0))):
        try:
            socket.inet_pton(family, host)
        except OSError:
            continue
        return [(family, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (host, port, *more))]
    return None


def interleaved(found: Iterable[Place]) -> list[Place]:
    """The addresses with their families in turn, the first one's first (RFC 8305, section 4)."""
    families: dict[int, list[Place]] = {}
    for place in found:
        families.setdefault(place[0], []).append(place)
    return [place for turn in zip_longest(*families.values()) for place in turn if place]


def attempts(
    found: Iterable[Place], now: float
) -> Generator[tuple[list[socket.socket], float | None], float, socket.socket]:
    """Connects to one of these addresses; returns its socket, which does not block.

    Yields the sockets to wait for until one is writable, and the seconds to wait at most, ``None``
    for no limit. Gets the time after the wait. Closing it closes the sockets.

    Raises:
        OSError: No address accepts a connection: the last reason.
    """
    waiting, pending = deque(interleaved(found)), list[socket.socket]()
    failed: OSError = ConnectionError("the name has no address")
    next_at = now
    try:
        while True:
            while waiting and now >= next_at:
                try:
                    made, is_connected = _begin(waiting.popleft())
                except OSError as error:
                    failed = error
                    continue
                if is_connected:
                    return made
                pending.append(made)
                next_at = now + DELAY_S
            if not pending:
                raise failed
            now = yield pending, next_at - now if waiting else None
            for made in _ended(pending):
                pending.remove(made)
                code = made.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if code == 0:
                    return made
                made.close()
                failed, next_at = _error(code), now
    finally:
        for made in pending:
            made.close()


def _begin(place: Place) -> tuple[socket.socket, bool]:
    """A socket that connects, and whether it has connected already."""
    family, kind, protocol, _, address = place
    made = socket.socket(family, kind, protocol)
    try:
        made.setblocking(False)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        code = made.connect_ex(address)
        if code not in (0, errno.EINPROGRESS):
            raise _error(code)
    except BaseException:
        made.close()
        raise
    return made, code == 0


def _ended(pending: list[socket.socket]) -> list[socket.socket]:
    """Those that have connected or failed."""
    poll = select.poll()
    for made in pending:
        poll.register(made, select.POLLOUT)
    ready = {descriptor for descriptor, _ in poll.poll(0)}
    return [made for made in pending if made.fileno() in ready]


def _error(code: int) -> OSError:
    return OSError(code, os.strerror(code))
