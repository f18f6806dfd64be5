"""What may be unpickled.

A pickle is a program: it names functions and calls them. Here it may name only what is listed, pair
by pair of module and name, and the constructors listed check the sizes that they are called with,
so that a short message cannot ask for much memory.
"""

from __future__ import annotations

import pickle
import re
import uuid
from collections.abc import Callable, Iterable
from typing import Any

__all__ = ["allow_by_name", "allowed_by_default", "checked_constructors"]

# What hands over the whole process, or lets a name be built at run time.
_NEVER = frozenset(
    f"{module}.{name}"
    for module in ("builtins", "__builtin__")
    for name in (
        "__import__",
        "breakpoint",
        "compile",
        "delattr",
        "eval",
        "exec",
        "getattr",
        "globals",
        "input",
        "open",
        "setattr",
        "vars",
    )
)
_DATETIME = frozenset({"date", "datetime", "time", "timedelta", "timezone"})
# NumPy has moved its functions; old names stay in use.
_NUMPY_CORE = frozenset({"numpy.core", "numpy._core"})


def allow_by_name(*names: str) -> Callable[[str], bool]:
    """An ``allow`` for `PickleSerializer`: whole modules, or single names.

    ``allow_by_name("fractions", "decimal.Decimal")`` loads everything in one and one thing of the
    other. ``eval``, ``exec``, ``compile``, ``open``, ``getattr``, ``setattr``, ``delattr``,
    ``__import__``, ``globals``, ``vars``, ``input`` and ``breakpoint`` are never allowed like this.
    """
    allowed = re.compile("|".join(f"{re.escape(name)}(?:\\..*)?" for name in names) or r"(?!)")

    def allow(name: str) -> bool:
        return name not in _NEVER and allowed.fullmatch(name) is not None

    return allow


def _bytearray(source: Any = b"", *encoding: Any) -> bytearray:
    """Not of a number, which says nothing about its contents and may be any size."""
    if isinstance(source, str) and len(encoding) in (1, 2):
        return bytearray(source, *encoding)
    if not isinstance(source, bytes | bytearray | memoryview | list | tuple) or encoding:
        raise pickle.UnpicklingError("bytearray of something that is not bytes")
    return bytearray(source)


def _collection(kind: Callable[[Iterable[Any]], Any]) -> Callable[..., Any]:
    """Of what came itself; a ``range`` would grow without end."""

    def make(items: Any = ()) -> Any:
        if not isinstance(items, list | tuple | set | frozenset):
            raise pickle.UnpicklingError("a set of something that is no list")
        return kind(items)

    return make


def _numpy(name: str) -> Callable[..., Any]:
    import ucall.queue.utils.arrays as arrays

    found: Callable[..., Any] = getattr(arrays, name)
    return found


checked_constructors: dict[tuple[str, str], Any] = {
    ("builtins", "bytearray"): _bytearray,
    ("builtins", "complex"): complex,
    ("builtins", "frozenset"): _collection(frozenset),
    ("builtins", "range"): range,
    ("builtins", "set"): _collection(set),
    ("builtins", "slice"): slice,
    ("uuid", "UUID"): uuid.UUID,
}


def allowed_by_default(module: str, name: str) -> Any:
    """What stands for this name in a pickle, or None if it is not allowed."""
    found = checked_constructors.get((module, name))
    if found is not None:
        return found
    if module == "datetime" and name in _DATETIME:
        import datetime

        return getattr(datetime, name)
    package, _, part = module.rpartition(".")
    if module == "numpy" and name in {"ndarray", "dtype"}:
        return _numpy(name)
    if package in _NUMPY_CORE and (part, name) in {
        ("multiarray", "_reconstruct"),
        ("multiarray", "scalar"),
        ("numeric", "_frombuffer"),
    }:
        return _numpy(name)
    return None
