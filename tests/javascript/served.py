"""The functions that the tests of `ucall.js` call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy
from numpy.typing import NDArray

import ucall


def sum(a: int, b: int) -> int:
    return a + b


def echo(value: Any) -> Any:
    return value


def transpose(image: NDArray[Any]) -> NDArray[Any]:
    return image.T


def reverse(data: bytes) -> bytes:
    return data[::-1]


def ranges(to: int) -> list[NDArray[numpy.int64]]:
    return [numpy.arange(at) for at in range(to)]


def fail() -> None:
    raise ucall.RPCError(7, "failed", {"at": 1})


def whoami(ctx: ucall.Context) -> Any:
    return ctx.user


def count(to: int) -> Iterator[int]:
    yield from range(to)
    return "done"


async def acount(to: int) -> AsyncIterator[int]:
    for at in range(to):
        yield at
        await asyncio.sleep(0)


def fail_later() -> Iterator[int]:
    yield 1
    raise ucall.RPCError(7, "failed", {"at": 1})


def flood(count: int, size: int) -> Iterator[str]:
    for _ in range(count):
        yield "x" * size


class _Endings:
    """Streams that do not end, and how many of them were closed."""

    def __init__(self) -> None:
        self.count = 0

    async def endless(self) -> AsyncIterator[int]:
        try:
            at = 0
            while True:
                yield at
                at += 1
                await asyncio.sleep(0.001)
        finally:
            self.count += 1

    async def hold(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            self.count += 1

    def endings(self) -> int:
        return self.count


def subscribe(ctx: ucall.Context, topic: str) -> None:
    ctx.subscribe(topic)


def tell(ctx: ucall.Context, method: str, params: Any) -> None:
    ctx.notify(method, params)


def add_to(server: ucall.Server) -> None:
    """Adds all functions to a server."""

    def publish(topic: str, method: str, params: Any) -> None:
        server.publish(topic, method, params)

    endings = _Endings()
    functions = (sum, echo, fail, whoami, count, acount, fail_later, flood)
    for function in (*functions, transpose, reverse, ranges, subscribe, tell, publish):
        server.add(function)
    for method in (endings.endless, endings.hold, endings.endings):
        server.add(method)
