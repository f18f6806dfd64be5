"""Connecting, within a deadline."""

from __future__ import annotations

import builtins
import socket
import time
from typing import TYPE_CHECKING

from ucall._client.address import Address
from ucall.errors import ConnectionError, TimeoutError

if TYPE_CHECKING:
    import ssl

__all__ = ["Deadline", "cannot_connect", "connect", "encrypt", "late"]


class Deadline:
    """A moment to give up at; ``None`` seconds: never."""

    __slots__ = ("_end", "seconds")

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds
        self._end = None if seconds is None else time.monotonic() + seconds

    def left(self) -> float | None:
        """Seconds that are left.

        Raises:
            TimeoutError: None are.
        """
        if self._end is None:
            return None
        left = self._end - time.monotonic()
        if left <= 0:
            raise builtins.TimeoutError
        return left


def connect(address: Address, deadline: Deadline) -> socket.socket:
    """A connected socket.

    Raises:
        ucall.ConnectionError: Nobody is there.
        ucall.TimeoutError: Nobody answered in time.
    """
    if address.socket_path is not None:
        return _connect_to_file(address, address.socket_path, deadline)
    try:
        connected = socket.create_connection((address.host, address.port), deadline.left())
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connected
    except (OSError, UnicodeError) as error:
        raise cannot_connect(address, error, deadline.seconds) from None


def _connect_to_file(address: Address, path: str, deadline: Deadline) -> socket.socket:
    connected = socket.socket(socket.AF_UNIX)
    try:
        connected.settimeout(deadline.left())
        connected.connect(path)
        return connected
    except OSError as error:
        connected.close()
        raise cannot_connect(address, error, deadline.seconds) from None


def encrypt(
    connected: socket.socket, context: ssl.SSLContext, address: Address, deadline: Deadline
) -> socket.socket:
    """The same connection, encrypted.

    Raises:
        ucall.ConnectionError: The server is not trusted, or speaks no TLS.
        ucall.TimeoutError: It did not finish the handshake in time.
    """
    try:
        connected.settimeout(deadline.left())
        return context.wrap_socket(connected, server_hostname=address.host)
    except (OSError, ValueError) as error:
        connected.close()
        raise cannot_connect(address, error, deadline.seconds) from None


def cannot_connect(address: Address, error: Exception, seconds: float | None) -> Exception:
    """The exception to raise in place of the system's."""
    if isinstance(error, builtins.TimeoutError) and not isinstance(error, TimeoutError):
        return late(seconds, f"cannot connect to {address.name}")
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    if getattr(error, "reason", None) == "WRONG_VERSION_NUMBER":
        reason = "it speaks no TLS on this port"
    return ConnectionError(f"cannot connect to {address.name}: {reason}")


def late(seconds: float | None, what: str = "no reply came") -> TimeoutError:
    """The exception for a deadline that passed."""
    return TimeoutError(f"{what} within {seconds:g} s" if seconds else f"{what} in time")
