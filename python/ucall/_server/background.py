"""Functions that run after the reply to a call: what `ucall.Context.background` takes."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal

from ucall._functions import signatures

__all__ = ["prepare"]

Kind = Literal["coroutine", "async", "plain"]


def prepare(
    function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None
) -> tuple[Callable[[], object] | Any, Kind, str]:
    """A coroutine, or a function without parameters, and its name for the log.

    Raises:
        TypeError: It is neither a function nor a coroutine, or a generator; or a coroutine has
            arguments.
    """
    if inspect.iscoroutine(function):
        if args or kwargs:
            function.close()
            raise TypeError("background: a coroutine has its arguments already")
        return function, "coroutine", function.__qualname__
    if not callable(function):
        kind = type(function).__name__
        raise TypeError(f"background: expected a function or a coroutine, got {kind}")
    inner = signatures.underlying_function(function)
    name = getattr(inner, "__qualname__", type(inner).__name__)
    if signatures.yields(function):
        raise TypeError(f"background: {name} is a generator, whose items no caller would get")
    work = functools.partial(function, *args, **(kwargs or {}))
    return work, "async" if signatures.is_async(function) else "plain", name
