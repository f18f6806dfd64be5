"""One connection of a synchronous client that threads share: WebSocket or raw TCP.

No thread of its own receives. The first thread that waits receives for all, and the others wait for
it; when it has its own message, the next one takes over. So a program that does not read its items
receives no more of them, and the server pauses.
"""

from __future__ import annotations

import builtins
import copy
import select
import socket
import threading
from collections import OrderedDict
from collections.abc import Collection
from contextlib import suppress
from typing import TYPE_CHECKING
from weakref import ref

from ucall import _core, _forks
from ucall._client.blocking import run
from ucall._client.inbox import Inbox, Router
from ucall._client.sockets import (
    Deadline,
    client_closed_error,
    closed_error,
    inherited_error,
    is_deadline,
    not_sent,
    timeout_error,
)
from ucall._client.turn import Turn
from ucall._client.websocket import (
    NORMAL_CLOSE,
    Upgrade,
    control_frame,
    message_frame,
    upgrade_error,
)
from ucall.errors import ConnectionError

if TYPE_CHECKING:
    from ucall._client.socket_connection import Observer
    from ucall._client.tls_socket import TlsSocket

__all__ = ["Link"]

_PIECE_BYTES = 64 * 1024
#: The time to send a Close frame, or what is queued; then the connection closes.
_CONTROL_S = 5.0
#: A WebSocket that no thread reads is polled as often: servers close clients that answer no Ping.
_POLL_S = 10.0
#: The longest wait that `select.poll` takes, of 24 days.
_POLL_MS_MAX = 2**31 - 1


class Link:
    """A connected socket and the calls in progress on it.

    Args:
        upgrade: Of a WebSocket; ``None`` over raw TCP.
    """

    def __init__(
        self,
        connected: socket.socket | TlsSocket,
        router: Router,
        reply_bytes_max: int,
        upgrade: Upgrade | None,
        observer: Observer | None,
    ) -> None:
        self._socket = connected
        # A plain socket never blocks; one under TLS waits only for the rest of what it sends.
        self._is_secure = not isinstance(connected, socket.socket)
        connected.setblocking(False)
        self._router = router
        self._upgrade = upgrade
        self._observer = observer
        accept = upgrade.accept if upgrade else None
        self._reader = _core.ReplyReader(http=False, reply_bytes_max=reply_bytes_max, accept=accept)
        #: Why the connection is closed; ``None`` while it is open.
        self.error: Exception | None = None
        self.is_closed = threading.Event()
        self._turn = Turn()
        # Guards the router, `error` and the next one.
        self._state = self._turn.lock
        #: Threads that wait for the socket. It stays open for them, because the number of a closed
        #: descriptor may be that of another connection at once.
        self._waiting = 0
        self._requests_sent = 0
        #: Cancels and, by `None`, the latest Pong. No thread waits for others or for the server to
        #: send them: the one that sends does so, or a later one.
        self._queued: OrderedDict[_core.Request | None, memoryview] = OrderedDict()
        # Frames are sent one after the other. Operations of the socket exclude each other, since a
        # TLS object serves one thread at a time, but no thread waits within them for the peer.
        # The second may be taken again by `__del__` of a stream, which any statement may run.
        self._sending, self._socket_lock = threading.Lock(), threading.RLock()
        _forks.register(self)

    async def open(self, deadline: Deadline) -> None:
        """Performs the upgrade to WebSocket.

        Raises:
            ucall.ConnectionError: The server refuses it.
            TimeoutError: It did not end in time.
        """
        if self._upgrade is None:
            return
        self._send(memoryview(self._upgrade.request), deadline)
        while not self._reader.is_upgraded:
            self._receive(deadline)
        _poll_in_background(self)

    async def is_alive(self) -> bool:
        """Whether it is open, after what was received already was handled."""
        self.poll()
        return self.error is None

    def start(self, request: _core.Request, ids: Collection[object], deadline: Deadline) -> Inbox:
        """Sends a request; returns the inbox of its messages.

        Raises:
            ValueError: A call in progress has one of the ids.
            ucall.ConnectionError: The connection failed.
            ucall.TimeoutError: The request was not sent in time.
        """
        inbox = Inbox()
        if ids:
            with self._state:
                if self.error is not None:
                    raise not_sent(copy.copy(self.error))
                self._router.add(ids, inbox)
        try:
            self.send(request, deadline, inbox)
        except BaseException as error:
            self.forget(ids)
            if is_deadline(error):
                late = timeout_error(deadline.seconds, "the request was not sent")
                raise (not_sent(late) if isinstance(error, _NothingSentError) else late) from None
            if isinstance(error, OSError) and not isinstance(error, ConnectionError):
                raise self.error or error from None
            raise
        return inbox

    def send(self, request: _core.Request, deadline: Deadline, inbox: Inbox) -> None:
        """Sends a request. If it was sent in part, the connection closes.

        Raises:
            ucall.ConnectionError: The connection failed.
            TimeoutError: The request was not sent in time.
        """
        self._send(self._frame(request), deadline, inbox)

    def cancel(self, requests: list[_core.Request]) -> None:
        """Sends notifications that cancel calls, as soon as the connection has room for them."""
        for request in requests:
            self._queued[request] = self._frame(request)
        self._send_queued()

    async def wait(self, inbox: Inbox, deadline: Deadline) -> None:
        """Receives until an inbox has a message, or the connection has ended.

        Raises:
            TimeoutError: The deadline passed first.
        """
        while self._turn.take(lambda: inbox.is_ready or self.error is not None, deadline):
            try:
                self._receive(deadline)
            except OSError as error:
                if is_deadline(error):
                    raise
                self.fail(_connection_error(error))
            finally:
                self._turn.give_back()

    def forget(self, ids: Collection[object]) -> None:
        """Drops later messages to these ids."""
        with self._state:
            self._router.remove(ids)
        if self._router.drain.has_begun:
            self.close_if_drained()

    def make_wakeable(self) -> None:
        """Lets `end` wake the thread that receives, if it begins to wait later."""
        with self._state:
            if self.error is None:
                self._turn.make_wakeable()

    def end(self, inbox: Inbox) -> None:
        """Ends the waits of other threads for an inbox."""
        with self._state:
            inbox.fail(closed_error())
            self._turn.wake()

    @property
    def is_draining(self) -> bool:
        """Whether the server has asked to send no more requests."""
        return self._router.drain.has_begun

    def close_if_drained(self) -> None:
        """Closes the connection if the server drains, and no more messages are expected."""
        if self._router.drain.has_begun and self._router.is_unused:
            self.close()

    def poll(self) -> None:
        """Sends what is queued, and handles what was received already, such as a Ping, unless a
        thread receives anyway or too many items wait."""
        self._send_queued()
        if not self._is_secure and _core.peek(self._socket.fileno()) == "quiet":
            return
        if self._is_secure and self._sending.locked():  # It may have the socket for long.
            return
        with self._state:
            if self.error is not None or not self._turn.take_at_once():
                return
        try:
            while not self._router.is_full and self._is_readable(0):
                self._receive(Deadline(_CONTROL_S))
        except OSError as error:
            self.fail(_connection_error(error))
        finally:
            self._turn.give_back()

    def fail_calls(self) -> list[object]:
        """Fails the calls in progress, because the connection will be closed; returns their ids."""
        with self._state:
            self._router.fail(client_closed_error())
            return self._router.ids

    def close(self) -> None:
        """Closes the connection. The calls in progress fail."""
        if self.error is None:
            with suppress(OSError):
                if self._upgrade is not None:
                    self._queued.clear()
                    frame = control_frame("close", NORMAL_CLOSE)
                    self._send(memoryview(frame), Deadline(_CONTROL_S))
                else:
                    self._send_queued(Deadline(_CONTROL_S))
        self.fail(client_closed_error())

    def fail(self, error: Exception) -> None:
        """Closes the connection because of an error."""
        with self._state:
            if self.error is not None:
                return
            self.error = error
            self._router.fail(error)
            self._turn.notify_all()
            is_unused = self._waiting == 0
        self.is_closed.set()
        # Ends the waits of other threads, which `close` would not.
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        if is_unused:
            self._close_socket()

    def abandon(self) -> None:
        """Ends it without a message or a shutdown: it belongs to the parent of this process."""
        # Threads of the parent may hold the old ones.
        self._turn, self._socket_lock = Turn(), threading.RLock()
        self._state = self._turn.lock
        self.error = inherited_error()
        self._router.fail(self.error)

    def _close_socket(self) -> None:
        with self._socket_lock:
            self._socket.close()
        self._turn.close()

    def _receive(self, deadline: Deadline) -> None:
        """Receives once, and delivers the messages."""
        if not self._is_readable(deadline.left()):
            deadline.left()
            return
        data = self._receive_at_once(deadline)
        if data is None:
            return
        if self._observer:
            self._observer.received(data)
        if not data:
            self._reader.end()  # Raises the reason of a refused upgrade.
            raise closed_error()
        messages = self._reader.feed(data)
        if messages and not self._reader.is_upgraded and self._upgrade is not None:
            raise upgrade_error(messages[0])
        with self._state:
            for message in messages:
                self._router.deliver(message)
        if (ping := self._reader.take_ping()) is not None:
            self._queued[None] = memoryview(control_frame("pong", ping))
        self._send_queued()

    def _receive_at_once(self, deadline: Deadline) -> bytes | None:
        """What the socket has received; ``None`` for nothing, such as a part of a TLS record."""
        # Under TLS another thread may send for long.
        seconds = deadline.left() if self._is_secure else None
        if not self._socket_lock.acquire(timeout=seconds or -1):
            return None
        try:
            if self._is_secure:
                self._socket.setblocking(False)
            return self._socket.recv(_PIECE_BYTES)
        except OSError as error:
            if _would_block(error):
                return None
            raise
        finally:
            self._socket_lock.release()

    def _is_readable(self, seconds: float | None) -> bool:
        if not isinstance(self._socket, socket.socket) and self._socket.has_unread():
            return True
        return self._wait_for(select.POLLIN, seconds)

    def _wait_for(self, direction: int, seconds: float | None) -> bool:
        with self._state:
            if self.error is not None:
                raise self.error
            self._waiting += 1
            wakeup = self._turn.wakeup if direction == select.POLLIN else None
        try:
            poll = select.poll()
            poll.register(self._socket.fileno(), direction)
            if wakeup is not None:
                poll.register(wakeup.fileno(), direction)
            # Rounded up, so that a wait does not end just before its deadline, again and again.
            wait_ms = None if seconds is None else int(seconds * 1000) + (seconds > 0)
            ready = poll.poll(wait_ms and min(wait_ms, _POLL_MS_MAX))
            if wakeup is None:
                return bool(ready)
            with suppress(BlockingIOError):
                wakeup.recv(4096)
            return any(descriptor == self._socket.fileno() for descriptor, _ in ready)
        finally:
            with self._state:
                self._waiting -= 1
                closes = self.error is not None and self._waiting == 0
            if closes:
                self._close_socket()

    def _frame(self, request: _core.Request) -> memoryview:
        return request.data if self._upgrade is None else memoryview(message_frame(request))

    def _send_queued(self, deadline: Deadline | None = None) -> None:
        """Sends what is queued. Without a deadline it does not wait for another thread that sends,
        which does so then, or for room."""
        with suppress(OSError):
            while self._queued and self.error is None:
                seconds = (deadline.left() or -1) if deadline else 0
                if not self._sending.acquire(timeout=seconds):
                    return
                try:
                    self._send_first(deadline)
                finally:
                    self._sending.release()

    def _send_first(self, deadline: Deadline | None) -> None:
        """Sends the first frame of the queue, or raises `_NothingSentError` and keeps it."""
        if not self._queued:  # Another thread has sent it meanwhile.
            return
        request, data = self._queued.popitem(last=False)
        limit, inbox = deadline or Deadline(_CONTROL_S), Inbox() if request else None
        try:
            self._send_alone(data, limit, inbox, waits=deadline is not None)
        except _NothingSentError:
            self._queued.setdefault(request, data)  # There may be a newer Pong.
            self._queued.move_to_end(request, last=False)
            raise

    def _send(self, data: memoryview, deadline: Deadline, inbox: Inbox | None = None) -> None:
        """Sends a request, whose inbox gets its number, or a control frame, without an inbox. If it
        was sent in part, the connection closes."""
        if not self._sending.acquire(timeout=_left(deadline, 0) or -1):
            raise _NothingSentError
        try:
            failed = self._send_alone(data, deadline, inbox)
        finally:
            self._sending.release()
            self._send_queued()
        # The thread that receives sees why a control frame has failed.
        if failed is not None and inbox is not None:
            reason = self._closed_by_server(failed, deadline)
            if inbox.reply is None:
                raise reason

    def _closed_by_server(self, error: OSError, deadline: Deadline) -> Exception:
        """The server's reason, which may have arrived before a send has failed by ``error``."""
        with suppress(builtins.TimeoutError):
            run(self.wait(Inbox(), deadline.at_most(_CONTROL_S)))
        self.fail(_connection_error(error))
        assert self.error is not None
        return self.error

    def _send_alone(
        self, data: memoryview, deadline: Deadline, inbox: Inbox | None, *, waits: bool = True
    ) -> OSError | None:
        """Sends a frame while no other thread does, if there is room, or once there is; returns why
        the server may not have read it."""
        try:
            if inbox is not None:
                self._requests_sent += 1
                inbox.number = self._requests_sent
            if self._observer:
                self._observer.sending(data)
            self._send_all(data, deadline, waits=waits)
        except _NothingSentError:
            if inbox is not None:  # The server counts what it has read.
                self._requests_sent -= 1
            raise
        except (BrokenPipeError, ConnectionResetError) as error:
            return error
        except BaseException as error:  # Such as that of a signal handler.
            self.fail(_connection_error(error))
            raise
        return None

    def _send_all(self, data: memoryview, deadline: Deadline, *, waits: bool) -> None:
        sent, must_wait = 0, self._is_secure
        while sent < len(data):
            if must_wait:
                seconds = _left(deadline, sent) if waits or sent else 0
                if not self._wait_for(select.POLLOUT, seconds):
                    raise _late(sent)
            with self._socket_lock:
                if self._is_secure:
                    self._socket.settimeout(_left(deadline, sent))
                try:
                    sent += self._socket.send(data[sent : sent + _PIECE_BYTES])
                except BlockingIOError:
                    must_wait = True
            if self._observer:
                self._observer.sent(sent, len(data))


class _NothingSentError(builtins.TimeoutError):
    """The deadline passed before the first byte was sent, so the connection stays usable."""


def _late(sent: int) -> builtins.TimeoutError:
    return builtins.TimeoutError() if sent else _NothingSentError()


def _left(deadline: Deadline, sent: int) -> float | None:
    """Seconds until a deadline; raises `_late` if it has passed."""
    try:
        return deadline.left()
    except builtins.TimeoutError:
        raise _late(sent) from None


def _would_block(error: OSError) -> bool:
    if isinstance(error, BlockingIOError):
        return True
    import ssl

    return isinstance(error, ssl.SSLWantReadError)


def _connection_error(error: BaseException) -> Exception:
    if isinstance(error, ConnectionError):
        return error
    if is_deadline(error):
        return ConnectionError("the server did not read a message in time")
    if isinstance(error, OSError):
        return ConnectionError(f"the connection failed: {error}")
    return ConnectionError("a message was sent only in part")


def _poll_in_background(link: Link) -> None:
    """Starts a thread that polls a link until it closes, or is collected."""
    known, is_closed = ref(link), link.is_closed

    def poll() -> None:
        while not is_closed.wait(_POLL_S) and (link := known()) is not None:
            link.poll()
            del link

    threading.Thread(target=poll, name="ucall-client-poll", daemon=True).start()
