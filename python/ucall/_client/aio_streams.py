"""The streams and subscriptions of an asyncio client."""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, Self

from ucall import _core
from ucall._client.aio_pool import SharedPool
from ucall._client.inbox import Message
from ucall._client.streams import Source, StreamBase, SubscriptionBase

__all__ = ["Stream", "Subscription"]


class Stream(StreamBase):
    """The items of one call, as the server sends them.

    ::

        async for token in client.stream.generate(prompt="hi"):
            print(token)

    The call is sent by the loop. A loop that is left cancels the call, as `aclose` does. Errors and
    ``timeout`` are those of `ucall.client.Stream`.
    """

    _limit: asyncio.Timeout | None = None

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
        super()._close()
        _end_wait(self._limit)

    async def _next_item(self) -> _core.Notification | None:
        return self._poll() or await self._next()

    async def _next_message(self, source: Source) -> Message:
        try:
            async with asyncio.timeout(self._timeout) as self._limit:
                return await super()._next_message(source)
        finally:
            self._limit = None


class Subscription(SubscriptionBase[SharedPool]):
    """The notifications that the server starts: pairs of method and params.

    ::

        async with client.subscribe() as messages:
            await client.watch(topic="prices")
            async for method, params in messages:
                print(method, params)

    It begins when it is made. If the program reads too slowly, the oldest are dropped.
    """

    _limit: asyncio.Timeout | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> tuple[str, Any]:
        """Waits for the next notification, without a time limit.

        Raises:
            StopAsyncIteration: The subscription or its client was closed.
            ucall.ConnectionError: The connection has ended, and the client does not reconnect.
        """
        if self._inbox.items and self._inbox in self._channel.subscriptions:
            return self._take()
        found = None
        try:
            async with asyncio.timeout(None) as self._limit:
                found = await self._next()
        except builtins.TimeoutError:
            if self._inbox in self._channel.subscriptions:
                raise
        finally:
            self._limit = None
        if found is None:
            raise StopAsyncIteration
        return found

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
            self._channel.subscriptions.remove(self._inbox)
            _end_wait(self._limit)

    async def _greet(self) -> None:
        if self._on_connect is not None:
            await self._on_connect()


def _end_wait(wait: asyncio.Timeout | None) -> None:
    """Lets the time of a wait be over."""
    if wait is not None and not wait.expired():
        wait.reschedule(asyncio.get_running_loop().time())
