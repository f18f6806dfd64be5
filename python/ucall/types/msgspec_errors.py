"""Rewrites the errors of ``msgspec``.

It follows the path of an error through the type and through the value, to name the expected type
with its constraints, and the value. Where the path enters a union it keeps the text of ``msgspec``.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Any

from ucall.types.expected import described
from ucall.types.messages import PartError, kind_of, value_text

if TYPE_CHECKING:
    from ucall.types.messages import Found

__all__ = [
    "ANY_KEY",
    "STEP",
    "UNKNOWN",
    "explain_part",
    "explain_value",
    "info_of",
    "parsed",
    "translated",
]

_PATH = re.compile(r"(?P<key>`key` in )?`\$(?P<path>[^`]*)`")
_PATH_LENGTH_MAX = 4096
"""The longest path of the deepest type. A longer one is text that the caller sent."""

STEP = re.compile(r"\.([^.\[]+)|\[(\d+)\]|\[(\.\.\.)\]")
_FIELD = re.compile(r"Object (?P<what>missing required|contains unknown) field `(?P<name>.*)`")
_OURS = ("Expected ", "Invalid ", "Number out of range", "Integer value out of range")
_GOT = re.compile(r"Expected .*, got `(?P<got>\w+)`", re.DOTALL)
_WORDS = {"`array`": "list", "`object`": "dict", "`null`": "None", "`": ""}
_KINDS = {"array": "list", "object": "dict", "null": "None"}

ANY_KEY = "..."

UNKNOWN: Any = object()
"""Stands for a type or a value that the path does not lead to."""


def explain_part(form: Any, error: BaseException, value: Any) -> Found:
    """The same for a type, of which the description is looked up."""
    return explain_value(info_of(form), error, value)


def info_of(form: Any) -> Any:
    """The description of a type, which takes long to make."""
    import msgspec

    try:
        return _info_of(form)
    except TypeError:  # It has no hash.
        return msgspec.inspect.type_info(form)


@functools.lru_cache(maxsize=1_000)
def _info_of(form: Any) -> Any:
    import msgspec

    return msgspec.inspect.type_info(form)


def explain_value(info: Any, error: BaseException, document: Any) -> Found:
    """The message and the path of an error, for the description of a type and its value."""
    problem, path, is_key = parsed(str(error))
    steps = _steps(path)
    if is_key:
        return f"key: {translated(problem)}", steps
    if isinstance(error.__cause__, PartError):
        return error.__cause__.problem, [*steps, *error.__cause__.steps]
    leaf, value = _resolve(info, document, steps)
    field = _FIELD.fullmatch(problem)
    if field:
        return _field(leaf, field["what"], field["name"]), [*steps, field["name"]]
    return _explained(problem, leaf, value), steps


def parsed(message: str) -> tuple[str, str, bool]:
    """Splits a message into the problem, the path, and whether a key is invalid. The path is last:
    text of the caller's that looks like one may precede it."""
    problem, _, path_text = message.rpartition(" - at ")
    found = _PATH.fullmatch(path_text) if len(path_text) <= _PATH_LENGTH_MAX else None
    return (problem, found["path"], bool(found["key"])) if found else (message, "", False)


def _steps(path: str) -> list[str | int]:
    """The keys and indices of a path. ``msgspec`` omits the keys of plain dicts."""
    return [
        int(index) if index else ANY_KEY if any_key else name
        for name, index, any_key in STEP.findall(path)
    ]


def _field(leaf: Any, problem: str, name: str) -> str:
    if problem == "contains unknown":
        return "unexpected"
    expected = _part(leaf, UNKNOWN, name)[0]
    return "missing" if expected is UNKNOWN else f"missing, expected {described(expected)}"


def _explained(problem: str, leaf: Any, value: Any) -> str:
    if not problem.startswith(_OURS):
        return problem  # The message of a decoder or of a class.
    if leaf is UNKNOWN or value is UNKNOWN or type(leaf).__name__ == "CustomType":
        return translated(problem)
    got = _GOT.fullmatch(problem)
    if got and _KINDS.get(got["got"], got["got"]) == kind_of(value):
        return f"expected {described(leaf)}, got {kind_of(value)}"
    return f"expected {described(leaf)}, got {value_text(value)}"


def translated(problem: str) -> str:
    """A text of ``msgspec`` in Python's words."""
    for theirs, ours in _WORDS.items():
        problem = problem.replace(theirs, ours)
    return problem[:1].lower() + problem[1:]


def _resolve(leaf: Any, value: Any, steps: list[str | int]) -> tuple[Any, Any]:
    for step in steps:
        leaf, value = _part(leaf, value, step)
    return leaf, value


def _part(leaf: Any, value: Any, step: str | int) -> tuple[Any, Any]:
    """The type and the value that a step leads to."""
    while type(leaf).__name__ == "Metadata":
        leaf = leaf.type
    return _part_of_type(leaf, step), _part_of_value(value, step)


def _part_of_type(leaf: Any, step: str | int) -> Any:
    if type(leaf).__name__ == "UnionType":
        others = [one for one in leaf.types if _part_of_type(one, step) is not UNKNOWN]
        return _part_of_type(others[0], step) if len(others) == 1 else UNKNOWN
    if isinstance(step, int):
        return _item(leaf, step)
    for field in getattr(leaf, "fields", ()):
        if field.encode_name == step:
            return field.type
    return getattr(leaf, "value_type", UNKNOWN)


def _item(leaf: Any, index: int) -> Any:
    items: tuple[Any, ...] = getattr(leaf, "item_types", ())
    if type(leaf).__name__ == "NamedTupleType" or getattr(leaf, "array_like", False):
        tags = () if getattr(leaf, "tag", None) is None else (UNKNOWN,)
        items = (*tags, *(field.type for field in leaf.fields))
    if index < len(items):
        return items[index]
    return getattr(leaf, "item_type", UNKNOWN)


def _part_of_value(value: Any, step: str | int) -> Any:
    if isinstance(value, dict):
        return value.get(step, UNKNOWN)
    if isinstance(value, list) and isinstance(step, int) and step < len(value):
        return value[step]
    return UNKNOWN
