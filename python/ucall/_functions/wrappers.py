"""Adapts plain functions that wrap async ones or generators: what they return decides.

Such a wrapper may return the coroutine or the generator of the function that it wraps, or what it
has made of it: its result, or a list of its items. `functools.wraps` tells them apart as little as
their signatures do.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from typing import Any

__all__ = ["adapt"]

Function = Callable[..., Any]


def adapt(function: Function, is_async: bool, yields: bool) -> Function:
    """A function that always returns what its kind says: a coroutine, a generator, or an async
    generator."""
    if not yields:
        return _adapted(function, inspect.iscoroutine, _awaited)
    if is_async:
        return _adapted(function, inspect.isasyncgen, _async_items)
    return _adapted(function, inspect.isgenerator, _items)


def _adapted(
    function: Function, is_made: Callable[[object], bool], make: Callable[[Any], Any]
) -> Function:
    def call(*args: Any, **kwargs: Any) -> Any:
        made = function(*args, **kwargs)
        return made if is_made(made) else make(made)

    return call


async def _awaited(value: Awaitable[object] | object) -> object:
    return await value if inspect.isawaitable(value) else value


def _items(values: Iterable[object]) -> Iterator[object]:
    yield from values


async def _async_items(values: AsyncIterator[object] | Iterable[object]) -> AsyncIterator[object]:
    if isinstance(values, AsyncIterator):
        async for item in values:
            yield item
    else:
        for item in values:
            yield item
