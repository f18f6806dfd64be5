"""Generators of every kind that count their steps, and a connection that reads streams."""

from __future__ import annotations

import asyncio
import contextvars
import json
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import ucall
from harness import request

#: Where a generator runs: on the server's thread, as a task, in a thread; and batches of each.
KINDS = ["plain", "async", "thread", "batch", "async_batch", "thread_batch"]
SINGLE_KINDS = KINDS[:3]

tag: contextvars.ContextVar[int] = contextvars.ContextVar("tag")


class Source:
    """Serves `stream(n, size)`: n items, each the position, or a str that long; -1: no end."""

    def __init__(self, kind: str, calls_max: int = 64) -> None:
        self.kind = kind
        self.calls_max = calls_max
        self.produced = self.opened = self.closed = 0
        self._lock = threading.Lock()
        #: Whether `ctx.cancelled` was set, of each closed generator.
        self.cancelled: list[bool] = []
        #: Whether the close saw the variables of the steps.
        self.own_variables: list[bool] = []

    def add_to(self, server: ucall.Server, **options: Any) -> None:
        function = getattr(self, self.kind)
        options.setdefault("name", "stream")
        if self.kind.startswith("thread"):
            options["threads"] = True
        if self.kind.endswith("batch"):
            server.batch(function, max_size=self.calls_max, parallel=self.calls_max, **options)
        else:
            server.add(function, **options)

    def _open(self) -> int:
        with self._lock:
            self.opened += 1
            number = self.opened
        tag.set(number)
        return number

    def _item(self, position: int, size: int) -> int | str:
        self.produced += 1
        return "x" * size if size else position

    def _close(self, number: int, contexts: list[ucall.Context]) -> None:
        self.own_variables.append(tag.get(0) == number)
        self.cancelled.append(all(ctx.cancelled for ctx in contexts))
        with self._lock:
            self.closed += 1

    def plain(self, ctx: ucall.Context, n: int, size: int = 0) -> Iterator[int | str]:
        number = self._open()
        try:
            position = 0
            while position != n:
                yield self._item(position, size)
                position += 1
            return "the end"
        finally:
            self._close(number, [ctx])

    thread = plain

    async def async_(self, ctx: ucall.Context, n: int, size: int = 0) -> AsyncIterator[int | str]:
        number, task = self._open(), asyncio.current_task()
        try:
            position = 0
            while position != n:
                await asyncio.sleep(0)
                assert asyncio.current_task() is task
                yield self._item(position, size)
                position += 1
        finally:
            assert asyncio.current_task() is task
            self._close(number, [ctx])

    def batch(
        self, ctx: list[ucall.Context], n: list[int], size: list[int]
    ) -> Iterator[list[object]]:
        number = self._open()
        try:
            position = 0
            while any(position != end for end in n):
                yield self._entries(position, n, size)
                position += 1
        finally:
            self._close(number, ctx)

    thread_batch = batch

    async def async_batch(
        self, ctx: list[ucall.Context], n: list[int], size: list[int]
    ) -> AsyncIterator[list[object]]:
        number = self._open()
        try:
            position = 0
            while any(position != end for end in n):
                await asyncio.sleep(0)
                yield self._entries(position, n, size)
                position += 1
        finally:
            self._close(number, ctx)

    def _entries(self, position: int, n: list[int], size: list[int]) -> list[object]:
        ended = (0 <= end <= position for end in n)
        rows = zip(ended, size, strict=True)
        return [ucall.END if done else self._item(position, long) for done, long in rows]


setattr(Source, "async", Source.async_)


def stream_request(
    method: str = "stream",
    n: int = -1,
    size: int = 0,
    *,
    id: int = 1,
    token: Any = "t",
    **meta: Any,
) -> bytes:
    """A call of a `Source` that takes its items."""
    call = json.loads(request(method, [n, size], id))
    return json.dumps(call | {"_meta": {"progressToken": token} | meta}).encode()


def cancel_request(id: int) -> bytes:
    return request("$/cancelRequest", {"id": id}, id=...)
