"""Names that a pickle may use beside the default ones.

A pickle names classes and functions, calls them, and sets the state of what they return. The core
has a table of names that are safe in anybody's hands; whatever else a program wants to receive it
allows here, class by class or name by name.
"""

from __future__ import annotations

import builtins
import importlib
import pickle
import sys
import types
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

__all__ = ["AllowedNames", "allow", "allow_by_name", "find"]

Class = TypeVar("Class", bound=type)

# They give whoever names them the whole process, or build a name at run time.
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
_allowed: dict[tuple[str, str], type] = {}


def allow(*classes: Class) -> Class:
    """Lets messages hold instances of these classes, in every queue of this process.

    It is a class decorator, too. An instance is made by the class's ``__new__``, or by the class
    itself if its ``__reduce__`` says so, and gets its state; a sender chooses the arguments and the
    state, so ``__init__`` may not have run. What the class's own ``__setstate__``, ``__new__`` and
    ``__reduce__`` do with them is the class's business. Enums and exceptions of your own are
    allowed like this as well.

    Returns:
        The first class.

    Raises:
        TypeError: One of them is no class.
    """
    for found in classes:
        if not isinstance(found, type):
            raise TypeError(f"allow takes classes, not {found!r}")
        _allowed[found.__module__, found.__qualname__] = found
    return classes[0]


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
        """Whether an object that was found under this name may be used.

        Not an object that a module has only imported, unless it is listed itself; no modules; and
        none of the functions that are never allowed, by whatever name.
        """
        if id(found) in _NEVER or isinstance(found, types.ModuleType):
            return False
        return f"{module}.{name}" in self._names or getattr(found, "__module__", None) == module


def allow_by_name(*names: str) -> AllowedNames:
    """An ``allow`` for `PickleSerializer`: whole modules, or single names.

    ``allow_by_name("fractions", "app.User")`` loads everything that is defined in one, and one
    thing of the other; whoever sends may call it with any arguments. What a module imports,
    attributes of what it defines (nested classes too), and ``eval``, ``exec``, ``compile``,
    ``open``, ``getattr``, ``setattr``, ``delattr``, ``__import__``, ``globals``, ``vars``,
    ``input`` and ``breakpoint`` are never allowed like this.
    """
    return AllowedNames(names)


def find(allow: Callable[[str], object] | None, module: str, name: str) -> Any:
    """The object that a message names and the program has allowed.

    Raises:
        pickle.UnpicklingError: It is not allowed.
    """
    found = _allowed.get((module, name))
    if found is not None:
        return found
    if isinstance(allow, AllowedNames):
        # A dotted name leads through attributes, to anything.
        if "." not in name and allow(f"{module}.{name}"):
            found = _imported(module, name)
            if allow.permits(module, name, found):
                return found
    elif allow is not None and allow(f"{module}.{name}"):
        return _imported(module, name)
    raise pickle.UnpicklingError(f"{module}.{name} is not allowed")


def _imported(module: str, name: str) -> Any:
    importlib.import_module(module)
    found: Any = sys.modules[module]
    for part in name.split("."):
        found = getattr(found, part)
    return found
