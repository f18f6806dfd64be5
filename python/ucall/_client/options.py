"""The options of a call, and the head of its requests."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from typing import Any, Final

from ucall import _core
from ucall._client.address import Address
from ucall._client.encode import default

__all__ = [
    "RESERVED",
    "TIMEOUT_MS",
    "TIMEOUT_S",
    "UNCHANGED",
    "BalancedOptions",
    "Options",
    "Unchanged",
    "check_header",
]


class Unchanged:
    """The type of `UNCHANGED`, the default of an option that is not given."""

    def __repr__(self) -> str:
        return "..."


UNCHANGED: Final = Unchanged()

#: The time limit of a call unless the program sets one.
TIMEOUT_S = 60.0
#: The header with the time that the caller waits: milliseconds, in decimal. Past it, -32001.
TIMEOUT_MS = "Ucall-Timeout-Ms"

#: Headers that the client sets itself.
RESERVED = {
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "host",
    "transfer-encoding",
    "upgrade",
    "sec-websocket-key",
    "sec-websocket-version",
    "sec-websocket-extensions",
    "sec-websocket-protocol",
}
#: The codings of replies, as ``Accept-Encoding`` names them.
_CODINGS = "zstd, gzip"
_TOKEN = frozenset("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz")


class Options:
    """Timeout, headers and id of calls, and the writer of their requests.

    Raises:
        TypeError, ValueError: An option is invalid; the message names it.
    """

    __slots__ = ("address", "headers", "id", "priority", "timeout", "timeout_ms", "writer")

    #: Whether requests are written again for one of several servers.
    is_provisional = False

    def __init__(
        self,
        address: Address,
        timeout: float | None,
        headers: Mapping[str, str],
        id: int | str | None = None,
        priority: int | None = None,
    ) -> None:
        _check_timeout(timeout)
        _check_priority(priority)
        if isinstance(id, bool) or not isinstance(id, int | str | None):
            raise TypeError(f"id: expected int or str, got {type(id).__name__}")
        if id is not None and address.is_udp:
            raise ValueError("id: calls over UDP have ids of their own, which tell copies apart")
        if headers and not address.has_headers:
            raise ValueError("headers: raw TCP has none")
        if headers and not address.is_trusted:
            raise ValueError(
                "headers: servers that are found by NATS get them only under TLS with a name that "
                "is expected: use nats+https:// or nats+wss:// and server_hostname"
            )
        self.address = address
        self.timeout = timeout
        self.headers = dict(headers)
        self.id = id
        self.priority = priority
        if address.is_websocket:
            self.upgrade_head()
        #: The time limit in the `_meta` of calls without headers: only one that the program has
        #: set, since servers read requests without `_meta` faster.
        self.timeout_ms: int | None = None
        if timeout not in (None, TIMEOUT_S) and not (address.is_http or address.is_udp):
            self.timeout_ms = math.ceil(timeout * 1000)
        self.writer = _core.RequestWriter(
            self._head(),
            default,
            self.timeout_ms,
            address.frames,
            self.is_provisional,
            priority,
            address.codings,
        )

    def _head(self) -> bytes | None:
        """The head of all requests; ``None`` over other protocols than HTTP."""
        if not self.address.is_http:
            return None
        return _head(self.address, _with_deadline(self.headers, self.timeout))

    def stream_writer(self) -> _core.RequestWriter:
        """The writer of calls whose items are wanted. Over HTTP they carry no deadline, because the
        timeout holds between items."""
        if not self.address.is_http:
            return self.writer.without_frames()
        headers = {name: value for name, value in self.headers.items() if name.lower() != "accept"}
        head = _head(self.address, {**headers, "Accept": "text/event-stream"})
        return _core.RequestWriter(
            head, default, priority=self.priority, coding=self.address.codings
        )

    def upgrade_head(self) -> bytes:
        """The head of an upgrade to WebSocket, without its key and end."""
        lines = [
            f"GET {self.address.path} HTTP/1.1",
            f"Host: {_host(self.address)}",
            "Connection: Upgrade",
            "Upgrade: websocket",
            "Sec-WebSocket-Version: 13",
            "Sec-WebSocket-Protocol: jsonrpc",
            *_header_lines(self.headers),
        ]
        return "\r\n".join([*lines, ""]).encode("latin-1")

    def changed(
        self,
        timeout: float | Unchanged | None,
        headers: Mapping[str, str] | Unchanged,
        id: int | str | Unchanged | None,
        idempotent: bool | Unchanged,
        key: str | int | Unchanged | None,
        priority: int | Unchanged | None,
    ) -> Options:
        """A copy with the given options. Headers are added; one of the same name is replaced."""
        for name, value in (("idempotent", idempotent), ("key", key)):
            if not isinstance(value, Unchanged):
                raise ValueError(f"{name}: is for a client with several addresses")
        return Options(self.address, *self._merged(timeout, headers, id, priority))

    @property
    def changes(self) -> dict[str, Any]:
        """What `changed` gets for these options that the constructor of a client does not take."""
        return {"id": self.id, "priority": self.priority}

    def _merged(
        self,
        timeout: float | Unchanged | None,
        headers: Mapping[str, str] | Unchanged,
        id: int | str | Unchanged | None,
        priority: int | Unchanged | None,
    ) -> tuple[float | None, Mapping[str, str], int | str | None, int | None]:
        merged = self.headers
        if not isinstance(headers, Unchanged):
            if self.address.is_websocket:
                raise ValueError("headers: calls over WebSocket have none; give them to Client")
            new = {name.lower() for name in headers}
            kept = {name: value for name, value in merged.items() if name.lower() not in new}
            merged = {**kept, **headers}
        return (
            self.timeout if isinstance(timeout, Unchanged) else timeout,
            merged,
            self.id if isinstance(id, Unchanged) else id,
            self.priority if isinstance(priority, Unchanged) else priority,
        )


class BalancedOptions(Options):
    """The options of calls to one of several addresses, whose requests get their head later.

    Args:
        idempotent: Whether all calls may run twice.
        key: Calls with the same key go to the same address while it is up.
    """

    __slots__ = ("idempotent", "key")

    is_provisional = True

    def __init__(
        self,
        address: Address,
        timeout: float | None,
        headers: Mapping[str, str],
        id: int | str | None = None,
        priority: int | None = None,
        idempotent: bool = False,
        key: str | int | None = None,
    ) -> None:
        if isinstance(key, bool) or not isinstance(key, str | int | None):
            raise TypeError(f"key: expected str or int, got {type(key).__name__}")
        super().__init__(address, timeout, headers, id, priority)
        if address.is_http:
            _head(address, self.headers)  # Checks the headers.
        self.idempotent = idempotent
        self.key = None if key is None else str(key).encode()

    def changed(
        self,
        timeout: float | Unchanged | None,
        headers: Mapping[str, str] | Unchanged,
        id: int | str | Unchanged | None,
        idempotent: bool | Unchanged,
        key: str | int | Unchanged | None,
        priority: int | Unchanged | None,
    ) -> BalancedOptions:
        """A copy with the given options."""
        return BalancedOptions(
            self.address,
            *self._merged(timeout, headers, id, priority),
            self.idempotent if isinstance(idempotent, Unchanged) else idempotent,
            (None if self.key is None else self.key.decode())
            if isinstance(key, Unchanged)
            else key,
        )

    @property
    def changes(self) -> dict[str, Any]:
        """See `Options.changes`."""
        key = None if self.key is None else self.key.decode()
        return {**super().changes, "idempotent": self.idempotent, "key": key}

    def at(self, address: Address, timeout: float | None) -> Options:
        """The options of an attempt at one address, with the time that is left."""
        return Options(address, timeout, self.headers, self.id, self.priority)

    def _head(self) -> None:
        return None


def _check_timeout(timeout: object) -> None:
    if timeout is None:
        return
    if isinstance(timeout, bool) or not hasattr(timeout, "__float__"):
        raise TypeError(
            f"timeout: expected seconds or None, got {timeout!r}; one number limits a call as a "
            "whole, connecting and reading included"
        )
    if not 0 < timeout <= threading.TIMEOUT_MAX:  # type: ignore[operator]
        most = f"at most {threading.TIMEOUT_MAX:.0f}"
        raise ValueError(f"timeout: expected seconds above 0, {most}, or None, got {timeout!r}")


def _check_priority(priority: object) -> None:
    if priority is None:
        return
    if isinstance(priority, bool) or not isinstance(priority, int):
        raise TypeError(f"priority: expected int or None, got {type(priority).__name__}")
    if not -8 <= priority <= 7:
        raise ValueError(f"priority: expected -8 to 7, got {priority}")


def _with_deadline(headers: Mapping[str, str], timeout: float | None) -> Mapping[str, str]:
    """Adds the header with the caller's time limit."""
    if timeout is None or _has(headers, TIMEOUT_MS.lower()):
        return headers
    return {**headers, TIMEOUT_MS: str(math.ceil(timeout * 1000))}


def _has(headers: Mapping[str, str], name: str) -> bool:
    return any(it.lower() == name for it in headers)


def _head(address: Address, headers: Mapping[str, str]) -> bytes:
    """A request's head up to the value of Content-Length."""
    lines = [
        f"POST {address.path} HTTP/1.1",
        f"Host: {_host(address)}",
        "Content-Type: application/json",
    ]
    lines += _header_lines(headers)
    if address.codings is not None and not _has(headers, "accept-encoding"):
        lines.append(f"Accept-Encoding: {_CODINGS}")
    return "\r\n".join([*lines, "Content-Length: "]).encode("latin-1")


def _header_lines(headers: Mapping[str, str]) -> list[str]:
    lines = [] if _has(headers, "user-agent") else [f"User-Agent: ucall/{_core.VERSION}"]
    for name, value in headers.items():
        check_header(name, value)
        lines.append(f"{name}: {value.strip()}")
    return lines


def _host(address: Address) -> str:
    name = address.host_header
    return name if name.isascii() else name.encode("idna").decode("ascii")


def check_header(name: str, value: str) -> None:
    if not isinstance(name, str) or not isinstance(value, str):
        raise TypeError("headers: expected str for names and values")
    if not name or not _TOKEN.issuperset(name.lower()):
        raise ValueError(f"headers: {name!r} is not a valid name of a header")
    if name.lower() in RESERVED:
        raise ValueError(f"headers: {name} is set by the client itself")
    try:
        value.encode("latin-1")
    except UnicodeEncodeError:
        raise ValueError(f"headers: {name} has a value that is not in Latin-1") from None
    if any((ord(letter) < 32 and letter != "\t") or ord(letter) == 127 for letter in value):
        raise ValueError(f"headers: {name} has a value with control characters")
