"""The parts of a request's body, as a route's function gets them: `HttpRequest.stream`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ucall._core import BodyReceiver

__all__ = ["arriving", "arriving_later", "whole", "whole_later"]


def whole(body: bytes) -> Iterator[bytes]:
    """Yields a body that has arrived."""
    if body:
        yield body


async def whole_later(body: bytes) -> AsyncIterator[bytes]:
    """Yields a body that has arrived, to an async function."""
    if body:
        yield body


def arriving(body: BodyReceiver) -> Iterator[bytes]:
    """Yields what arrives, which the thread waits for."""
    while part := body.wait():
        yield part


async def arriving_later(body: BodyReceiver) -> AsyncIterator[bytes]:
    """Yields what arrives, which the task waits for."""
    import asyncio  # here, because a server without async functions does not need it

    loop = asyncio.get_running_loop()
    while (part := body.take()) != b"":
        if part is None:
            await body.complete_later(loop.create_future())
        else:
            yield part
