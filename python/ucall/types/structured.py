"""Dataclasses, dates, unions and the like: built by ``msgspec`` from the JSON text itself.

``msgspec`` says what did not fit in its own words; `explain` says it in ours. It follows the path
of the error through the type and through the value, and so can tell what was expected there, bounds
and all, and what came. Where the path leads into a union it keeps to what ``msgspec`` said.
"""

from __future__ import annotations

import functools
import re
import typing
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

from ucall.types.annotations import parts_of
from ucall.types.collisions import guarded
from ucall.types.expected import described
from ucall.types.faults import Unserved, kind_of, needed, shown, value_shown
from ucall.types.models import is_model

if TYPE_CHECKING:
    from ucall.types.annotations import Takes
    from ucall.types.registry import Explained, Types

__all__ = ["describe"]

Decode: TypeAlias = Callable[[bytes], Any]

_WAY = re.compile(r"(?P<key>`key` in )?`\$(?P<path>[^`]*)`")
_WAY_LENGTH_MAX = 4096
"""Of types that are nested as deep as can be; one that is longer was made up by the caller."""

_STEP = re.compile(r"\.([^.\[]+)|\[(\d+)\]|\[(\.\.\.)\]")
_FIELD = re.compile(r"Object (?P<what>missing required|contains unknown) field `(?P<name>.*)`")
_OURS = ("Expected ", "Invalid ", "Number out of range", "Integer value out of range")
_PART = re.compile(r"\$(?P<path>(?:\.[^.\[:]+|\[\d+\])*): (?P<what>.*)", re.DOTALL)
_GOT = re.compile(r"Expected .*, got `(?P<got>\w+)`", re.DOTALL)
_WORDS = {"`array`": "list", "`object`": "dict", "`null`": "None", "`": ""}
_KINDS = {"array": "list", "object": "dict", "null": "None"}

_ANY_KEY = "..."

_SEARCH_BYTES_MAX = 1 << 20
"""JSON text that is decoded again at most to find out which key is meant."""

_UNKNOWN: Any = object()
"""A type or a value that the path does not lead to."""


def describe(annotation: Any, known: Types) -> Takes:
    """Describes an annotation that `msgspec` can build, with the types that ``known`` has.

    Raises:
        Unserved: It cannot, or a part of it is nobody's.
        ImportError: It is not installed.
    """
    msgspec = needed("msgspec", shown(annotation))
    inspect = needed("msgspec.inspect", shown(annotation))
    try:
        info = inspect.type_info(annotation)
        decoder = msgspec.json.Decoder(annotation, dec_hook=known.decode_part)
    except NameError as error:
        raise Unserved(shown(annotation), f"it names what cannot be found: {error}") from None
    except (TypeError, ValueError) as error:
        raise _unserved(annotation, str(error)) from None
    _refuse_strangers(annotation, info, known)
    told = functools.partial(explain, info, decoder.decode)
    return "custom", ("text", *guarded(annotation, decoder.decode, told), described(info))


def explain(info: Any, decode: Decode, error: BaseException, raw: bytes) -> Explained:
    """What ``msgspec``'s error tells the caller of a value that should have been of a type."""
    import msgspec

    if not isinstance(error, msgspec.DecodeError):
        return None
    what, path, is_key = _parsed(str(error))
    document = msgspec.json.decode(raw)
    steps = _steps(path, document, lambda: _message(decode, document) == str(error), len(raw))
    if is_key:
        return f"key: {_translated(what)}", steps
    part = _PART.fullmatch(what)
    if part:
        return part["what"], [*steps, *_steps(part["path"], None, lambda: False, 0)]
    leaf, value = _followed(info, document, steps)
    field = _FIELD.fullmatch(what)
    if field:
        return _field(leaf, field["what"], field["name"]), [*steps, field["name"]]
    return _told(what, leaf, value), steps


def _parsed(message: str) -> tuple[str, str, bool]:
    """What is wrong, the way to it, and whether it is a key. In front of the way, which comes last,
    there may be what the caller has sent, and that may look like one."""
    what, _, way = message.rpartition(" - at ")
    found = _WAY.fullmatch(way) if len(way) <= _WAY_LENGTH_MAX else None
    return (what, found["path"], bool(found["key"])) if found else (message, "", False)


def _steps(
    path: str, document: Any, is_the_same: Callable[[], bool], bytes_in_all: int
) -> list[str | int]:
    """The keys and indices that a path consists of. It leaves out a key of a dict that is no class:
    that key is found by trying which one causes the same error alone."""
    steps: list[str | int] = []
    value = document
    for name, index, any_key in _STEP.findall(path):
        step: str | int = int(index) if index else name
        if any_key:
            step = _ANY_KEY
            if isinstance(value, dict) and len(value) * bytes_in_all <= _SEARCH_BYTES_MAX:
                step = _culprit(value, is_the_same)
        steps.append(step)
        value = _part_of_value(value, step)
    return steps


def _culprit(members: dict[str, Any], is_the_same: Callable[[], bool]) -> str:
    """The key whose value causes an error even when it is alone. Leaves the dict as it was."""
    every = dict(members)
    try:
        for key, value in every.items():
            members.clear()
            members[key] = value
            if is_the_same():
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


def _field(leaf: Any, what: str, name: str) -> str:
    if what == "contains unknown":
        return "unexpected"
    expected = _part(leaf, _UNKNOWN, name)[0]
    return "missing" if expected is _UNKNOWN else f"missing, expected {described(expected)}"


def _told(what: str, leaf: Any, value: Any) -> str:
    if not what.startswith(_OURS):
        return what  # A decoder's or a class's own words.
    if leaf is _UNKNOWN or value is _UNKNOWN or type(leaf).__name__ == "CustomType":
        return _translated(what)
    got = _GOT.fullmatch(what)
    if got and _KINDS.get(got["got"], got["got"]) == kind_of(value):
        return f"expected {described(leaf)}, got {kind_of(value)}"
    return f"expected {described(leaf)}, got {value_shown(value)}"


def _translated(what: str) -> str:
    for theirs, ours in _WORDS.items():
        what = what.replace(theirs, ours)
    return what[:1].lower() + what[1:]


def _followed(leaf: Any, value: Any, steps: list[str | int]) -> tuple[Any, Any]:
    for step in steps:
        leaf, value = _part(leaf, value, step)
    return leaf, value


def _part(leaf: Any, value: Any, step: str | int) -> tuple[Any, Any]:
    """Type and value one step further in."""
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


def _unserved(annotation: Any, why: str) -> Unserved:
    is_all_it_says = why.startswith("Type '") and why.endswith("' is not supported")
    return Unserved(shown(annotation), "" if is_all_it_says else _translated(why))


def _refuse_strangers(annotation: Any, info: Any, known: Types) -> None:
    """Refuses classes that neither ``msgspec`` nor the server can build, wherever they are."""
    for part in parts_of(annotation):
        known.decoder_of(part)
    for where, node in _nodes(info, "", set()):
        kind = getattr(node, "cls", None)
        is_stranger = type(node).__name__ == "CustomType"
        if is_stranger and known.decoder_of(kind) is None and not is_model(kind):
            raise Unserved(where + shown(annotation if node is info else kind))
        if not is_stranger and kind is not None and known.is_registered(kind):
            raise Unserved(where + shown(kind), "msgspec builds it there, not what was registered")
        if kind is not None and hasattr(kind, "__annotations__") and not is_stranger:
            _refuse_arrays(kind, known)


def _refuse_arrays(kind: type, known: Types) -> None:
    """Refuses arrays of what cannot be sent, of which the type's description tells nothing."""
    for name, hint in typing.get_type_hints(kind, include_extras=True).items():
        try:
            for part in parts_of(hint):
                known.decoder_of(part)
        except Unserved as unserved:
            raise Unserved(f"{kind.__name__}.{name}: {unserved.what}", unserved.why) from None


def _nodes(node: Any, where: str, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """A type's description and all that it is made of, each with the field that it is in."""
    if id(node) in seen:
        return
    seen.add(id(node))
    yield where, node
    for name in getattr(node, "__struct_fields__", ()):
        parts = getattr(node, name)
        for part in parts if isinstance(parts, tuple) else (parts,):
            if type(part).__name__ == "Field":
                yield from _nodes(part.type, f"{node.cls.__name__}.{part.name}: ", seen)
            elif type(part).__module__ == "msgspec.inspect":
                yield from _nodes(part, where, seen)
