"""The hooks that a process of a pool runs before its first call: `Server.on_process_start`."""

from __future__ import annotations

import traceback
from collections.abc import Awaitable, Callable
from typing import Any

from ucall._functions import signatures
from ucall._functions.loading import Model

__all__ = ["ProcessHook", "describe_hook", "run_hooks"]

Function = Callable[..., Any]

#: A hook, and whether it takes the number of its process.
ProcessHook = tuple[Function, bool]


def describe_hook(hook: Function) -> ProcessHook:
    """A hook, and whether it takes the number of its process: if it has a parameter to fill.

    Raises:
        TypeError: It is no function, or takes more than that.
    """
    if not callable(hook):
        raise TypeError(f"expected a function, got {type(hook).__name__}")
    return hook, signatures.takes_argument(hook, "the number of the process")


def run_hooks(hooks: list[ProcessHook], number: int) -> RuntimeError | None:
    """Runs the hooks of a process; returns the failure that each of its calls would have."""
    for hook, takes_number in hooks:
        try:
            result = hook(number) if takes_number else hook()
            if isinstance(result, Awaitable):
                import asyncio

                asyncio.run(_result_of(result))
        except BaseException as raised:
            model = getattr(hook, "__self__", None)  # Whose method `load` is the hook.
            name = getattr(model if isinstance(model, Model) else hook, "__qualname__", repr(hook))
            reason = "".join(traceback.format_exception_only(raised)).strip()
            failure = RuntimeError(f"its process could not start: {name} raised {reason}")
            lines = traceback.format_exception(raised)
            failure.add_note("In its process:\n" + "".join(lines).rstrip())
            return failure
    return None


async def _result_of(awaitable: Awaitable[object]) -> object:
    return await awaitable
