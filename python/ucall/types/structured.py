"""Builds dataclasses, dates, unions and similar types from JSON text, by ``msgspec``.

`explain` rewrites the errors of ``msgspec``. It follows the path of the error through the type and
through the value, to name the expected type with its constraints, and the value. Where the path
enters a union it keeps the text of ``msgspec``.
"""

from __future__ import annotations

import functools
import re
import typing
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

from ucall.types.annotations import parts_of
from ucall.types.collisions import with_collision_check
from ucall.types.expected import described
from ucall.types.messages import UnsupportedType, kind_of, require, type_name, value_text
from ucall.types.models import is_model

if TYPE_CHECKING:
    from ucall.types.annotations import Takes
    from ucall.types.registry import Explained, TypeRegistry

__all__ = ["describe", "nodes"]

Decode: TypeAlias = Callable[[bytes], Any]

_PATH = re.compile(r"(?P<key>`key` in )?`\$(?P<path>[^`]*)`")
_PATH_LENGTH_MAX = 4096
"""The longest path of the deepest type. A longer one is text that the caller sent."""

_STEP = re.compile(r"\.([^.\[]+)|\[(\d+)\]|\[(\.\.\.)\]")
_FIELD = re.compile(r"Object (?P<what>missing required|contains unknown) field `(?P<name>.*)`")
_OURS = ("Expected ", "Invalid ", "Number out of range", "Integer value out of range")
_PART = re.compile(r"\$(?P<path>(?:\.[^.\[:]+|\[\d+\])*): (?P<what>.*)", re.DOTALL)
_GOT = re.compile(r"Expected .*, got `(?P<got>\w+)`", re.DOTALL)
_WORDS = {"`array`": "list", "`object`": "dict", "`null`": "None", "`": ""}
_KINDS = {"array": "list", "object": "dict", "null": "None"}

_ANY_KEY = "..."

_SEARCH_BYTES_MAX = 1 << 20
"""JSON text that the search for a key may decode again."""

_UNKNOWN: Any = object()
"""Stands for a type or a value that the path does not lead to."""


def describe(annotation: Any, registry: TypeRegistry) -> Takes:
    """Describes an annotation that ``msgspec`` builds, with registered types as parts.

    Raises:
        UnsupportedType: ``msgspec`` cannot build it, or has no decoder for a part of it.
        ImportError: ``msgspec`` is not installed.
    """
    msgspec = require("msgspec", type_name(annotation))
    inspect = require("msgspec.inspect", type_name(annotation))
    try:
        info = inspect.type_info(annotation)
        decoder = msgspec.json.Decoder(annotation, dec_hook=registry.decode_part)
    except NameError as error:
        raise UnsupportedType(
            type_name(annotation), f"it refers to an unknown name: {error}"
        ) from None
    except (NotImplementedError, TypeError, ValueError) as error:
        raise _unsupported(annotation, str(error)) from None
    _check_classes(annotation, info, registry)
    explain_error = functools.partial(explain, info, decoder.decode)
    return "custom", (
        "text",
        *with_collision_check(annotation, decoder.decode, explain_error),
        described(info),
    )


def explain(info: Any, decode: Decode, error: BaseException, raw: bytes) -> Explained:
    """The message and the path of an error that ``msgspec`` raised for a value of a type."""
    import msgspec

    if not isinstance(error, msgspec.DecodeError):
        return None
    problem, path, is_key = _parsed(str(error))
    document = _document(raw)
    steps = _steps(path, document, lambda: _message(decode, document) == str(error), len(raw))
    if is_key:
        return f"key: {_translated(problem)}", steps
    part = _PART.fullmatch(problem)
    if part:
        return part["what"], [*steps, *_steps(part["path"], None, lambda: False, 0)]
    leaf, value = _resolve(info, document, steps)
    field = _FIELD.fullmatch(problem)
    if field:
        return _field(leaf, field["what"], field["name"]), [*steps, field["name"]]
    return _explained(problem, leaf, value), steps


def _document(raw: bytes) -> Any:
    """The value of a text; unknown if a number in it is out of the range of every type."""
    import msgspec

    try:
        return msgspec.json.decode(raw)
    except msgspec.DecodeError:
        return _UNKNOWN


def _parsed(message: str) -> tuple[str, str, bool]:
    """Splits a message into the problem, the path, and whether a key is invalid. The path is last:
    text of the caller's that looks like one may precede it."""
    problem, _, path_text = message.rpartition(" - at ")
    found = _PATH.fullmatch(path_text) if len(path_text) <= _PATH_LENGTH_MAX else None
    return (problem, found["path"], bool(found["key"])) if found else (message, "", False)


def _steps(
    path: str, document: Any, is_same_error: Callable[[], bool], bytes_in_all: int
) -> list[str | int]:
    """The keys and indices of a path. ``msgspec`` omits the keys of plain dicts: this finds such a
    key by decoding each member alone, until one causes the same error."""
    steps: list[str | int] = []
    value = document
    for name, index, any_key in _STEP.findall(path):
        step: str | int = int(index) if index else name
        if any_key:
            step = _ANY_KEY
            if isinstance(value, dict) and len(value) * bytes_in_all <= _SEARCH_BYTES_MAX:
                step = _failing_key(value, is_same_error)
        steps.append(step)
        value = _part_of_value(value, step)
    return steps


def _failing_key(members: dict[str, Any], is_same_error: Callable[[], bool]) -> str:
    """The key whose member alone causes the error. Restores the dict."""
    every = dict(members)
    try:
        for key, value in every.items():
            members.clear()
            members[key] = value
            if is_same_error():
                return key
        return _ANY_KEY
    finally:
        members.clear()
        members.update(every)


def _message(decode: Decode, document: Any) -> str:
    import msgspec

    try:
        decode(msgspec.json.encode(document))
    except msgspec.DecodeError as error:
        return str(error)
    return ""


def _field(leaf: Any, problem: str, name: str) -> str:
    if problem == "contains unknown":
        return "unexpected"
    expected = _part(leaf, _UNKNOWN, name)[0]
    return "missing" if expected is _UNKNOWN else f"missing, expected {described(expected)}"


def _explained(problem: str, leaf: Any, value: Any) -> str:
    if not problem.startswith(_OURS):
        return problem  # The message of a decoder or of a class.
    if leaf is _UNKNOWN or value is _UNKNOWN or type(leaf).__name__ == "CustomType":
        return _translated(problem)
    got = _GOT.fullmatch(problem)
    if got and _KINDS.get(got["got"], got["got"]) == kind_of(value):
        return f"expected {described(leaf)}, got {kind_of(value)}"
    return f"expected {described(leaf)}, got {value_text(value)}"


def _translated(problem: str) -> str:
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
        others = [one for one in leaf.types if _part_of_type(one, step) is not _UNKNOWN]
        return _part_of_type(others[0], step) if len(others) == 1 else _UNKNOWN
    if isinstance(step, int):
        return _item(leaf, step)
    for field in getattr(leaf, "fields", ()):
        if field.encode_name == step:
            return field.type
    return getattr(leaf, "value_type", _UNKNOWN)


def _item(leaf: Any, index: int) -> Any:
    items: tuple[Any, ...] = getattr(leaf, "item_types", ())
    if type(leaf).__name__ == "NamedTupleType" or getattr(leaf, "array_like", False):
        items = tuple(field.type for field in leaf.fields)
    if index < len(items):
        return items[index]
    return getattr(leaf, "item_type", _UNKNOWN)


def _part_of_value(value: Any, step: str | int) -> Any:
    if isinstance(value, dict):
        return value.get(step, _UNKNOWN)
    if isinstance(value, list) and isinstance(step, int) and step < len(value):
        return value[step]
    return _UNKNOWN


def _unsupported(annotation: Any, reason: str) -> UnsupportedType:
    is_generic = reason.startswith("Type '") and reason.endswith("' is not supported")
    return UnsupportedType(type_name(annotation), "" if is_generic else _translated(reason))


def _check_classes(annotation: Any, info: Any, registry: TypeRegistry) -> None:
    """Refuses types with parts that neither ``msgspec`` nor the server can build."""
    for part in parts_of(annotation):
        registry.decoder_of(part)
    for where, node in nodes(info, "", set()):
        kind = getattr(node, "cls", None)
        is_custom = type(node).__name__ == "CustomType"
        if is_custom and registry.decoder_of(kind) is None and not is_model(kind):
            raise UnsupportedType(where + type_name(annotation if node is info else kind))
        if not is_custom and kind is not None and registry.is_registered(kind):
            raise UnsupportedType(
                where + type_name(kind), "msgspec builds it there, not the registered decoder"
            )
        if kind is not None and hasattr(kind, "__annotations__") and not is_custom:
            _check_arrays(kind, registry)


def _check_arrays(kind: type, registry: TypeRegistry) -> None:
    """Refuses fields that are arrays of an unsupported dtype: `msgspec.inspect` omits dtypes."""
    for name, hint in typing.get_type_hints(kind, include_extras=True).items():
        try:
            for part in parts_of(hint):
                registry.decoder_of(part)
        except UnsupportedType as unsupported:
            raise UnsupportedType(
                f"{kind.__name__}.{name}: {unsupported.problem}", unsupported.reason
            ) from None


def nodes(node: Any, where: str, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """Yields a type's description and all its parts, each with the name of its field."""
    if id(node) in seen:
        return
    seen.add(id(node))
    yield where, node
    for name in getattr(node, "__struct_fields__", ()):
        parts = getattr(node, name)
        for part in parts if isinstance(parts, tuple) else (parts,):
            if type(part).__name__ == "Field":
                yield from nodes(part.type, f"{node.cls.__name__}.{part.name}: ", seen)
            elif type(part).__module__ == "msgspec.inspect":
                yield from nodes(part, where, seen)
