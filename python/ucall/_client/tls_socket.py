"""A TLS socket whose timeout bounds each call as a whole.

In ``ssl.SSLSocket`` OpenSSL reads from the socket itself, and continues while records carry no
data: a server that keeps sending such records blocks it beyond any timeout. Here OpenSSL gets the
bytes of one receive at a time, and the deadline is checked before each receive.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from ucall._client.deadline import Deadline

__all__ = ["TlsSocket"]

T = TypeVar("T")

_PIECE_BYTES = 64 * 1024


class TlsSocket:
    """The methods of ``ssl.SSLSocket`` that a client needs."""

    __slots__ = ("_incoming", "_outgoing", "_socket", "_tls")

    def __init__(self, connected: socket.socket, context: ssl.SSLContext, host: str) -> None:
        self._socket = connected
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)

    def do_handshake(self) -> None:
        """Performs the TLS handshake.

        Raises:
            OSError: The server's certificate is not trusted, or it does not speak TLS;
                ``TimeoutError`` when the timeout passed.
        """
        deadline = self._deadline()
        try:
            self._drive(self._tls.do_handshake, deadline)
        except ssl.SSLError:
            # The alert reports the reason to the server.
            with suppress(OSError):
                self._flush(deadline)
            raise

    def send(self, data: memoryview) -> int:
        """Sends all bytes; returns their number."""
        return self._drive(lambda: self._tls.write(data), self._deadline())

    def recv(self, size: int) -> bytes:
        """Receives 1 to ``size`` bytes; none at the end of the stream.

        Raises:
            OSError: In non-blocking mode, one receive brought no data.
        """
        try:
            return self._drive(lambda: self._tls.read(size), self._deadline())
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            return b""

    def has_unread(self) -> bool:
        """Whether received bytes are buffered that `recv` has not returned."""
        return self._incoming.pending > 0 or self._tls.pending() > 0

    def settimeout(self, seconds: float | None) -> None:
        """Bounds the total time of each call."""
        self._socket.settimeout(seconds)

    def setblocking(self, flag: bool) -> None:
        """Blocks without a timeout, or never."""
        self._socket.setblocking(flag)

    def fileno(self) -> int:
        """The file descriptor."""
        return self._socket.fileno()

    def shutdown(self, how: int) -> None:
        """Shuts the socket down, without a message of TLS."""
        self._socket.shutdown(how)

    def close(self) -> None:
        """Closes the socket."""
        self._socket.close()

    def _deadline(self) -> Deadline | None:
        seconds = self._socket.gettimeout()
        return Deadline(seconds) if seconds else None

    def _drive(self, operation: Callable[[], T], deadline: Deadline | None) -> T:
        """Runs an operation of OpenSSL, with further received bytes until it completes."""
        is_blocking = self._socket.gettimeout() != 0
        has_received = False
        while True:
            try:
                done = operation()
                self._flush(deadline)
                return done
            except ssl.SSLWantReadError:
                if has_received and not is_blocking:
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
        """Sends the records that OpenSSL has written."""
        while data := memoryview(self._outgoing.read()):
            while data:
                if deadline is not None:
                    self._socket.settimeout(deadline.left())
                data = data[self._socket.send(data) :]
