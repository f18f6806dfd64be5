"""What cannot be served, and how types and values are called in messages."""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["UnsupportedType", "kind_name", "kind_of", "require", "type_name", "value_text"]

#: What brings a package that goes by another name. Never an extra of ours: a package index may know
#: another project by our name.
_DISTRIBUTIONS = {"PIL": "pillow", "pydantic_core": "pydantic"}

_SHOWN_CHARACTERS_MAX = 60

#: As Python names what JSON has.
_KINDS = {type(None): "None", bytearray: "bytes", bytes: "bytes", tuple: "list"}


class UnsupportedType(Exception):
    """An annotation, or a part of one, that no conversion is there for.

    Args:
        what: The annotation, as it is written.
        why: More about it, if there is more to say.
    """

    def __init__(self, problem: str, reason: str = "") -> None:
        super().__init__(problem, reason)
        self.problem = problem
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.problem} cannot be served" + (f": {self.reason}" if self.reason else "")


def require(module: str, problem: str) -> Any:
    """Imports an optional module.

    Raises:
        ImportError: It is not installed. The message says what needs it, and how to get it.
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
    """An annotation as it is written."""
    return annotation.__qualname__ if isinstance(annotation, type) else str(annotation)


def kind_of(value: object) -> str:
    """What a JSON value is, as Python names it."""
    return kind_name(type(value))


def kind_name(kind: type) -> str:
    """The class of a JSON value, as messages name it."""
    return _KINDS.get(kind, kind.__name__)


def value_text(value: object) -> str:
    """A JSON value in a few words: short ones whole, long ones by what they are."""
    if isinstance(value, (list, tuple)):
        return f"list of length {len(value)}"
    if isinstance(value, dict):
        return "dict"
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS_MAX else f"{text[:_SHOWN_CHARACTERS_MAX]}…"
