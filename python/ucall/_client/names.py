"""A server's methods as attributes: ``client.sum``, ``client.math.sum``."""

from __future__ import annotations

import keyword
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeAlias, TypeVar

__all__ = ["Call", "Method", "Methods", "check_public", "described_methods", "names_below"]

T = TypeVar("T")

Call: TypeAlias = Callable[[str, tuple[object, ...], dict[str, object]], T]
"""Calls a method: its name, params by position, params by name."""


class Method(Generic[T]):
    """A method of a server. Its attributes are methods with a dotted name."""

    __slots__ = ("_call", "_name")

    def __init__(self, call: Call[T], name: str) -> None:
        self._call = call
        self._name = name

    def __call__(self, /, *args: object, **kwargs: object) -> T:
        """Calls the method with params by position or by name."""
        return self._call(self._name, args, kwargs)

    def __getattr__(self, name: str) -> Method[T]:
        check_public(self, name)
        return Method(self._call, f"{self._name}.{name}")

    def __dir__(self) -> Iterable[str]:
        """With the methods below it, as `ClientBase.rpc` describes."""
        return [*object.__dir__(self), *names_below(f"{self._name}.", _known_to(self._call))]

    def __repr__(self) -> str:
        return f"<ucall method {self._name}>"


class Methods(Generic[T]):
    """A server's methods in one way of calling them, such as ``client.stream``."""

    __slots__ = ("_call",)

    def __init__(self, call: Call[T]) -> None:
        self._call = call

    def call(self, method: str, /, *args: object, **kwargs: object) -> T:
        """Calls a method of any name."""
        return self._call(method, args, kwargs)

    def __getattr__(self, name: str) -> Method[T]:
        check_public(self, name)
        return Method(self._call, name)

    def __dir__(self) -> Iterable[str]:
        """With the server's methods, as `ClientBase.rpc` describes."""
        return [*object.__dir__(self), *names_below("", _known_to(self._call))]


def described_methods(description: Any) -> list[str]:
    """The names of the methods in the result of ``rpc.discover``, which may be any value."""
    methods = description.get("methods") if isinstance(description, dict) else None
    found = [it.get("name") for it in methods or () if isinstance(it, dict)]
    return [it for it in found if isinstance(it, str)]


def names_below(prefix: str, methods: Iterable[str]) -> set[str]:
    """The attributes that continue a name, of those that can be written as attributes."""
    names = {it[len(prefix) :].partition(".")[0] for it in methods if it.startswith(prefix)}
    return {it for it in names if it.isidentifier() and it[0] != "_" and not keyword.iskeyword(it)}


def _known_to(call: Call[Any]) -> Iterable[str]:
    """The methods that the client of a call knows, if that is its own."""
    known: Iterable[str] = getattr(getattr(call, "__self__", None), "_known_methods", ())
    return known


def check_public(owner: object, name: str) -> None:
    """Reserves names with an underscore for Python and its tools.

    Raises:
        AttributeError: The name starts with an underscore.
    """
    if name.startswith("_"):
        raise AttributeError(f"{type(owner).__name__!r} object has no attribute {name!r}")
