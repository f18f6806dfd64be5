"""The connections of an asyncio client: one call at a time over HTTP, many over raw TCP."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Collection
from typing import Any

from ucall import _core
from ucall._client.sockets import closed_error
from ucall.errors import ConnectionError

__all__ = ["AsyncConnection", "HttpConnection", "RawConnection"]


#: asyncio has received the bytes in the socket before the third check, at the latest.
_CHECKS_MAX = 3


class AsyncConnection(asyncio.Protocol):
    """Parses received bytes into replies. A derived class passes them to the waiting calls."""

    def __init__(self, is_http: bool, reply_bytes_max: int) -> None:
        self._reader = _core.ReplyReader(http=is_http, reply_bytes_max=reply_bytes_max)
        self._transport: asyncio.Transport | None = None

    async def is_alive(self) -> bool:
        """Whether it is open and has nothing unread. Lets asyncio read what was received."""
        for _ in range(_CHECKS_MAX):
            if self._is_closed():
                return False
            seen = self._peek()
            if seen != "bytes":
                return seen == "quiet"
            await asyncio.sleep(0)
        return not self._is_closed()

    def abort(self) -> None:
        """Closes it at once. The waiting calls fail."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            for reply in self._reader.feed(data):
                self._deliver(reply)
        except OSError as error:
            self._abort_with(error)

    def eof_received(self) -> None:
        try:
            reply = self._reader.end()
        except OSError as error:
            self._abort_with(error)
            return
        if reply is not None:
            self._deliver(reply)
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
        self._transport.write(request.data)

    def _abort_with(self, error: Exception) -> None:
        self._fail(error)
        self.abort()

    def _deliver(self, reply: _core.Reply) -> None:
        raise NotImplementedError

    def _fail(self, error: Exception) -> None:
        raise NotImplementedError


class HttpConnection(AsyncConnection):
    """A connection over HTTP. Cancelling a call closes it."""

    _waiter: asyncio.Future[_core.Reply] | None = None

    @property
    def is_reusable(self) -> bool:
        """Whether the server keeps it open for another request."""
        return not self._is_closed() and self._reader.is_reusable

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
            return reply
        except BaseException:
            self.abort()
            raise
        finally:
            self._waiter = None

    def _deliver(self, reply: _core.Reply) -> None:
        if self._waiter is None or self._waiter.done():
            self.abort()  # A reply without a request.
        else:
            self._waiter.set_result(reply)

    def _fail(self, error: Exception) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)


class RawConnection(AsyncConnection):
    """A connection over raw TCP, where replies come in any order, with the ids of their calls."""

    def __init__(self, is_http: bool, reply_bytes_max: int) -> None:
        super().__init__(is_http, reply_bytes_max)
        self._waiters: dict[object, asyncio.Future[_core.Reply]] = {}

    async def exchange(self, request: _core.Request, ids: Collection[object]) -> _core.Reply:
        """Sends a request and returns the reply to these ids.

        Cancelling a call does not affect others: its reply is dropped.

        Raises:
            ValueError: A call in progress has one of the ids.
            ucall.ConnectionError: The connection failed, or a reply is not JSON-RPC.
        """
        for id in ids:
            if id in self._waiters:
                raise ValueError(f"a call in progress on this connection has the id {id!r}")
        if not ids:
            self._send(request)
            return _core.Reply.nothing()
        waiter: asyncio.Future[_core.Reply] = asyncio.get_running_loop().create_future()
        self._waiters.update(dict.fromkeys(ids, waiter))
        self._send(request)
        try:
            return await waiter
        finally:
            for id in ids:
                del self._waiters[id]

    def _deliver(self, reply: _core.Reply) -> None:
        parts = reply.split() if reply.is_batch else [reply]
        found = (self._waiters.get(_hashable(part.id)) for part in parts if part.id is not None)
        waiter = next((waiter for waiter in found if waiter is not None), None)
        if waiter is None and reply.is_error and reply.id is None:
            waiter = self._only_waiter()
            if waiter is None:
                text = reply.text.decode(errors="replace")
                raise ConnectionError(f"the server refused a request without naming its id: {text}")
        if waiter is not None and not waiter.done():
            waiter.set_result(reply)

    def _only_waiter(self) -> asyncio.Future[_core.Reply] | None:
        waiters = set(self._waiters.values())
        return waiters.pop() if len(waiters) == 1 else None

    def _fail(self, error: Exception) -> None:
        for waiter in set(self._waiters.values()):
            if not waiter.done():
                waiter.set_exception(copy.copy(error))


def _hashable(id: Any) -> object:
    """The id, or None for one that this client never sends: a list or a dict has no hash."""
    return id if isinstance(id, int | float | str) else None
