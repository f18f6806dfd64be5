"""Opens sockets within a deadline, and makes the exceptions of a client."""

from __future__ import annotations

import builtins
import math
import select
import socket
import time
from contextlib import closing
from typing import TYPE_CHECKING, TypeVar

from ucall._client.address import Address
from ucall._client.deadline import Deadline
from ucall._client.happy_eyeballs import attempts, literal
from ucall.errors import ConnectionError, HTTPError, TimeoutError

if TYPE_CHECKING:
    import ssl

    from ucall._client.tls_socket import TlsSocket
    from ucall._core import Reply, Request

__all__ = [
    "Deadline",
    "check_in_time",
    "client_closed_error",
    "closed_error",
    "connect",
    "connect_error",
    "encrypt",
    "inherited_error",
    "is_deadline",
    "late_error",
    "left_to_send",
    "not_sent",
    "note_coding",
    "timeout_error",
]

ErrorT = TypeVar("ErrorT", bound=BaseException)

#: A connection that was idle for longer is not reused: servers close theirs after 75 s (nginx,
#: ucall), and a request must not cross that.
IDLE_MAX_S = 60.0
#: The longest wait that `select.poll` takes, of 24 days.
_POLL_MS_MAX = 2**31 - 1


def connect(address: Address, deadline: Deadline) -> socket.socket:
    """Connects a socket to a server.

    Raises:
        ucall.ConnectionError: No server accepts the connection.
        ucall.TimeoutError: No server has accepted it in time.
    """
    try:
        if address.connector is not None:
            return address.connector()
        if address.socket_path is not None:
            return _connect_to_path(address.socket_path, deadline)
        return _connect_to_host(address, deadline)
    except (OSError, UnicodeError) as error:
        raise connect_error(address, error, deadline.seconds) from None


def _connect_to_path(path: str, deadline: Deadline) -> socket.socket:
    made = socket.socket(socket.AF_UNIX)
    try:
        made.settimeout(deadline.left())
        made.connect(path)
        made.setblocking(True)
        return made
    except BaseException:
        made.close()
        raise


def _connect_to_host(address: Address, deadline: Deadline) -> socket.socket:
    host, port = address.connect_host, address.port
    found = literal(host, port) or socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    connecting = attempts(found, time.monotonic())
    with closing(connecting):
        try:
            pending, seconds = next(connecting)
            while True:
                _wait_for_any(pending, seconds, deadline.left())
                pending, seconds = connecting.send(time.monotonic())
        except StopIteration as ended:
            connected: socket.socket = ended.value
    connected.setblocking(True)
    return connected


def _wait_for_any(pending: list[socket.socket], *limits: float | None) -> None:
    """Waits until one of the sockets is writable or has failed, within these seconds."""
    poll = select.poll()
    for made in pending:
        poll.register(made, select.POLLOUT)
    seconds = min((it for it in limits if it is not None), default=None)
    # Rounded up, so that a wait does not end just before its deadline, again and again.
    poll.poll(None if seconds is None else min(math.ceil(seconds * 1000), _POLL_MS_MAX))


def encrypt(
    connected: socket.socket, context: ssl.SSLContext, address: Address, deadline: Deadline
) -> TlsSocket:
    """Performs the TLS handshake on a socket.

    Raises:
        ucall.ConnectionError: The server's certificate is not trusted, or it does not speak TLS.
        ucall.TimeoutError: The handshake did not end in time.
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


def is_deadline(error: BaseException) -> bool:
    """Whether an exception says that a deadline passed. The system's ETIMEDOUT, of a peer that does
    not answer, is a `TimeoutError`, too, and a failure of the connection."""
    return isinstance(error, builtins.TimeoutError) and error.errno is None


#: Certificates whose authority is not known, by OpenSSL's codes.
_UNTRUSTED = {18, 19, 20, 21}


def connect_error(
    address: Address, error: Exception, seconds: float | None
) -> ConnectionError | TimeoutError:
    """The exception for a connection that could not be made, instead of the system's."""
    if is_deadline(error):
        late = not_sent(timeout_error(seconds, f"cannot connect to {address.name}"))
        late._was_connecting = True
        return late
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    if getattr(error, "reason", None) == "WRONG_VERSION_NUMBER":
        reason = "the server does not speak TLS on this port"
    if getattr(error, "verify_code", None) in _UNTRUSTED:
        reason += "; name its authority by verify=, at the command line by --cacert"
    return not_sent(ConnectionError(f"cannot connect to {address.name}: {reason}"))


def not_sent(error: ErrorT) -> ErrorT:
    """Marks an exception: the server has not read the request, so the call has not run."""
    error.may_have_run = False  # type: ignore[attr-defined]
    return error


def note_coding(error: BaseException, request: Request) -> None:
    """Marks the exception of a status whose request was compressed."""
    if isinstance(error, HTTPError):
        error._was_compressed = request.is_compressed


def left_to_send(deadline: Deadline) -> float | None:
    """Seconds until a deadline, for what is not sent yet.

    Raises:
        ucall.TimeoutError: It has passed. The exception is marked.
    """
    try:
        return deadline.left()
    except builtins.TimeoutError:
        raise not_sent(timeout_error(deadline.seconds, "the request was not sent")) from None


def timeout_error(seconds: float | None, event: str = "") -> TimeoutError:
    """The exception for a deadline that passed, before an event."""
    limit = f"timed out after {seconds:g} s" if seconds else "timed out"
    return TimeoutError(f"{event}: {limit}" if event else limit)


def late_error(other: BaseException | None, seconds: float | None, event: str = "") -> TimeoutError:
    """`timeout_error`, marked as another exception for the same deadline is."""
    error = timeout_error(seconds, event)
    error.may_have_run = getattr(other, "may_have_run", True)
    return error


def check_in_time(reply: Reply, deadline: Deadline) -> None:
    """Raises ``ucall.TimeoutError`` for the error of a server that has noticed first that the
    deadline of a call has passed. Before it, a server has a limit of its own."""
    if reply.is_deadline_error and deadline.is_over():
        raise timeout_error(deadline.seconds)


def inherited_error() -> ConnectionError:
    """The exception for a connection in a forked child."""
    return ConnectionError("the connection belongs to the process that this one was forked from")


def client_closed_error() -> ConnectionError:
    """The exception for what a client that was closed has begun."""
    return ConnectionError("the client was closed")


def closed_error() -> ConnectionError:
    """The exception for a connection that was closed before the reply."""
    return ConnectionError(
        "the server closed the connection instead of replying; the call may have run"
    )
