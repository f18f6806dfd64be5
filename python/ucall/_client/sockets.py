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

    from ucall._client.tls_socket import TlsSocket

__all__ = ["Deadline", "connect", "connect_error", "encrypt", "timeout_error"]


class Deadline:
    """A moment to give up at; ``None`` seconds: never."""

    __slots__ = ("_end", "seconds")

    def __init__(self, seconds: float | None, began: float | None = None) -> None:
        """So many seconds from now, or from the moment of ``time.monotonic`` that is given."""
        self.seconds = seconds
        began = time.monotonic() if began is None else began
        self._end = None if seconds is None else began + seconds

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
        return _connect_unix(address, address.socket_path, deadline)
    try:
        connected = _connect_to_host(address, deadline)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connected
    except (OSError, UnicodeError) as error:
        raise connect_error(address, error, deadline.seconds) from None


def _connect_to_host(address: Address, deadline: Deadline) -> socket.socket:
    """Tries the addresses of a name in turn. They share the time that is left: one that does not
    answer keeps the others from being tried no more than it makes a call late."""
    failed: OSError = ConnectionError("the name has no address")
    found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    for number, (family, kind, protocol, _, place) in enumerate(found):
        left = deadline.left()
        connected = socket.socket(family, kind, protocol)
        try:
            connected.settimeout(left and left / (len(found) - number))
            connected.connect(place)
            return connected
        except OSError as error:
            connected.close()
            failed = error
    raise failed


def _connect_unix(address: Address, path: str, deadline: Deadline) -> socket.socket:
    connected = socket.socket(socket.AF_UNIX)
    try:
        connected.settimeout(deadline.left())
        connected.connect(path)
        return connected
    except OSError as error:
        connected.close()
        raise connect_error(address, error, deadline.seconds) from None


def encrypt(
    connected: socket.socket, context: ssl.SSLContext, address: Address, deadline: Deadline
) -> TlsSocket:
    """The same connection, encrypted.

    Raises:
        ucall.ConnectionError: The server is not trusted, or speaks no TLS.
        ucall.TimeoutError: It did not finish the handshake in time.
    """
    from ucall._client.tls_socket import TlsSocket

    try:
        connected.settimeout(deadline.left())
        secured = TlsSocket(connected, context, address.host)
        secured.do_handshake()
        return secured
    except (OSError, ValueError) as error:
        connected.close()
        raise connect_error(address, error, deadline.seconds) from None


def connect_error(address: Address, error: Exception, seconds: float | None) -> Exception:
    """The exception to raise in place of the system's."""
    if isinstance(error, builtins.TimeoutError) and not isinstance(error, TimeoutError):
        return timeout_error(seconds, f"cannot connect to {address.name}")
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    if getattr(error, "reason", None) == "WRONG_VERSION_NUMBER":
        reason = "it speaks no TLS on this port"
    return ConnectionError(f"cannot connect to {address.name}: {reason}")


def timeout_error(seconds: float | None, event: str = "no reply came") -> TimeoutError:
    """The exception for a deadline that passed."""
    return TimeoutError(f"{event} within {seconds:g} s" if seconds else f"{event} in time")
