"""The exceptions for unsupported types and invalid parts, and the names of types and values."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, TypeAlias

__all__ = [
    "Explained",
    "Found",
    "PartError",
    "Takes",
    "UnsupportedType",
    "kind_name",
    "kind_of",
    "require",
    "type_name",
    "value_text",
]

Found: TypeAlias = tuple[str, list[str | int]]
"""The message of an error, and the path to the invalid part."""

Explained: TypeAlias = list[Found]
"""The errors for the caller; empty if the value is valid."""

Takes: TypeAlias = str | tuple[str, Any]
"""A kind (``"int"``), or a kind and its parts (``("list", "int")``)."""

#: Distributions whose name differs from the package's. Messages name no extra of ucall: on PyPI,
#: that name belongs to another project.
_DISTRIBUTIONS = {"PIL": "pillow", "pydantic_core": "pydantic"}

_SHOWN_CHARACTERS_MAX = 60

#: Names of JSON's types that differ from the class's name.
_KINDS = {type(None): "None", bytearray: "bytes", bytes: "bytes", tuple: "list"}


class UnsupportedType(Exception):
    """An annotation, or a part of one, that no library can build.

    Args:
        problem: The annotation, as written.
        reason: The reason, if there is one besides its type.
    """

    def __init__(self, problem: str, reason: str = "") -> None:
        super().__init__(problem, reason)
        self.problem = problem
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.problem} cannot be served" + (f": {self.reason}" if self.reason else "")


class PartError(ValueError):
    """An invalid part of a value.

    Args:
        problem: The message for the caller.
        steps: The path within the part.
        explain: Returns a number of its errors.
    """

    def __init__(
        self,
        problem: str,
        steps: list[str | int],
        explain: Callable[[int], Explained] | None = None,
    ) -> None:
        super().__init__(problem)
        self.problem = problem
        self.steps = steps
        self.explain = explain or (lambda _: [(problem, steps)])


def require(module: str, problem: str) -> Any:
    """Imports an optional module.

    Raises:
        ImportError: It is not installed. The message says what needs it, and how to install it.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        package = module.partition(".")[0]
        how = _DISTRIBUTIONS.get(package, package)
        problem = f"{problem} needs {package}, which is not installed: pip install {how}"
        raise ImportError(problem, name=module) from None


def type_name(annotation: object) -> str:
    """An annotation as written."""
    return annotation.__qualname__ if isinstance(annotation, type) else str(annotation)


def kind_of(value: object) -> str:
    """The name of a JSON value's class."""
    return kind_name(type(value))


def kind_name(kind: type) -> str:
    """The name of a class of JSON values."""
    return _KINDS.get(kind, kind.__name__)


def value_text(value: object) -> str:
    """A short JSON value as written; a list or a dict by its class."""
    if isinstance(value, (list, tuple)):
        return f"list of length {len(value)}"
    if isinstance(value, dict):
        return "dict"
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS_MAX else f"{text[:_SHOWN_CHARACTERS_MAX]}…"
