"""Values of the command line: what a text means, alone or as a type says."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any

__all__ = [
    "NAME",
    "TYPES",
    "InexactNumberError",
    "UsageError",
    "exact_json",
    "infer",
    "is_number",
    "is_param",
    "parse_as",
    "shortened",
]

_INTEGER = re.compile(r"-?(0|[1-9][0-9]*)")
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
#: A name before the = of a file; else the = is a part of the path.
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_WORDS = {"true": True, "false": False, "null": None}
_BOOLS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


class UsageError(Exception):
    """The command line is invalid; the message is one line."""


class InexactNumberError(UsageError):
    """A number without a type would be sent with another value, since the client writes floats."""

    def __init__(self, text: str) -> None:
        super().__init__(
            f"a float cannot hold {shortened(text)}; name:str= sends the text, "
            "name:float= or name:json= the nearest float"
        )


def infer(text: str) -> object:
    """Parses a value without a type: JSON where it is valid, else text.

    JSON is a number, true, false, null, an array or an object. ``007`` and ``1_000`` are text.

    Raises:
        InexactNumberError: See `exact_json`.
    """
    if text in _WORDS:
        return _WORDS[text]
    try:
        if _INTEGER.fullmatch(text):
            return int(text)
        if is_number(text):
            return _exact(text)
        if text[:1] in ("[", "{"):
            return exact_json(text)
    except (ValueError, RecursionError):
        pass
    return text


def parse_as(kind: str, text: str) -> object:
    """Parses a value of a type of ``name:type=value``; without a type, as `infer` does.

    Raises:
        InexactNumberError: See `infer`.
        ValueError: The text has another type.
    """
    return TYPES[kind](text) if kind else infer(text)


def is_number(text: str) -> bool:
    """Whether the text is a number of JSON."""
    return _NUMBER.fullmatch(text) is not None


def is_param(text: str, *, is_first: bool) -> bool:
    """Whether a word among files is a param by name: ``name:type=value``, or after the first file a
    ``name=value`` that is JSON or ``@path``, which as a path would be a rare one."""
    head, found, value = text.partition("=")
    name, typed, kind = head.partition(":")
    if not found or not NAME.fullmatch(name):
        return False
    if typed or is_first:
        return kind in TYPES
    return value.startswith("@") or is_number(value) or not isinstance(infer(value), str)


def exact_json(text: str) -> Any:
    """Parses JSON whose numbers are sent with the value that they have in the text.

    Raises:
        InexactNumberError: A float would change a number.
        ValueError: The text is not JSON.
    """
    numbers: list[str] = []

    def note(number: str) -> float:
        numbers.append(number)
        return float(number)

    value = _strict_json(text, note)
    for number in numbers:  # Only now, because text that is not JSON may have any numbers.
        _exact(number)
    return value


def _exact(text: str) -> float:
    from decimal import Context, Decimal

    value = float(text)
    # Programs print a float with 15 to 17 digits. Without traps an exponent out of range makes NaN,
    # which equals nothing.
    printed = [Decimal(f"{value:.{digits}g}") for digits in (15, 16, 17)]
    if Decimal(text, Context(traps=[])) not in printed:
        raise InexactNumberError(text)
    return value


def _integer(text: str) -> int:
    if not _INTEGER.fullmatch(text):
        raise ValueError
    return int(text)


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError
    return value


def _bool(text: str) -> bool:
    try:
        return _BOOLS[text.lower()]
    except KeyError:
        raise ValueError from None


def _strict_json(text: str, parse_float: Callable[[str], float] = float) -> Any:
    def reject(constant: str) -> None:
        raise ValueError(constant)

    try:
        return json.loads(text, parse_float=parse_float, parse_constant=reject)
    except RecursionError:
        raise ValueError from None


#: By the name of the type in ``name:type=value``.
TYPES: dict[str, Callable[[str], object]] = {
    "int": _integer,
    "float": _finite,
    "bool": _bool,
    "str": str,
    "json": _strict_json,
    "text": str.encode,
}


def shortened(value: str) -> str:
    """A value for a message."""
    return repr(value if len(value) <= 60 else value[:60] + "…")
