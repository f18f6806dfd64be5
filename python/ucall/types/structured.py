"""Builds dataclasses, dates, unions and similar types from JSON text, by ``msgspec``.

`explain` rewrites the errors of ``msgspec``. It follows the path of the error through the type and
through the value, to name the expected type with its constraints, and the value. Where the path
enters a union it keeps the text of ``msgspec``.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ucall.types import forms
from ucall.types.collisions import with_collision_check
from ucall.types.expected import described
from ucall.types.messages import UnsupportedType, kind_of, require, type_name, value_text
from ucall.types.validation_errors import Search

if TYPE_CHECKING:
    from ucall.types.annotations import Takes
    from ucall.types.registry import Explained, Found, TypeRegistry

__all__ = ["STEP", "describe", "explain_part", "form_decoder", "info_of", "nodes", "parsed"]

_PATH = re.compile(r"(?P<key>`key` in )?`\$(?P<path>[^`]*)`")
_PATH_LENGTH_MAX = 4096
"""The longest path of the deepest type. A longer one is text that the caller sent."""

STEP = re.compile(r"\.([^.\[]+)|\[(\d+)\]|\[(\.\.\.)\]")
_FIELD = re.compile(r"Object (?P<what>missing required|contains unknown) field `(?P<name>.*)`")
_OURS = ("Expected ", "Invalid ", "Number out of range", "Integer value out of range")
_GOT = re.compile(r"Expected .*, got `(?P<got>\w+)`", re.DOTALL)
_WORDS = {"`array`": "list", "`object`": "dict", "`null`": "None", "`": ""}
_KINDS = {"array": "list", "object": "dict", "null": "None"}

_ANY_KEY = "..."

_UNKNOWN: Any = object()
"""Stands for a type or a value that the path does not lead to."""


def describe(annotation: Any, registry: TypeRegistry) -> Takes:
    """Describes an annotation that ``msgspec`` builds, with registered types as parts.

    Raises:
        UnsupportedType: ``msgspec`` cannot build it, or has no decoder for a part of it.
        ImportError: ``msgspec`` is not installed.
    """
    require("msgspec", type_name(annotation))
    require("msgspec.inspect", type_name(annotation))
    try:
        form = forms.Forms(registry, explain_part).of(annotation)
        decoder, info = form_decoder(form, registry)
    except NameError as error:
        raise UnsupportedType(
            type_name(annotation), f"it refers to an unknown name: {error}"
        ) from None
    except (NotImplementedError, TypeError, ValueError) as error:
        raise _unsupported(annotation, str(error)) from None
    hook = functools.partial(forms.decode_hook, registry)
    # ``msgspec`` converts no decoded value to text.
    has_raw = any(type(node).__name__ == "RawType" for _, node in nodes(info, "", set()))
    search = None if has_raw else Search(form, hook, explain_part)
    explain_error = functools.partial(explain, info, search)
    return "custom", (
        "text",
        *with_collision_check(annotation, decoder.decode, explain_error),
        described(info),
    )


def form_decoder(form: Any, registry: TypeRegistry) -> tuple[Any, Any]:
    """The decoder and the description of an annotation that `forms` has completed.

    Raises:
        UnsupportedType: It has a part that neither ``msgspec`` nor the server can build.
    """
    import msgspec

    info = msgspec.inspect.type_info(form)
    decoder = msgspec.json.Decoder(form, dec_hook=functools.partial(forms.decode_hook, registry))
    for where, node in nodes(info, "", set()):
        kind = getattr(node, "cls", None)
        is_custom = type(node).__name__ == "CustomType" and forms.part_in(kind) is None
        if is_custom and registry.decoder_of(kind) is None:
            raise UnsupportedType(where + type_name(form if node is info else kind))
    return decoder, info


def explain(
    info: Any,
    search: Search | None,
    error: BaseException,
    raw: bytes,
    limit: int,
) -> Explained:
    """The message and the path of an error that ``msgspec`` raised for a value of a type, and of
    the errors after it."""
    import msgspec

    if not isinstance(error, msgspec.DecodeError):
        return []
    document = _document(raw)
    first = _explain(info, error, document)
    if limit == 1 or document is _UNKNOWN or search is None:
        return [first]
    found = search.errors_of(document, len(raw), limit)
    if found and _ANY_KEY in first[1]:
        return found
    return [first, *(it for it in found if it[1] != first[1])]


def explain_part(form: Any, error: BaseException, value: Any) -> Found:
    """The same of the first error of a part that was converted from its decoded value."""
    return _explain(info_of(form), error, value)


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


def _explain(info: Any, error: BaseException, document: Any) -> Found:
    problem, path, is_key = parsed(str(error))
    steps = _steps(path)
    if is_key:
        return f"key: {_translated(problem)}", steps
    if isinstance(error.__cause__, forms.PartError):
        return error.__cause__.problem, [*steps, *error.__cause__.steps]
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


def parsed(message: str) -> tuple[str, str, bool]:
    """Splits a message into the problem, the path, and whether a key is invalid. The path is last:
    text of the caller's that looks like one may precede it."""
    problem, _, path_text = message.rpartition(" - at ")
    found = _PATH.fullmatch(path_text) if len(path_text) <= _PATH_LENGTH_MAX else None
    return (problem, found["path"], bool(found["key"])) if found else (message, "", False)


def _steps(path: str) -> list[str | int]:
    """The keys and indices of a path. ``msgspec`` omits the keys of plain dicts."""
    return [
        int(index) if index else _ANY_KEY if any_key else name
        for name, index, any_key in STEP.findall(path)
    ]


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
        tags = () if getattr(leaf, "tag", None) is None else (_UNKNOWN,)
        items = (*tags, *(field.type for field in leaf.fields))
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
                yield from nodes(part.type, f"{node.cls.__name__}.{part.encode_name}: ", seen)
            elif type(part).__module__ == "msgspec.inspect":
                yield from nodes(part, where, seen)
