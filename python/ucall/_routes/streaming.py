"""The parts of a request's body, as a route's function gets them: `HttpRequest.stream`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from ucall._core import BodyReceiver

__all__ = ["AsyncArriving", "AsyncWhole", "arriving", "whole"]


def whole(body: bytes) -> Iterator[bytes]:
    """Yields a body that has arrived."""
    if body:
        yield body


def arriving(body: BodyReceiver) -> Iterator[bytes]:
    """Yields what arrives, which the thread waits for."""
    while part := body.wait():
        yield part


class AsyncWhole:
    """The part of a body that has arrived, for an async function."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        part, self._body = self._body, b""
        if not part:
            raise StopAsyncIteration
        return part


class AsyncArriving:
    """The parts of a body that arrives, which the task of an async function waits for.

    A wait that is cancelled loses nothing: the next one gets the same part.
    """

    def __init__(self, body: BodyReceiver) -> None:
        self._body = body

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        while (part := self._body.take()) is None:
            await self._wait()
        if not part:
            raise StopAsyncIteration
        return part

    async def _wait(self) -> None:
        import asyncio  # here, because a server without async functions does not need it

        arrival = asyncio.get_running_loop().create_future()
        try:
            await self._body.complete_later(arrival)
        finally:
            if arrival.cancelled():
                self._body.forget(arrival)
