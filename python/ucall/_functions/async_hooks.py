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
    from concurrent.futures import Future

    from ucall._core import Call, Context
    from ucall._functions.registration import Hook, Registration

__all__ = ["items_of", "later"]

Later = Callable[["Call"], Awaitable[object]]

_END = object()

#: What the stream of a hook closes at its end. So a call with items of batches or slots ends with
#: it, whatever still refers to their iterator, such as the traceback of a hook that has raised.
_closing: contextvars.ContextVar[contextlib.AsyncExitStack] = contextvars.ContextVar("_closing")


def later(registration: Registration) -> Later | None:
    """Makes the coroutine that the last async hook awaits; `None` if the function returns one."""
    if registration.batch is None:
        return _LATER[registration.mode]
    return _in_batch if registration.stream is None else _items_in_batch


def items_of(hook: Hook) -> Hook:
    """An async generator function of the items that an async hook returns."""

    async def items(ctx: Context, call: Call) -> AsyncIterator[object]:
        async with contextlib.AsyncExitStack() as closing:
            _closing.set(closing)
            made: AsyncIterable[object] | Iterable[object] = await hook(ctx, call)
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
    result: Future[object] = call._proceed()
    loop, is_done = asyncio.get_running_loop(), asyncio.Event()
    result.add_done_callback(lambda _: loop.call_soon_threadsafe(is_done.set))
    try:
        await is_done.wait()
    except asyncio.CancelledError:
        result.cancel()
        raise
    # Not through a future of asyncio, which refuses a StopIteration.
    return result.result()


async def _in_batch(call: Call) -> object:
    """The result of a function that takes batches."""
    return await _elsewhere(call, None)


async def _in_worker(call: Call) -> object:
    """The result of a native procedure."""
    return await _elsewhere(call, None)


async def _items_in_batch(call: Call) -> AsyncIterator[object]:
    """An async iterator of the items of a call, whose generator takes batches or has slots. There
    is one once its first items are there."""
    if (closing := _closing.get(None)) is not None:
        closing.callback(call._cancel)
    try:
        items = await _received(call._begin)
    except BaseException:
        call._cancel()
        raise
    return _items_of_call(call, items)


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
    "native": _in_worker,
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


async def _items_of_call(call: Call, items: list[object] | None) -> AsyncIterator[object]:
    """`items`, and those that follow. The call ends with the iterator."""
    try:
        while items is not None:
            for item in items:
                yield item
            items = await _received(call._take)
    finally:
        call._cancel()


async def _received(begin: Callable[[asyncio.Future[Any]], None]) -> list[object] | None:
    """Items that have arrived; `None` at the end of the call."""
    future: asyncio.Future[list[object] | None] = asyncio.get_running_loop().create_future()
    begin(future)
    return await future


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
