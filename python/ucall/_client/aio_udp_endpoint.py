"""The socket of an asyncio client over UDP, which its calls share."""

from __future__ import annotations

import asyncio
import builtins
import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ucall import _core
from ucall._client.datagrams import WINDOW, Call, Window, parse_reply
from ucall._client.sockets import not_sent

if TYPE_CHECKING:
    import socket

    from ucall._client.sockets import Deadline

__all__ = ["Endpoint"]

#: The shortest wait before a datagram is sent again, for clocks that are less exact.
_WAIT_S_MIN = 0.001


class _Exchange:
    """Calls that one task waits for."""

    __slots__ = ("done", "left")

    def __init__(self, done: asyncio.Future[None], left: int) -> None:
        self.done = done
        #: The number of calls without a reply.
        self.left = left


class Endpoint:
    """A connected socket, and the window of all calls on it.

    Args:
        loop: The running loop.
        made: A non-blocking socket.
        window: An empty one.
        reply_bytes_max: A reply.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        made: socket.socket,
        window: Window,
        reply_bytes_max: int,
    ) -> None:
        self._loop = loop
        self._process = os.getpid()
        self._socket = made
        self._window = window
        self._reply_bytes_max = reply_bytes_max
        self._exchanges: dict[object, _Exchange] = {}
        #: The datagrams for which the system had no room.
        self._unsent: list[bytes] = []
        #: When `_send_due` runs next, and its timer.
        self._due_at = float("inf")
        self._timer: asyncio.TimerHandle | None = None
        loop.add_reader(made.fileno(), self._receive)

    def is_usable(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Whether it belongs to this loop and process, and is open."""
        return loop is self._loop and self._is_open

    @property
    def _is_open(self) -> bool:
        return self._socket.fileno() >= 0 and self._process == os.getpid()

    def send(self, datagrams: Sequence[bytes]) -> None:
        """Sends datagrams, after those for which the system had no room."""
        is_waiting = bool(self._unsent)
        self._unsent += datagrams
        if self._unsent and not is_waiting:
            self._flush()

    def close(self, error: OSError | None = None) -> None:
        """Closes the socket. Calls in progress fail, by default because the client was closed."""
        for exchange in self._exchanges.values():
            if not exchange.done.done():
                exchange.done.set_exception(error or ConnectionError("the client was closed"))
        # The loop's selector is the parent's, too, in a process that was forked.
        if self._is_open and not self._loop.is_closed():
            self._loop.remove_reader(self._socket.fileno())
            self._loop.remove_writer(self._socket.fileno())
            if self._timer is not None:
                self._timer.cancel()
        self._socket.close()

    async def run(
        self, calls: Sequence[Call], deadline: Deadline, notifications: Sequence[bytes] = ()
    ) -> list[_core.Reply]:
        """Sends notifications once, and calls until they are answered; returns their replies.

        Raises:
            ValueError: A request is too long, or another call in progress has its id.
            OSError: No server listens there, or the client was closed.
            TimeoutError: The deadline has passed.
        """
        ids = [id for id, _ in calls]
        if any(id in self._exchanges for id in ids):
            raise ValueError("another call in progress has the same id")
        self._window.add(calls)
        exchange = _Exchange(self._loop.create_future(), len(ids))
        self._exchanges.update(dict.fromkeys(ids, exchange))
        try:
            self.send(notifications)
            self._send_due()
            if calls:
                async with asyncio.timeout(deadline.left()):
                    await exchange.done
            return [self._window.replies[id] for id in ids]
        except builtins.TimeoutError as error:
            if not notifications and self._window.holds(ids):  # Those have no window.
                not_sent(error)
            raise
        finally:
            for id in ids:
                del self._exchanges[id]
            self._window.discard(ids)
            self._send_due()

    def _send_due(self) -> None:
        if not self._is_open:
            return
        now = time.monotonic()
        self.send(self._window.take_due(now))
        due_at = self._window.due_at
        if due_at is None or due_at >= self._due_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._due_at = due_at
        self._timer = self._loop.call_later(max(due_at - now, _WAIT_S_MIN), self._on_timer)

    def _on_timer(self) -> None:
        self._timer, self._due_at = None, float("inf")
        self._send_due()

    def _flush(self) -> None:
        descriptor = self._socket.fileno()
        try:
            del self._unsent[: _core.send_datagrams(descriptor, self._unsent)]
        except OSError as error:
            return self.close(error)
        if self._unsent:
            self._loop.add_writer(descriptor, self._flush)
        else:
            self._loop.remove_writer(descriptor)

    def _receive(self) -> None:
        try:
            datagrams = _core.receive_datagrams(self._socket.fileno(), WINDOW, 0)
        except OSError as error:
            return self.close(error)
        now = time.monotonic()
        for data in datagrams:
            id, reply = parse_reply(data, self._reply_bytes_max)
            if reply is None or not self._window.take_reply(id, reply, now):
                continue
            exchange = self._exchanges[id]
            exchange.left -= 1
            if exchange.left == 0 and not exchange.done.done():
                exchange.done.set_result(None)
        self._send_due()
