"""What async hooks await: functions that run on the worker's thread, in threads, in batches, in
slots and in processes."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Generator, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ucall._core import Call, Context
    from ucall._functions.registration import Hook, Registration

__all__ = ["items_of", "later"]

Later = Callable[["Call"], Awaitable[object]]

_END = object()


def later(registration: Registration) -> Later | None:
    """Makes the coroutine that the last async hook awaits; `None` if the function returns one."""
    if registration.batch is None:
        return _LATER[registration.mode]
    return _in_batch if registration.stream is None else _items_in_batch


def items_of(hook: Hook) -> Hook:
    """An async generator function of the items that an async hook returns."""

    async def items(ctx: Context, call: Call) -> AsyncIterator[object]:
        made: AsyncIterable[object] | Iterable[object] = await hook(ctx, call)
        async with contextlib.AsyncExitStack() as closing:
            if hasattr(made, "aclose"):
                closing.push_async_callback(made.aclose)
            elif hasattr(made, "close"):
                closing.callback(made.close)
            if isinstance(made, AsyncIterable):
                async for item in made:
                    yield item
            else:
                for item in made:
                    yield item

    return items


async def _returned(call: Call) -> object:
    """The result of a plain function, or the generator that a function has returned."""
    return call._proceed()


async def _in_process(call: Call) -> object:
    """The result of a function that runs in a process."""
    return await asyncio.wrap_future(call._proceed())


async def _in_batch(call: Call) -> object:
    """The result of a function that takes batches."""
    return await _elsewhere(call, None)


async def _items_in_batch(call: Call) -> AsyncIterator[object]:
    """An async iterator of the items of a call, whose generator takes batches or has slots. There
    is one once its first items are there."""
    items = _Items(call)
    await items.receive()
    return items


async def _in_thread(call: Call) -> object:
    """The result of a function that runs in a thread."""
    return await _elsewhere(call, partial(contextvars.copy_context().run, call._proceed))


async def _items_in_thread(call: Call) -> AsyncIterator[object]:
    """An async iterator of the items of a generator, whose steps run in threads."""
    variables = contextvars.copy_context()
    items = await _elsewhere(call, partial(variables.run, call._proceed))
    return _stepped(call, _Steps(items, variables))


#: By the mode of the function.
_LATER: dict[str, Later | None] = {
    "inline": _returned,
    "task": None,
    "thread": _in_thread,
    "future": _in_process,
    "generator": _returned,
    "async_generator": _returned,
    "thread_generator": _items_in_thread,
}


class _Steps:
    """The steps of a generator, each in any thread."""

    def __init__(self, items: Generator[object], variables: contextvars.Context) -> None:
        self._items = items
        self._variables = variables
        #: A step that its hook does not await any more may run when the generator is closed.
        self._lock = threading.Lock()

    def next(self) -> object:
        """The next item, or `_END`."""
        with self._lock:
            return self._variables.run(next, self._items, _END)

    def close(self) -> None:
        """Ends the generator."""
        with self._lock:
            self._variables.run(self._items.close)


class _Items:
    """The items of a call that a generator of batches or slots answers, with others."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._has_begun = False
        self._has_ended = False
        #: Those that have arrived, the next one last.
        self._items: list[object] = []

    async def receive(self) -> None:
        """Waits for further items, or for the end of the call."""
        future: asyncio.Future[list[object] | None] = asyncio.get_running_loop().create_future()
        if self._has_begun:
            self._call._take(future)
        else:
            self._has_begun = True
            self._call._begin(future)
        try:
            items = await future
        except BaseException:
            self._cancel()
            raise
        self._has_ended = items is None
        self._items = [] if items is None else items[::-1]

    def __aiter__(self) -> AsyncIterator[object]:
        return self

    async def __anext__(self) -> object:
        while not self._items:
            if self._has_ended:
                raise StopAsyncIteration
            await self.receive()
        return self._items.pop()

    async def aclose(self) -> None:
        """Ends the call."""
        self._cancel()

    def __del__(self) -> None:
        self._cancel()

    def _cancel(self) -> None:
        if not self._has_ended:
            self._has_ended = True
            self._call._cancel()


async def _stepped(call: Call, steps: _Steps) -> AsyncIterator[object]:
    try:
        while (item := await _elsewhere(call, steps.next, is_step=True)) is not _END:
            yield item
    except (asyncio.CancelledError, GeneratorExit):
        call._begin(asyncio.get_running_loop().create_future(), steps.close, True)
        raise


async def _elsewhere(
    call: Call, work: Callable[[], object] | None, *, is_step: bool = False
) -> Any:
    """What `work` returns in a thread of the pool; `None` is the function, in a batch."""
    future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    call._begin(future, work, is_step)
    try:
        return await future
    except asyncio.CancelledError:
        call._cancel()
        raise
