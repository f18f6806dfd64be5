"""A connection over a Python socket, for TLS and for observers of the bytes."""

from __future__ import annotations

import socket
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from ucall import _core, _forks
from ucall._client import sockets
from ucall._client.inbox import DrainNotice
from ucall._client.sockets import (
    Deadline,
    check_in_time,
    closed_error,
    inherited_error,
    is_deadline,
    late_error,
    left_to_send,
    note_coding,
)
from ucall.errors import ConnectionError

if TYPE_CHECKING:
    from ucall._client.inbox import Message
    from ucall._client.tls_socket import TlsSocket

__all__ = ["EventConnection", "Observer", "SocketConnection"]

_PIECE_BYTES = 64 * 1024


class Observer(Protocol):
    """Receives events of a connection."""

    def sending(self, data: memoryview) -> None:
        """A request is about to be sent."""

    def sent(self, done_bytes: int, total_bytes: int) -> None:
        """A part of a request was sent."""

    def received(self, data: bytes) -> None:
        """Bytes were received."""


class SocketConnection:
    """The methods of the core's ``ClientConnection`` on a connected Python socket."""

    __slots__ = (
        "_drain",
        "_idle_since",
        "_is_http",
        "_observer",
        "_reader",
        "_requests_sent",
        "_socket",
    )

    def __init__(
        self,
        connected: socket.socket | TlsSocket,
        *,
        is_http: bool,
        reply_bytes_max: int,
        observer: Observer | None = None,
        events: bool = False,
        codings: bool = False,
    ) -> None:
        self._socket: socket.socket | TlsSocket | None = connected
        self._reader = _core.ReplyReader(
            http=is_http, reply_bytes_max=reply_bytes_max, events=events, codings=codings
        )
        self._is_http = is_http
        self._observer = observer
        self._idle_since: float | None = None
        self._requests_sent = 0
        self._drain = DrainNotice()

    def exchange(self, request: _core.Request, timeout: float | None) -> _core.Reply | None:
        """Sends a request and returns its reply; ``None`` if the connection closed while idle.

        Raises:
            ucall.ConnectionError: The connection failed, or the reply is not JSON-RPC.
            ucall.TimeoutError: There was no reply within ``timeout`` seconds.
        """
        connected = self._socket
        if connected is None or self._is_stale(connected):
            self.close()
            return None
        self._requests_sent += 1
        deadline = Deadline(timeout)
        try:
            reply = self._run(connected, request, deadline)
            reply.check_answers(request)
            if not reply.is_result:
                check_in_time(reply, deadline)
        except BaseException as error:
            self.close()
            failure = _failure(error, timeout)
            note_coding(failure, request)
            if isinstance(failure, Exception):
                failure = self._drain.marked(failure, self._requests_sent)
            raise failure from None
        self._idle_since = time.monotonic()
        return reply

    @property
    def is_reusable(self) -> bool:
        """Whether the server keeps it open for another request."""
        is_open = self._socket is not None and self._reader.is_reusable
        return is_open and not self._drain.has_begun

    def close(self) -> None:
        """Closes the connection."""
        connected, self._socket = self._socket, None
        if connected is not None:
            connected.close()

    def _is_stale(self, connected: socket.socket | TlsSocket) -> bool:
        """Whether an idle connection cannot be used. Unread bytes may be a TLS session ticket."""
        if self._idle_since is None:
            return False
        if time.monotonic() - self._idle_since > sockets.IDLE_MAX_S or not self._reader.is_reusable:
            return True
        has_unread = not isinstance(connected, socket.socket) and connected.has_unread()
        if _core.peek(connected.fileno()) == "quiet" and not has_unread:
            return False
        connected.setblocking(False)
        try:
            return bool(connected.recv(1).strip()) or _core.peek(connected.fileno()) == "closed"
        except OSError as error:
            return not _would_block(error)

    def _run(
        self, connected: socket.socket | TlsSocket, request: _core.Request, deadline: Deadline
    ) -> _core.Reply:
        try:
            for data in request.pieces:
                self._send(connected, data, deadline)
        except (BrokenPipeError, ConnectionResetError):
            # The server may have replied with the reason before it closed.
            return self._receive(connected, deadline)
        if request.is_notification and not self._is_http:
            return _core.Reply.nothing()
        return self._receive(connected, deadline)

    def _send(
        self, connected: socket.socket | TlsSocket, data: memoryview, deadline: Deadline
    ) -> None:
        if self._observer:
            self._observer.sending(data)
        sent = 0
        while sent < len(data):
            connected.settimeout(deadline.left())
            sent += connected.send(data[sent : sent + _PIECE_BYTES])
            if self._observer:
                self._observer.sent(sent, len(data))

    def _receive(self, connected: socket.socket | TlsSocket, deadline: Deadline) -> _core.Reply:
        while True:
            for message in self._receive_messages(connected, deadline):
                if isinstance(message, _core.Reply):
                    return message
                self._drain.take(message)

    def _receive_messages(
        self, connected: socket.socket | TlsSocket, deadline: Deadline
    ) -> list[Message]:
        while True:
            connected.settimeout(deadline.left())
            data = connected.recv(_PIECE_BYTES)
            if self._observer:
                self._observer.received(data)
            if not data:
                message = self._reader.end()
                if message is None:
                    raise closed_error()
                return [message]
            if messages := self._reader.feed(data):
                return messages


class EventConnection(SocketConnection):
    """A new connection over HTTP for one stream of server-sent events."""

    __slots__ = ("__weakref__", "_ended", "_messages")

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, is_http=True, events=True, **options)
        self._messages: deque[Message] = deque()
        #: The exception for a wait after its end.
        self._ended = closed_error
        _forks.register(self)

    def begin(self, request: _core.Request, deadline: Deadline) -> None:
        """Sends the request.

        Raises:
            ucall.ConnectionError, ucall.TimeoutError: See `SocketConnection.exchange`.
        """
        assert self._socket is not None
        try:
            left_to_send(deadline)
            self._send(self._socket, request.data, deadline)
        except BaseException as error:
            # The server may have replied with the reason before it closed.
            if not isinstance(error, BrokenPipeError | ConnectionResetError):
                self.close()
                raise _failure(error, deadline.seconds) from None

    async def next(self, deadline: Deadline) -> Message:
        """Waits for the next message.

        Raises:
            ucall.ConnectionError: The connection failed, or a message is invalid.
            TimeoutError: No message came in time.
        """
        while not self._messages:
            if self._socket is None:
                raise self._ended()
            try:
                self._messages.extend(self._receive_messages(self._socket, deadline))
            except BaseException as error:
                self.close()
                if is_deadline(error):
                    raise
                raise _failure(error, None) from None
        return self._messages.popleft()

    def poll(self) -> _core.Notification | None:
        """The next item, if it was received already."""
        if self._messages and isinstance(item := self._messages[0], _core.Notification):
            self._messages.popleft()
            return item
        return None

    def abort(self) -> None:
        """Closes it. The wait of another thread ends, which `close` alone would not do."""
        if (connected := self._socket) is not None:
            with suppress(OSError):
                connected.shutdown(socket.SHUT_RDWR)
        self.close()

    def abandon(self) -> None:
        """Closes the descriptor alone: the connection belongs to the parent of this process."""
        self._ended = inherited_error
        self.close()


def _failure(error: BaseException, timeout: float | None) -> BaseException:
    """The exception of the client for one of the system."""
    if is_deadline(error):
        return late_error(error, timeout)
    if isinstance(error, OSError) and not isinstance(error, ConnectionError):
        return ConnectionError(f"the connection failed: {error}")
    return error


def _would_block(error: OSError) -> bool:
    if isinstance(error, BlockingIOError):
        return True
    import ssl

    return isinstance(error, ssl.SSLWantReadError)
