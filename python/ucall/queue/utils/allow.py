"""What may be unpickled.

A pickle is a program: it names things, calls them, and sets their attributes. Here it may name only
what is listed, pair by pair of module and name. The constructors listed check the sizes that they
are called with, so that a short message cannot ask for much memory, and have no attributes to set.
"""

from __future__ import annotations

import builtins
import functools
import pickle
import types
import uuid
from collections.abc import Callable, Iterable
from typing import Any

__all__ = ["AllowedNames", "allow_by_name", "allowed_by_default"]

# What hands over the whole process, or lets a name be built at run time: whatever it is called.
_NEVER = frozenset(
    id(getattr(builtins, name))
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


class AllowedNames:
    """Whole modules, or single names in them. See `allow_by_name`."""

    __slots__ = ("_names",)

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(names)

    def __call__(self, name: str) -> bool:
        """Whether ``"module.name"`` is among them."""
        parts = name.split(".")
        return any(".".join(parts[:count]) in self._names for count in range(1, len(parts) + 1))

    def permits(self, module: str, name: str, found: object) -> bool:
        """Whether what was found there may be used.

        Not what a module has only imported, unless it is listed itself; no modules; and nothing of
        what is never allowed, by whatever name.
        """
        if id(found) in _NEVER or isinstance(found, types.ModuleType):
            return False
        return f"{module}.{name}" in self._names or getattr(found, "__module__", None) == module


def allow_by_name(*names: str) -> AllowedNames:
    """An ``allow`` for `PickleSerializer`: whole modules, or single names.

    ``allow_by_name("fractions", "decimal.Decimal")`` loads everything that is defined in one, and
    one thing of the other; whoever sends may call it with any arguments. What a module imports,
    attributes of what it defines (nested classes too), and ``eval``, ``exec``, ``compile``,
    ``open``, ``getattr``, ``setattr``, ``delattr``, ``__import__``, ``globals``, ``vars``,
    ``input`` and ``breakpoint`` are never allowed like this.
    """
    return AllowedNames(names)


class _Constructor:
    """Makes something, and has no attributes that a pickle could set."""

    __slots__ = ("_make",)

    def __init__(self, make: Callable[..., Any]) -> None:
        self._make = make

    def __call__(self, *arguments: Any) -> Any:
        return self._make(*arguments)

    def __setstate__(self, state: object) -> None:
        raise pickle.UnpicklingError("a constructor is not to be changed")


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


@functools.cache
def _numpy(name: str) -> _Constructor:
    import ucall.queue.utils.arrays as arrays

    return _Constructor(getattr(arrays, name))


_constructors: dict[tuple[str, str], Any] = {
    ("builtins", "bytearray"): _Constructor(_bytearray),
    ("builtins", "complex"): _Constructor(complex),
    ("builtins", "frozenset"): _Constructor(_collection(frozenset)),
    ("builtins", "range"): _Constructor(range),
    ("builtins", "set"): _Constructor(_collection(set)),
    ("builtins", "slice"): _Constructor(slice),
    # Made by its `__new__`, so it has to be the class; that has no attributes to set either.
    ("uuid", "UUID"): uuid.UUID,
}


def allowed_by_default(module: str, name: str) -> Any:
    """What stands for this name in a pickle, or None if it is not allowed."""
    found = _constructors.get((module, name))
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
