"""One source of tests for both clients: `ucall.client.Client` and `ucall.aio.Client`.

A test makes its clients by the fixture `new_client`, uses them as threads do, and runs twice. The
second time `Blocking` stands before what belongs to asyncio: it runs each coroutine in an event
loop of another thread, while the caller waits. What only tasks can do, such as cancelling a call,
is in `test_aio.py`.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from ucall import aio
from ucall._client.names import Methods
from ucall.client import Client

NewClient = Callable[..., Any]
_END = object()


class Loop:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._has_begun = threading.Event()
        self._thread = threading.Thread(target=asyncio.run, args=(self._serve(),))
        self._thread.start()
        self._has_begun.wait()

    async def _serve(self) -> None:
        self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        self._has_begun.set()
        await self._ended.wait()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join()

    def run(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Calls a function in the loop, and awaits its result."""

        async def finish() -> Any:
            result = function(*args, **kwargs)
            return await result if inspect.isawaitable(result) else result

        return asyncio.run_coroutine_threadsafe(finish(), self._loop).result()


class Blocking:
    """An object of asyncio with the methods of its synchronous twin."""

    def __init__(self, target: Any, loop: Loop) -> None:
        self._target, self._in = target, loop

    def __getattr__(self, name: str) -> Any:
        if name == "close" and hasattr(type(self._target), "aclose"):
            name = "aclose"
        return self._wrapped(getattr(self._target, name))

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        if getattr(self._target, "__name__", "") == "subscribe":
            # Its function makes calls, which wait.
            args = tuple(lambda it=it: asyncio.to_thread(it) for it in args)
        return self._wrapped(self._in.run(self._target, *args, **kwargs))

    def __enter__(self) -> Any:
        self._in.run(self._target.__aenter__)
        return self

    def __exit__(self, *raised: Any) -> Any:
        return self._in.run(self._target.__aexit__, *raised)

    def __iter__(self) -> Iterator[Any]:
        iterator = self._in.run(self._target.__aiter__)
        try:
            while (item := self._in.run(anext, iterator, _END)) is not _END:
                yield item
        finally:
            if iterator is not self._target:
                self._in.run(iterator.aclose)

    def __next__(self) -> Any:
        item = self._in.run(anext, self._target, _END)
        if item is _END:
            raise StopIteration
        return item

    def __bool__(self) -> bool:
        return bool(self._target)

    def __len__(self) -> int:
        return len(self._target)

    def __repr__(self) -> str:
        return repr(self._target)

    def _wrapped(self, value: Any) -> Any:
        is_asyncs = hasattr(type(value), "__aenter__") or isinstance(value, Methods)
        return Blocking(value, self._in) if is_asyncs or callable(value) else value


@contextmanager
def clients(kind: str) -> Iterator[NewClient]:
    """Makes clients of a kind, "sync" or "aio"."""
    if kind == "sync":
        yield Client
        return
    loop = Loop()
    try:
        yield lambda *args, **kwargs: Blocking(aio.Client(*args, **kwargs), loop)
    finally:
        loop.close()


@pytest.fixture(params=["sync", "aio"])
def new_client(request: pytest.FixtureRequest) -> Iterator[NewClient]:
    """Makes clients of both kinds in turn: ``new_client(uri, port, timeout=3)``."""
    with clients(request.param) as new:
        yield new
