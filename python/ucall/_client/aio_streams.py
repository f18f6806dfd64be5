"""The streams and subscriptions of an asyncio client."""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any, Protocol, Self

from ucall import _core
from ucall._client.aio_connection import EventConnection, SharedConnection
from ucall._client.aio_pool import HttpPool, SharedPool
from ucall._client.backoff import Backoff
from ucall._client.inbox import Inbox, Message
from ucall._client.response import Response
from ucall._client.sockets import closed_error, timeout_error
from ucall._client.streams import check_event
from ucall.errors import ConnectionError, TimeoutError

__all__ = ["HttpSource", "SharedSource", "Source", "Stream", "Subscription"]


class Source(Protocol):
    """The messages of one stream."""

    async def next(self) -> Message:
        """Waits for the next item, or for the reply. The first wait sends the request.

        Raises:
            ucall.ConnectionError: The connection failed, or a message is invalid.
        """

    def poll(self) -> Message | None:
        """The next message, if it was received already."""

    def close(self, *, has_ended: bool) -> None:
        """Cancels the stream, unless it has ended."""


class Stream:
    """The items of one call, as the server sends them.

    ::

        async for token in client.stream.generate(prompt="hi"):
            print(token)

    The call is sent by the loop. A loop that is left cancels the call, as `aclose` does. Errors and
    ``timeout`` are those of `ucall.client.Stream`.
    """

    def __init__(self, source: Source, timeout: float | None, image_pixels_max: int) -> None:
        self._source: Source | None = source
        self._timeout = timeout
        self._image_pixels_max = image_pixels_max
        self._response: Response | None = None
        self._wait: asyncio.Timeout | None = None

    @property
    def result(self) -> Any:
        """What the function returned at the end. See `ucall.client.Stream.result`."""
        return self.response.json

    @property
    def response(self) -> Response:
        """The reply at the end. See `ucall.client.Stream.response`."""
        if self._response is None:
            raise RuntimeError("the stream has not ended")
        return self._response

    async def __aiter__(self) -> AsyncIterator[Any]:
        try:
            while (item := await self._next_item()) is not None:
                yield item.value
        finally:
            self._close()

    async def aclose(self) -> None:
        """Cancels the call, unless it has ended. A loop that waits in another task ends."""
        self._close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: object) -> None:
        """Cancels the call, unless it has ended."""
        self._close()

    def _close(self) -> None:
        source, self._source = self._source, None
        if source is not None:
            source.close(has_ended=self._response is not None)
            _end_wait(self._wait)

    async def _next_item(self) -> _core.Notification | None:
        """Waits for the next item; ``None`` at the end."""
        if self._source is None:
            return None
        try:
            message = self._source.poll() or await self._next_message(self._source)
        except OSError:
            if self._source is None:  # Another task has closed it.
                return None
            raise
        if isinstance(message, _core.Notification):
            return message
        self._response = Response(message, self._image_pixels_max)
        self._close()
        self._response.raise_for_status()
        return None

    async def _next_message(self, source: Source) -> Message:
        try:
            async with asyncio.timeout(self._timeout) as self._wait:
                return await source.next()
        except builtins.TimeoutError as error:
            if isinstance(error, TimeoutError):
                raise
            raise timeout_error(self._timeout, "no further item") from None
        finally:
            self._wait = None


class SharedSource:
    """A stream over the shared connection."""

    def __init__(self, pool: SharedPool, request: _core.Request, id: object) -> None:
        self._pool, self._request, self._ids = pool, request, (id,)
        self._connection: SharedConnection | None = None

    async def next(self) -> Message:
        """See `Source.next`."""
        if self._connection is None:
            self._pool.use_running_loop()
            connection = await self._pool.connection()
            if not connection.is_writable:
                connection = await self._pool.when_writable(connection)
            self._inbox = connection.start(self._request, self._ids)
            self._connection = connection
        await self._connection.wait(self._inbox)
        return self._inbox.take()

    def poll(self) -> Message | None:
        """See `Source.poll`."""
        has_received = self._connection is not None and self._inbox.is_ready
        return self._inbox.take() if has_received else None

    def close(self, *, has_ended: bool) -> None:
        """See `Source.close`."""
        if self._connection is not None:
            self._connection.forget(self._ids)
            if not has_ended:
                self._pool.cancel(self._connection, self._ids)


class HttpSource:
    """A stream over HTTP, as server-sent events on a connection of its own."""

    def __init__(self, pool: HttpPool, request: _core.Request, id: object) -> None:
        self._pool, self._request, self._id = pool, request, id
        self._connection: EventConnection | None = None

    async def next(self) -> Message:
        """See `Source.next`."""
        if self._connection is None:
            self._connection = await self._pool.event_connection()
            self._connection.begin(self._request)
        return self._checked(await self._connection.next())

    def poll(self) -> Message | None:
        """See `Source.poll`."""
        message = self._connection.poll() if self._connection is not None else None
        return None if message is None else self._checked(message)

    def close(self, *, has_ended: bool) -> None:
        """See `Source.close`. The server sees the end of the connection."""
        if self._connection is not None:
            self._connection.abort()

    def _checked(self, message: Message) -> Message:
        check_event(message, self._request, self._id)
        return message


class Subscription:
    """The notifications that the server starts: pairs of method and params.

    ::

        async with client.subscribe() as messages:
            await client.watch(topic="prices")
            async for method, params in messages:
                print(method, params)

    It begins when it is made. If the program reads too slowly, the oldest are dropped.
    """

    def __init__(
        self, pool: SharedPool, on_connect: Callable[[], Awaitable[object]] | None
    ) -> None:
        self._pool = pool
        self._on_connect = on_connect
        self._backoff = Backoff()
        self._inbox = Inbox()
        self._connection: SharedConnection | None = None
        self._waiting: asyncio.Timeout | None = None
        pool.subscriptions.append(self._inbox)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> tuple[str, Any]:
        """Waits for the next notification, without a time limit.

        Raises:
            StopAsyncIteration: The subscription or its client was closed.
            ucall.ConnectionError: The connection has ended, and the client does not reconnect.
        """
        while self._inbox in self._pool.subscriptions:
            if self._inbox.items:
                message = self._inbox.take()
                assert isinstance(message, _core.Notification)
                return message.method, message.params
            try:
                async with asyncio.timeout(None) as self._waiting:
                    await self._wait()
            except builtins.TimeoutError:
                if self._inbox in self._pool.subscriptions:
                    raise
            except ConnectionError:
                if self._inbox not in self._pool.subscriptions:
                    break
                if not self._pool.reconnect:
                    raise
                await self._pool.pause(self._backoff.next())
            finally:
                self._waiting = None
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Ends the subscription, also for a task that waits. The server may go on sending, to other
        subscriptions."""
        self._close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: object) -> None:
        """Closes it."""
        self._close()

    def __del__(self) -> None:
        self._close()

    def _close(self) -> None:
        with suppress(ValueError):
            self._pool.subscriptions.remove(self._inbox)
            _end_wait(self._waiting)

    async def _wait(self) -> None:
        connection = self._connection
        if connection is None or connection.error is not None:
            if connection is not None and not self._pool.reconnect:
                raise connection.error or closed_error()
            self._pool.use_running_loop()
            connection = await self._pool.connection()
            if self._on_connect is not None:
                await self._on_connect()
            self._connection = connection
            self._backoff.opened()
        await connection.wait(self._inbox)
        if connection.error is not None and not self._inbox.is_ready:
            raise connection.error


def _end_wait(wait: asyncio.Timeout | None) -> None:
    """Lets the time of a wait be over."""
    if wait is not None and not wait.expired():
        wait.reschedule(asyncio.get_running_loop().time())
