"""Arguments that come as texts: those of prompts, and the variables of resource templates.

MCP sends both as strings, so the types of such a parameter are those that one string can stand for.
"""

from __future__ import annotations

import enum
import inspect
import math
import re
import typing
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from ucall._core import Context
from ucall._functions import signatures
from ucall.errors import RPCError
from ucall.schema.docstrings import Docs
from ucall.types.aliases import resolve_alias
from ucall.types.messages import UnsupportedType, kind_of, type_name, value_text
from ucall.types.parts import is_union

__all__ = ["INVALID_PARAMS", "Argument", "Signature", "describe", "invalid", "members_of"]

INVALID_PARAMS = -32602

_INTEGER = re.compile(r"[+-]?[0-9]{1,4300}")
#: Python's own also takes spaces, underscores, "nan" and "inf".
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_BOOLEANS = {"true": True, "false": False}


class Argument(NamedTuple):
    """A parameter that takes a text."""

    name: str
    description: str
    is_required: bool
    #: What it expects, for messages.
    expected: str
    #: Builds the value; raises ValueError.
    convert: Callable[[str], object]
    #: The texts that it takes; empty if there is no end of them.
    members: tuple[str, ...]


class Signature(NamedTuple):
    """The parameters of a function that takes texts."""

    arguments: dict[str, Argument]
    #: The name of the parameter that takes the `ucall.Context`.
    context: str | None

    def bind(self, given: Mapping[str, Any], ctx: Context, where: str) -> dict[str, object]:
        """The keyword arguments of a call.

        Raises:
            RPCError: Arguments are missing, unexpected or wrong; ``data`` has a line for each.
        """
        problems = []
        bound: dict[str, object] = {}
        for name, argument in self.arguments.items():
            text = given.get(name)
            if text is None:
                if argument.is_required:
                    problems.append(f"{where}.{name}: missing, expected {argument.expected}")
            elif not isinstance(text, str):
                problems.append(f"{where}.{name}: expected a string, got {kind_of(text)}")
            else:
                try:
                    bound[name] = argument.convert(text)
                except ValueError:
                    got = value_text(text)
                    problems.append(f"{where}.{name}: expected {argument.expected}, got {got}")
        expected = ", ".join(self.arguments) or "no arguments"
        problems += [
            f"{where}.{name}: unexpected, expected {expected}"
            for name in given
            if name not in self.arguments
        ]
        if problems:
            raise invalid("\n".join(problems))
        if self.context is not None:
            bound[self.context] = ctx
        return bound


def invalid(data: object, message: str = "Invalid params") -> RPCError:
    """The error of wrong params."""
    return RPCError(INVALID_PARAMS, message, data)


def describe(function: Callable[..., object], name: str, docs: Docs) -> Signature:
    """Describes the parameters of a function.

    Raises:
        TypeError: A parameter takes what no text stands for; the message names it.
    """
    hints = signatures.evaluate_annotations(function, name)
    arguments: dict[str, Argument] = {}
    context = None
    for parameter in signatures.inspect_signature(function).parameters.values():
        annotation = hints.get(parameter.name, parameter.annotation)
        try:
            if resolve_alias(annotation) is Context:
                context = parameter.name
                continue
            if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                raise UnsupportedType("a parameter without a name of its own")
            arguments[parameter.name] = _describe(parameter, annotation, docs)
        except UnsupportedType as unsupported:
            raise TypeError(f"{name}: parameter {parameter.name!r}: {unsupported}") from None
    return Signature(arguments, context)


def _describe(parameter: inspect.Parameter, annotation: Any, docs: Docs) -> Argument:
    annotation, is_optional, notes = _unwrapped(annotation)
    described = docs.params.get(parameter.name) or next(iter(notes), "")
    is_required = parameter.default is parameter.empty
    if is_required and is_optional:
        reason = "give it a default, since a text is never None"
        raise UnsupportedType(type_name(parameter.annotation), reason)
    members = members_of(annotation)
    if members:
        expected = "one of " + ", ".join(map(repr, members))
        convert = _member_in(members)
        return Argument(parameter.name, described, is_required, expected, convert, tuple(members))
    if annotation not in _CONVERT:
        reason = "expected str, int, float, bool, a Literal or an Enum, as MCP sends a string"
        raise UnsupportedType(type_name(annotation), reason)
    expected, convert = _CONVERT[annotation]
    listed = tuple(_BOOLEANS) if annotation is bool else ()
    return Argument(parameter.name, described, is_required, expected, convert, listed)


def _unwrapped(annotation: Any) -> tuple[Any, bool, list[str]]:
    """The type in ``Annotated[T | None, "text"]``, whether it may be None, and the texts."""
    annotation = resolve_alias(annotation)
    notes: list[str] = []
    is_optional = False
    while True:
        if typing.get_origin(annotation) is typing.Annotated:
            annotation, *metadata = typing.get_args(annotation)
            notes += [it for it in metadata if isinstance(it, str)]
        elif is_union(annotation):
            others = [it for it in typing.get_args(annotation) if it is not type(None)]
            if len(others) != 1:
                return annotation, is_optional, notes
            (annotation,), is_optional = others, True
        else:
            return annotation, is_optional, notes
        annotation = resolve_alias(annotation)


def members_of(annotation: Any) -> dict[str, object]:
    """The members of a Literal or an Enum by their texts; empty for another type."""
    if typing.get_origin(annotation) is Literal:
        return {_text(it): it for it in typing.get_args(annotation)}
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return {_text(it.value): it for it in annotation}
    return {}


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else str(value)


def _member_in(members: Mapping[str, object]) -> Callable[[str], object]:
    def convert(text: str) -> object:
        if text not in members:
            raise ValueError(text)
        return members[text]

    return convert


def _integer(text: str) -> int:
    if not _INTEGER.fullmatch(text):
        raise ValueError(text)
    return int(text)


def _number(text: str) -> float:
    number = float(text) if _NUMBER.fullmatch(text) else math.inf
    if not math.isfinite(number):
        raise ValueError(text)
    return number


_CONVERT: dict[Any, tuple[str, Callable[[str], object]]] = {
    inspect.Parameter.empty: ("a string", str),
    Any: ("a string", str),
    object: ("a string", str),
    str: ("a string", str),
    int: ("an integer", _integer),
    float: ("a number", _number),
    bool: ("'true' or 'false'", _member_in(_BOOLEANS)),
}
