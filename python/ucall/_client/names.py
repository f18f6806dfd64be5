"""A server's methods as attributes: ``client.sum``, ``client.math.sum``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeAlias, TypeVar

__all__ = ["Call", "Method", "Methods", "check_public"]

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


def check_public(owner: object, name: str) -> None:
    """Reserves names with an underscore for Python and its tools.

    Raises:
        AttributeError: The name starts with an underscore.
    """
    if name.startswith("_"):
        raise AttributeError(f"{type(owner).__name__!r} object has no attribute {name!r}")
