"""Hooks around calls: `ucall.Server.middleware`.

The core runs the outermost hook in place of the function, which the hook calls by its `ucall.Call`.
A plain hook runs where a plain function does. An async hook runs as a task, and awaits what the
function does elsewhere.
"""

from __future__ import annotations

import dataclasses
import inspect
from typing import TYPE_CHECKING

from ucall._functions import signatures, wrappers
from ucall._functions.registration import Hooks, Registration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ucall._functions.registration import Hook

__all__ = ["around", "checked"]

#: Why calls of a function have to be awaited, by its mode.
_AWAITED = {
    "task": "it is async",
    "async_generator": "it is async",
    "future": "it runs in processes",
    "native": "they are answered without Python",
}


def checked(hook: Hook) -> Hook:
    """A hook that can be called.

    Raises:
        TypeError: It is no function of a context and a call.
    """
    if not callable(hook):
        raise TypeError(f"middleware: expected a function, got {type(hook).__name__}")
    if signatures.yields(hook):
        raise TypeError(
            f"middleware: {name_of(hook)} is a generator; expected a function that returns what "
            "the caller gets, for a stream an iterator of its items"
        )
    try:
        inspect.signature(hook).bind(None, None)
    except TypeError:
        problem = "expected a function of two parameters, the context and the call"
        raise TypeError(f"middleware: {name_of(hook)}: {problem}") from None
    except ValueError:  # A builtin without a signature.
        pass
    return hook


def name_of(hook: Hook) -> str:
    """The name of a hook, for messages."""
    return getattr(hook, "__qualname__", None) or repr(hook)


def around(registration: Registration, hooks: Sequence[Hook], name: str) -> Registration:
    """A function with hooks around its calls, the first one outermost.

    Raises:
        TypeError: A hook cannot be around the function; the message names both.
    """
    async_count = _count_async(registration, hooks, name)
    outermost, mode, later = hooks[0], registration.mode, None
    yields = registration.stream is not None
    if async_count:
        from ucall._functions import async_hooks

        mode = "async_generator" if yields else "task"
        later = async_hooks.later(registration)
        outermost = async_hooks.items_of(outermost) if yields else outermost
    elif yields:
        outermost = wrappers.adapt(outermost, False, True)
    names = ", ".join(map(name_of, hooks))
    made = Hooks(outermost, hooks[1:], max(async_count - 1, 0), mode, later, names)
    return dataclasses.replace(registration, hooks=made)


def _count_async(registration: Registration, hooks: Sequence[Hook], name: str) -> int:
    """How many hooks are async: the first ones."""
    awaited = _AWAITED.get(registration.mode)
    if registration.batch is not None:
        awaited = "it runs in batches" if registration.batch.slots is None else "it runs in slots"
    for hook in reversed(hooks):
        is_async = signatures.is_async(hook)
        if awaited is not None and not is_async:
            raise TypeError(
                f"{name}: {awaited}, and the hook {name_of(hook)} around it is a plain function: "
                "write the hook as async def"
            )
        if is_async:
            awaited = f"the hook {name_of(hook)} is async"
    return sum(map(signatures.is_async, hooks))
