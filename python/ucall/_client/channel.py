"""The shared connection of a synchronous client, opened again when it has ended."""

from __future__ import annotations

import builtins
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import TYPE_CHECKING
from weakref import ref

from ucall import _core, _forks
from ucall._client.backoff import backoff
from ucall._client.inbox import Inbox, Router
from ucall._client.link import Link
from ucall._client.sockets import Deadline, connect_error, not_sent, timeout_error
from ucall._client.websocket import Upgrade
from ucall.errors import ConnectionError

if TYPE_CHECKING:
    import socket

    from ucall._client.options import Options
    from ucall._client.socket_connection import Observer
    from ucall._client.tls_socket import TlsSocket

__all__ = ["Channel"]

#: A WebSocket that no thread reads is polled as often: servers close clients that answer no Ping.
_POLL_S = 10.0
_CANCEL_S = 5.0


class Channel:
    """One connection to a server, with all calls, streams and subscriptions of a client.

    Args:
        connect: Connects a socket, under TLS if the address is.
        reconnect: Whether failed attempts to connect are repeated.
    """

    def __init__(
        self,
        connect: Callable[[Deadline], socket.socket | TlsSocket],
        options: Options,
        *,
        reply_bytes_max: int,
        waiting_bytes_max: int,
        reconnect: bool,
        observer: Observer | None,
    ) -> None:
        self._connect = connect
        self._options = options
        self._reply_bytes_max = reply_bytes_max
        self._waiting_bytes_max = waiting_bytes_max
        self.reconnect = reconnect
        self._observer = observer
        self.subscriptions: list[Inbox] = []
        self._link: Link | None = None
        #: Is set when the client is closed. Later calls have another one.
        self.closed = threading.Event()
        self._opening = threading.Lock()
        _forks.register(self)

    def exchange(
        self, request: _core.Request, ids: Collection[object], timeout: float | None
    ) -> _core.Reply:
        """Sends a request and returns its reply; an empty one if it has no ids.

        Raises:
            ValueError: A call in progress has one of the ids.
            ucall.ConnectionError: The connection failed, or the reply is not JSON-RPC.
            ucall.TimeoutError: There was no reply within ``timeout`` seconds, connecting included.
        """
        deadline = Deadline(timeout)
        link = self.link(deadline)
        if not ids:
            self._send_notification(link, request, deadline)
            return _core.Reply.nothing()
        inbox = self.start(link, request, ids, deadline)
        try:
            link.wait(inbox, deadline)
            while not isinstance(message := inbox.take(), _core.Reply):
                pass  # An item that was not requested.
        except BaseException as error:
            self.cancel(link, ids)
            if isinstance(error, builtins.TimeoutError):
                raise timeout_error(timeout) from None
            raise
        finally:
            link.forget(ids)
        if not message.is_result and message.is_deadline_error and deadline.is_over():
            raise timeout_error(timeout)  # The server has noticed first.
        return message

    def link(self, deadline: Deadline, closed: threading.Event | None = None) -> Link:
        """The connection, opened if there is none.

        Args:
            closed: Is set when the caller needs it no more; by default when the client is closed.

        Raises:
            ucall.ConnectionError: No server accepts it, or the client was closed meanwhile.
            ucall.TimeoutError: No server has accepted it in time.
        """
        closed = closed or self.closed
        if not self._opening.acquire(timeout=deadline.left() or -1):
            raise timeout_error(deadline.seconds, f"cannot connect to {self._options.address.name}")
        try:
            link = self._link
            if link is not None:
                link.poll()
                if link.error is None and not link.is_draining:
                    return link
                link.close_if_drained()
            self._link = link = self._open(deadline, closed)
            if closed.is_set():  # Before `close` has seen the connection, perhaps.
                self._link = None
                link.close()
                raise _client_closed_error()
            return link
        finally:
            self._opening.release()

    def start(
        self, link: Link, request: _core.Request, ids: Collection[object], deadline: Deadline
    ) -> Inbox:
        """Sends a request; returns the inbox of its messages."""
        inbox = Inbox()
        try:
            link.start(request, ids, inbox, deadline)
        except BaseException as error:
            if not isinstance(error, ValueError):
                link.forget(ids)
            if isinstance(error, builtins.TimeoutError):
                raise timeout_error(deadline.seconds, "the request was not sent") from None
            if isinstance(error, OSError) and not isinstance(error, ConnectionError):
                raise link.error or error from None
            raise
        return inbox

    def cancel(self, link: Link, ids: Collection[object]) -> None:
        """Tells the server that the replies to these calls are not needed."""
        deadline = Deadline(_CANCEL_S)
        for id in ids:
            request = self._options.writer.call("$/cancelRequest", (), {"id": id}, None)
            if link.error is None:
                with suppress(OSError):
                    link.send(request, deadline)

    def close(self) -> None:
        """Closes the connection, and ends the subscriptions. The next call opens another.

        It does not wait for one that another thread opens: that thread closes it.
        """
        for inbox in self.subscriptions:
            inbox.fail(_client_closed_error())
        self.subscriptions.clear()
        closed, self.closed = self.closed, threading.Event()
        closed.set()
        link, self._link = self._link, None
        if link is not None:
            if not self._options.address.is_websocket:
                # The server cannot tell the end of the connection from that of its requests.
                self.cancel(link, link.fail_calls())
            link.close()

    def abandon(self) -> None:
        """Drops the connection without closing it: it belongs to the parent of this process."""
        self._link = None
        self.closed, self._opening = threading.Event(), threading.Lock()

    def _send_notification(self, link: Link, request: _core.Request, deadline: Deadline) -> None:
        try:
            link.send(request, deadline)
        except builtins.TimeoutError:
            raise timeout_error(deadline.seconds, "the request was not sent") from None
        except OSError as error:
            raise link.error or error from None

    def _open(self, deadline: Deadline, closed: threading.Event) -> Link:
        pauses = backoff()
        while not closed.is_set():
            try:
                return self._open_once(deadline)
            except ConnectionError as error:
                pause = next(pauses)
                if not self.reconnect or _passes_within(deadline, pause):
                    raise error from None
            closed.wait(pause)
        raise _client_closed_error()

    def _open_once(self, deadline: Deadline) -> Link:
        connected = self._connect(deadline)
        address = self._options.address
        upgrade = Upgrade(self._options.upgrade_head()) if address.is_websocket else None
        router = Router(self.subscriptions, self._waiting_bytes_max)
        link = Link(connected, router, self._reply_bytes_max, upgrade, self._observer)
        try:
            link.open(deadline)
        except BaseException as error:
            link.fail(ConnectionError("the connection was not opened"))
            if isinstance(error, ConnectionError):
                raise not_sent(error) from None
            if not isinstance(error, OSError):
                raise
            raise connect_error(address, error, deadline.seconds) from None
        if upgrade is not None:
            _poll_in_background(link)
        return link


def _client_closed_error() -> ConnectionError:
    return not_sent(ConnectionError("the client was closed"))


def _passes_within(deadline: Deadline, seconds: float) -> bool:
    try:
        left = deadline.left()
    except builtins.TimeoutError:
        return True
    return left is not None and left <= seconds


def _poll_in_background(link: Link) -> None:
    """Starts a thread that polls a link until it closes, or is collected."""
    known, is_closed = ref(link), link.is_closed

    def run() -> None:
        while not is_closed.wait(_POLL_S) and (link := known()) is not None:
            link.poll()
            del link

    threading.Thread(target=run, name="ucall-client-poll", daemon=True).start()
