"""The classes and functions that a pickle may name besides the default ones.

A pickle names classes and functions, calls them, and sets the state of the results. The core has a
table of names that are safe whatever arguments a peer chooses. A program allows further classes
with `allow`, and further names with `allow_by_name`.
"""

from __future__ import annotations

import builtins
import importlib
import pickle
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from ucall.queue.utils.arrays import optional, plain_base, subclass_refusal

__all__ = [
    "AllowedNames",
    "accepted_names",
    "allow",
    "allow_arrow",
    "allow_by_name",
    "allow_pandas",
    "allow_torch",
    "find",
    "on_change",
    "refusal",
]

Class = TypeVar("Class", bound=type)

# With one of them a sender could run any code, or reach any name.
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
#: Libraries whose values messages contain as arrays, the functions that allow it, and the values.
_LIBRARIES = {
    "pandas": ("allow_pandas", "DataFrame and Series"),
    "pyarrow": ("allow_arrow", "Table and RecordBatch"),
    "torch": ("allow_torch", "tensors, such as those of a module's state_dict()"),
}
_allowed: dict[tuple[str, str], Any] = {}
#: Called after each `allow`.
on_change: list[Callable[[], None]] = []


def allow(*classes: Class) -> Class:
    """Allows messages to contain instances of these classes, in all queues of this process.

    It is also a class decorator. An instance is made by the class's ``__new__``, or by a call of
    the class if its ``__reduce__`` returns one, and then gets its state. The sender chooses the
    arguments and the state, and ``__init__`` may not run, so the class's ``__new__``,
    ``__setstate__`` and ``__reduce__`` must accept any values. Enums and exceptions of your own are
    allowed in the same way.

    Returns:
        The first class.

    Raises:
        TypeError: An argument is not a class, or is one of arrays, of which receivers make plain
            ones alone.
    """
    for found in classes:
        if not isinstance(found, type):
            raise TypeError(f"allow takes classes, not {found!r}")
        base = plain_base(found)
        if base is not None:
            raise TypeError(
                f"allow cannot help, because {subclass_refusal(found, base)}. If its __reduce__ "
                "returns a function of yours, allow that with PickleSerializer.allow_by_name"
            )
        _allowed[_module_name(found.__module__), found.__qualname__] = found
    for announce in on_change:
        announce()
    return classes[0]


def allow_arrow() -> None:
    """Allows messages to contain Arrow's `Table` and `RecordBatch`, in all queues of this process.

    They are sent as Arrow's IPC streams, which a receiver that has called this validates, and whose
    memory it uses. Extension types that the receiver has registered read their own metadata.

    Raises:
        ImportError: pyarrow or NumPy is not installed, or pyarrow is older than 15.
    """
    _allow_library("pyarrow")


def allow_pandas() -> None:
    """Allows messages to contain pandas' `DataFrame` and `Series`, in all queues of this process.

    They are sent as arrays, lists and names, from which a receiver that has called this makes them
    again. ``attrs`` and the ``freq`` of an index are not sent.

    Raises:
        ImportError: pandas or NumPy is not installed.
    """
    _allow_library("pandas")


def allow_torch() -> None:
    """Allows messages to contain PyTorch's tensors, in all queues of this process.

    They are sent as data alone, and a receiver that has called this makes tensors on the CPU of it.
    `put` refuses a tensor that is elsewhere, requires grad, or is sparse, and names what to call.
    `torch.Size`, `torch.dtype` and `torch.device` are sent as well.

    Raises:
        ImportError: torch or NumPy is not installed.
    """
    _allow_library("torch")


def _allow_library(name: str) -> None:
    for needed in ("numpy", name):
        try:
            importlib.import_module(needed)
        except ImportError as error:
            reason = f"{_LIBRARIES[name][0]} needs {needed}: pip install {needed}"
            raise ImportError(reason, name=needed) from error
    values = importlib.import_module(f"ucall.queue.utils.{name}_values")
    optional.update(values.reducers())
    for function in values.__all__:
        if function != "reducers":
            _allowed[values.__name__, function] = getattr(values, function)
    for announce in on_change:
        announce()


class AllowedNames:
    """A set of modules and of single names in modules. See `allow_by_name`."""

    __slots__ = ("_names",)

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(names)

    def __call__(self, name: str) -> bool:
        """Whether ``"module.name"``, or a module that it is in, is in the set."""
        parts = name.split(".")
        return any(".".join(parts[:count]) in self._names for count in range(1, len(parts) + 1))

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def permits(self, module: str, name: str, found: object) -> bool:
        """Whether the object that has this name may be used.

        Modules and the builtins that are never allowed may not, under any name. An object that the
        module only imports may be used if the set has its name here.
        """
        if id(found) in _NEVER or isinstance(found, types.ModuleType):
            return False
        defined_in = getattr(found, "__module__", None)
        return f"{module}.{name}" in self._names or _module_name(defined_in) == module


def allow_by_name(*names: str) -> AllowedNames:
    """Makes an ``allow`` for `PickleSerializer` of modules and single names.

    ``allow_by_name("fractions", "app.User")`` allows all that ``fractions`` defines, and ``User``
    of ``app``. A sender may call these with any arguments. Never allowed in this way are objects
    that a module imports, attributes of objects that it defines (nested classes included), and
    ``eval``, ``exec``, ``compile``, ``open``, ``getattr``, ``setattr``, ``delattr``,
    ``__import__``, ``globals``, ``vars``, ``input`` and ``breakpoint``.
    """
    return AllowedNames(names)


def find(allow: Callable[[str], object] | None, module: str, name: str) -> Any:
    """The object that a message names, if the program has allowed it.

    Raises:
        pickle.UnpicklingError: The name is not allowed.
    """
    module = _module_name(module)
    found = _allowed.get((module, name))
    if found is not None:
        return found
    if isinstance(allow, AllowedNames):
        # A dotted name could reach any object through attributes.
        if "." not in name and allow(f"{module}.{name}"):
            found = _imported(module, name)
            if allow.permits(module, name, found):
                return found
    elif allow is not None and allow(f"{module}.{name}"):
        return _imported(module, name)
    raise pickle.UnpicklingError(refusal(f"{module}.{name}"))


def _module_name(name: Any) -> Any:
    """The same name for the main module in a program and in the children of `multiprocessing`."""
    return "__main__" if name == "__mp_main__" else name


def refusal(name: str) -> str:
    """The reason for which a message with this name is refused, and what to do."""
    for library, (function, values) in _LIBRARIES.items():
        if name.startswith((f"{library}.", f"ucall.queue.utils.{library}_values.")):
            call = f"call nq.{function}() on both sides, which allows {values}"
            return f"{name} is not allowed: {call}"
    last = name.rpartition(".")[2]
    return (
        f"{name} is not allowed: to receive this class of yours, call nq.allow({last}) there, or "
        f"use PickleSerializer(allow=PickleSerializer.allow_by_name({name!r}))"
    )


def accepted_names(allow: Callable[[str], object] | None) -> list[str] | None:
    """The names that `find` finds, as a side announces them: ``app.Job``, or ``app*`` for all that
    is in ``app``. None if only ``allow`` can decide.
    """
    if allow is not None and not isinstance(allow, AllowedNames):
        return None
    names = [f"{module}.{name}" for module, name in list(_allowed)]
    return names + [f"{name}*" for name in allow or ()]


def _imported(module: str, name: str) -> Any:
    importlib.import_module(module)
    found: Any = sys.modules[module]
    for part in name.split("."):
        found = getattr(found, part)
    return found
