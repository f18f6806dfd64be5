"""The connections of an asyncio client: one call at a time over HTTP, many over one connection."""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import Collection
from contextlib import suppress
from functools import partial
from typing import cast

from ucall import _core, _forks
from ucall._client import sockets
from ucall._client.inbox import Inbox, Message, Router
from ucall._client.sockets import (
    Deadline,
    client_closed_error,
    closed_error,
    inherited_error,
    not_sent,
    note_coding,
)
from ucall._client.websocket import (
    NORMAL_CLOSE,
    Upgrade,
    control_frame,
    message_frame,
    upgrade_error,
)
from ucall.errors import ConnectionError

__all__ = ["AsyncConnection", "EventConnection", "HttpConnection", "SharedConnection"]


#: asyncio has received the bytes in the socket before the third check, at the latest.
_CHECKS_MAX = 3


class AsyncConnection(asyncio.Protocol):
    """Parses received bytes into messages. A derived class passes them to the waiting calls."""

    def __init__(self, reader: _core.ReplyReader) -> None:
        self._reader = reader
        #: What is shared with the server.
        self.memory: _core.SharedMemory | None = None
        self._transport: asyncio.Transport | None = None

    def share(self, memory: _core.SharedMemory) -> None:
        """Has the parts of requests and replies lie in memory."""
        self.memory = memory
        self._reader.share(memory)

    async def is_alive(self) -> bool:
        """Whether it is open and has nothing unread. Lets asyncio read what was received. If the
        server has closed it, the waiting calls fail."""
        for _ in range(_CHECKS_MAX):
            if self._is_closed():
                return False
            seen = self._peek()
            if seen == "quiet":
                return True
            if seen == "closed":
                self.eof_received()
                return False
            await asyncio.sleep(0)
        return not self._is_closed()

    def abort(self) -> None:
        """Closes it at once. The waiting calls fail."""
        if self._transport is not None:
            self._transport.abort()

    def abandon(self) -> None:
        """Drops the transport without closing it: it belongs to the parent of this process, and so
        does the selector that it is registered in. The waiting calls fail."""
        self._transport = None
        with suppress(RuntimeError):  # In debug mode the loop refuses calls of another thread.
            self._fail(inherited_error())

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not derive from asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        _forks.register(self)

    def data_received(self, data: bytes) -> None:
        try:
            for message in self._reader.feed(data):
                self._deliver(message)
        except OSError as error:
            self._abort_with(error)

    def eof_received(self) -> None:
        try:
            message = self._reader.end()
        except OSError as error:
            self._abort_with(error)
            return
        if message is not None:
            self._deliver(message)
        self._abort_with(closed_error())

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(ConnectionError(f"the connection failed: {error}") if error else closed_error())

    def _peek(self) -> str:
        assert self._transport is not None
        descriptor = self._transport.get_extra_info("socket").fileno()
        return _core.peek(descriptor) if descriptor >= 0 else "closed"

    def _is_closed(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    def _send(self, request: _core.Request) -> None:
        assert self._transport is not None
        if self.memory is not None:
            request = self.memory.place(request)
        request.write_to(self._transport)

    def _abort_with(self, error: Exception) -> None:
        self._fail(error)
        self.abort()

    def _deliver(self, message: Message) -> None:
        raise NotImplementedError

    def _fail(self, error: Exception) -> None:
        raise NotImplementedError


class HttpConnection(AsyncConnection):
    """A connection over HTTP. Cancelling a call closes it."""

    _waiter: asyncio.Future[_core.Reply] | None = None

    def __init__(self, reply_bytes_max: int, codings: bool = False) -> None:
        reader = _core.ReplyReader(http=True, reply_bytes_max=reply_bytes_max, codings=codings)
        super().__init__(reader)
        self._used_at = time.monotonic()

    @property
    def is_reusable(self) -> bool:
        """Whether the server keeps it open for another request."""
        return not self._is_closed() and self._reader.is_reusable

    async def is_alive(self) -> bool:
        idle_s = time.monotonic() - self._used_at
        return idle_s <= sockets.IDLE_MAX_S and await super().is_alive()

    async def exchange(self, request: _core.Request) -> _core.Reply:
        """Sends a request and returns its reply.

        Raises:
            ucall.ConnectionError: The connection failed, or the reply is not JSON-RPC.
        """
        self._waiter = asyncio.get_running_loop().create_future()
        self._send(request)
        try:
            reply = await self._waiter
            reply.check_answers(request)
            self._used_at = time.monotonic()
            return reply
        except BaseException as error:
            self.abort()
            note_coding(error, request)
            raise
        finally:
            self._waiter = None

    def _deliver(self, message: Message) -> None:
        if self._waiter is None or self._waiter.done() or not isinstance(message, _core.Reply):
            self.abort()  # A reply without a request.
        else:
            self._waiter.set_result(message)

    def _fail(self, error: Exception) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)


class EventConnection(AsyncConnection):
    """A connection over HTTP for one stream of server-sent events, which pauses when too many items
    wait."""

    def __init__(self, reply_bytes_max: int, waiting_bytes_max: int, codings: bool = False) -> None:
        reader = _core.ReplyReader(
            http=True, reply_bytes_max=reply_bytes_max, events=True, codings=codings
        )
        super().__init__(reader)
        self._waiting_bytes_max = waiting_bytes_max
        self._inbox = Inbox()

    def begin(self, request: _core.Request, deadline: Deadline) -> None:
        """Sends the request."""
        self._send(request)

    async def next(self, deadline: Deadline) -> Message:
        """Waits for the next message.

        Raises:
            ucall.ConnectionError: The connection failed, or a message is invalid.
        """
        while not self._inbox.is_ready:
            assert self._transport is not None
            if not self._transport.is_closing():
                self._transport.resume_reading()
            waiter = asyncio.get_running_loop().create_future()
            self._inbox.wake = partial(_finish, waiter)
            try:
                await waiter
            finally:
                self._inbox.wake = None
        return self._inbox.take()

    def poll(self) -> _core.Notification | None:
        """The next item, if it was received already."""
        return self._inbox.take_item() if self._inbox.items else None

    def _deliver(self, message: Message) -> None:
        if isinstance(message, _core.Reply):
            self._inbox.put_reply(message)
            return
        self._inbox.put_item(message, self._waiting_bytes_max)
        if self._inbox.waiting_bytes > self._waiting_bytes_max // 2 and self._transport is not None:
            self._transport.pause_reading()

    def _fail(self, error: Exception) -> None:
        self._inbox.fail(error)


class SharedConnection(AsyncConnection):
    """A connection over WebSocket or raw TCP, which all calls share. Replies come in any order.

    Args:
        router: The calls and subscriptions that its messages go to.
        upgrade: Of a WebSocket; ``None`` over raw TCP.
    """

    def __init__(self, router: Router, reply_bytes_max: int, upgrade: Upgrade | None) -> None:
        accept = upgrade.accept if upgrade else None
        super().__init__(
            _core.ReplyReader(http=False, reply_bytes_max=reply_bytes_max, accept=accept)
        )
        self._router = router
        self._upgrade = upgrade
        self._opened: asyncio.Future[None] | None = None
        self._waiting = 0
        self._requests_sent = 0
        self._writable = asyncio.Event()
        self._writable.set()
        #: Why the connection is closed; ``None`` while it is open.
        self.error: Exception | None = None

    async def open(self, deadline: Deadline) -> None:
        """Performs the upgrade to WebSocket.

        Raises:
            ucall.ConnectionError: The server refuses it.
        """
        if self._upgrade is None or self._reader.is_upgraded:
            return
        if self.error is None:
            assert self._transport is not None
            self._opened = asyncio.get_running_loop().create_future()
            self._transport.write(self._upgrade.request)
            await self._opened
        if self.error is not None:
            raise self.error

    def start(self, request: _core.Request, ids: Collection[object]) -> Inbox:
        """Sends a request; returns the inbox of its messages.

        Raises:
            ValueError: A call in progress has one of the ids.
            ucall.ConnectionError: The connection has ended.
        """
        if self.error is not None:
            raise not_sent(copy.copy(self.error))
        inbox = Inbox()
        if ids:
            self._router.add(ids, inbox)
        try:
            self._send(request)
        except _core.Undecided:
            self._router.remove(ids)
            raise
        inbox.number = self._requests_sent
        return inbox

    async def wait(self, inbox: Inbox, deadline: Deadline) -> None:
        """Waits until an inbox has a message, or the connection has ended."""
        while not inbox.is_ready and self.error is None:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            inbox.wake = partial(_finish, waiter)
            self._begin_waiting()
            try:
                await waiter
            finally:
                self._waiting -= 1
                inbox.wake = None

    @property
    def is_writable(self) -> bool:
        """Whether asyncio holds few bytes that the server has no room for yet."""
        return self._writable.is_set()

    async def wait_writable(self) -> None:
        """Waits until the server has read most of what was sent.

        Raises:
            ucall.ConnectionError: The connection has ended.
        """
        # A server may read no more before its own messages are received.
        self._begin_waiting()
        try:
            await self._writable.wait()
        finally:
            self._waiting -= 1
        if self.error is not None:
            ended = ConnectionError("the connection ended before the request was sent")
            raise not_sent(ended) from self.error

    def cancel(self, requests: list[_core.Request]) -> None:
        """Sends notifications that cancel calls, if the connection is open."""
        for request in requests:
            if not self._is_closed():
                self._send(request)

    def forget(self, ids: Collection[object]) -> None:
        """Drops later messages to these ids."""
        self._router.remove(ids)
        if self._router.drain.has_begun:
            self.close_if_drained()

    def fail_calls(self) -> list[object]:
        """Fails the calls in progress, because the connection will be closed; returns their ids."""
        self._router.fail(client_closed_error())
        return self._router.ids

    def make_wakeable(self) -> None:
        """Does nothing: a task that waits can be cancelled."""

    def end(self, inbox: Inbox) -> None:
        """Ends the waits of other tasks for an inbox."""
        inbox.fail(closed_error())

    def fail(self, error: Exception) -> None:
        """Closes the connection because of an error."""
        self._abort_with(error)

    @property
    def is_draining(self) -> bool:
        """Whether the server has asked to send no more requests."""
        return self._router.drain.has_begun

    @property
    def is_unused(self) -> bool:
        """Whether no call and no subscription waits for its messages."""
        return self._router.is_unused

    def close_if_drained(self) -> None:
        """Closes the connection if the server drains, and no more messages are expected."""
        if self._router.drain.has_begun and self._router.is_unused:
            self.close()

    def close(self) -> None:
        """Closes the connection. The calls in progress fail."""
        if self._transport is not None:
            if self._upgrade is not None and not self._transport.is_closing():
                self._transport.write(control_frame("close", NORMAL_CLOSE))
            self._transport.close()
        self._fail(client_closed_error())

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        """Delivers the messages, and answers a Ping. Stops receiving when too many items wait."""
        super().data_received(data)
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if self._opened is not None and self._reader.is_upgraded:
            _finish(self._opened)
        if (ping := self._reader.take_ping()) is not None:
            transport.write(control_frame("pong", ping))
        if not self._waiting and self._router.is_full:
            transport.pause_reading()

    def _begin_waiting(self) -> None:
        self._waiting += 1
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def _send(self, request: _core.Request) -> None:
        if self._upgrade is None:
            super()._send(request)
        else:
            assert self._transport is not None
            self._transport.write(message_frame(request))
        self._requests_sent += 1

    def _deliver(self, message: Message) -> None:
        if self._upgrade is not None and not self._reader.is_upgraded:
            raise upgrade_error(message)
        self._router.deliver(message)

    def _fail(self, error: Exception) -> None:
        if self.error is not None:
            return
        self.error = error
        self._writable.set()
        self._router.fail(error)
        if self._opened is not None and not self._opened.done():
            self._opened.set_exception(error)


def _finish(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
