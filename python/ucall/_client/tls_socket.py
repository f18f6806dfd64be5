"""A socket under TLS that is never busy for longer than it is told.

``ssl.SSLSocket`` lets OpenSSL read from the socket, which goes on for as long as there are records
that carry nothing: a server that sends them without end keeps it there, whatever the timeout. Here
OpenSSL gets what one receive has brought, and the clock is looked at before the next.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from ucall._client.sockets import Deadline

__all__ = ["TlsSocket"]

T = TypeVar("T")

_PIECE_BYTES = 64 * 1024


class TlsSocket:
    """As much of Python's ``SSLSocket`` as a client needs."""

    __slots__ = ("_incoming", "_outgoing", "_socket", "_tls")

    def __init__(self, connected: socket.socket, context: ssl.SSLContext, host: str) -> None:
        self._socket = connected
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)

    def do_handshake(self) -> None:
        """Agrees with the server.

        Raises:
            OSError: The server is not trusted, or speaks no TLS; ``TimeoutError``: not in time.
        """
        deadline = self._deadline()
        try:
            self._drive(self._tls.do_handshake, deadline)
        except ssl.SSLError:
            # The server is told why.
            with suppress(OSError):
                self._flush(deadline)
            raise

    def send(self, data: memoryview) -> int:
        """Sends all of it."""
        return self._drive(lambda: self._tls.write(data), self._deadline())

    def recv(self, size: int) -> bytes:
        """Up to so many bytes, at least one; none at the end. In non-blocking mode it raises an
        ``OSError`` when there is none in what one receive brings."""
        try:
            return self._drive(lambda: self._tls.read(size), self._deadline())
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            return b""

    def has_unread(self) -> bool:
        """Whether something was received that was not yet looked at."""
        return self._incoming.pending > 0 or self._tls.pending() > 0

    def settimeout(self, seconds: float | None) -> None:
        """How long each of the others may take in all."""
        self._socket.settimeout(seconds)

    def setblocking(self, flag: bool) -> None:
        """Without a timeout, or without waiting."""
        self._socket.setblocking(flag)

    def fileno(self) -> int:
        """The system's number of it."""
        return self._socket.fileno()

    def close(self) -> None:
        """Closes it."""
        self._socket.close()

    def _deadline(self) -> Deadline | None:
        seconds = self._socket.gettimeout()
        return Deadline(seconds) if seconds else None

    def _drive(self, step: Callable[[], T], deadline: Deadline | None) -> T:
        """What a step of OpenSSL returns, once it has all that it needs."""
        is_patient = self._socket.gettimeout() != 0
        has_received = False
        while True:
            try:
                done = step()
                self._flush(deadline)
                return done
            except ssl.SSLWantReadError:
                if has_received and not is_patient:
                    raise
            self._flush(deadline)
            self._receive(deadline)
            has_received = True

    def _receive(self, deadline: Deadline | None) -> None:
        if deadline is not None:
            self._socket.settimeout(deadline.left())
        data = self._socket.recv(_PIECE_BYTES)
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()

    def _flush(self, deadline: Deadline | None) -> None:
        """Sends what TLS has written."""
        while data := memoryview(self._outgoing.read()):
            while data:
                if deadline is not None:
                    self._socket.settimeout(deadline.left())
                data = data[self._socket.send(data) :]
