"""Schemas of a description, with members of the right types.

A `Subschema` is a schema as the server wrote it, which has no members for its readers. `Schema` is
what `Document.resolve` makes of it. A member of another type than JSON Schema gives it counts as
absent: the server checks its params itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

__all__ = [
    "BINARY_TYPES",
    "NO_DEFAULT",
    "Schema",
    "Subschema",
    "branches",
    "mapping",
    "merged",
    "read_schema",
    "text_of",
]

#: The types of ``x-ucall`` members: data in base64.
BINARY_TYPES = ("bytes", "array", "image")

#: The default of a schema without one, which may be null.
NO_DEFAULT: Any = object()

#: Longer texts are cut: they are for people.
TEXT_CHARACTERS_MAX = 16_384

_COMPONENTS = "#/components/schemas/"
_NUMBER_MAX = 2.0**1023
_BOUNDS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
_LENGTHS = ("minLength", "maxLength", "minItems", "maxItems")


class Subschema:
    """A schema of a description that was not read yet."""

    __slots__ = ("_value",)

    def __init__(self, value: object) -> None:
        self._value = value

    @property
    def reference(self) -> str:
        """The schema that this one refers to, with other members beside it or without; or an empty
        text."""
        schema = mapping(self._value)
        parts = schema.get("allOf")
        if isinstance(parts, list) and len(parts) == 1:
            schema = mapping(parts[0])
        return text_of(schema, "$ref")

    @property
    def component(self) -> str | None:
        """The name of the component that this schema refers to."""
        reference = self.reference
        if not reference.startswith(_COMPONENTS):
            return None
        return reference.removeprefix(_COMPONENTS).replace("~1", "/").replace("~0", "~")

    @property
    def default(self) -> Any:
        """Its own default, or `NO_DEFAULT`."""
        return mapping(self._value).get("default", NO_DEFAULT)

    @property
    def raw(self) -> object:
        """The JSON value, for `Document` alone."""
        return self._value


@dataclass(frozen=True, slots=True, eq=False)
class Schema:
    """A schema without references and ``allOf``.

    Its members are those of JSON Schema. `choices` are its only values, if it lists them, `bounds`
    the limits of numbers and lengths by keyword, `parts` the alternatives of a union. `others` is
    the schema of the members that `properties` does not name. `binary` is the type of data in
    base64, or an empty text. `characters` is about as much as there is to write of it.
    """

    types: tuple[str, ...] = ()
    title: str = ""
    description: str = ""
    format: str = ""
    pattern: str = ""
    choices: tuple[Any, ...] = ()
    default: Any = NO_DEFAULT
    examples: tuple[Any, ...] = ()
    bounds: Mapping[str, int | float] = field(default_factory=dict)
    parts: tuple[Subschema, ...] = ()
    items: Subschema | None = None
    prefix_items: tuple[Subschema, ...] | None = None
    properties: Mapping[str, Subschema] = field(default_factory=dict)
    required: Collection[str] = ()
    others: Subschema | None = None
    is_closed: bool = False
    has_unique_items: bool = False
    binary: str = ""
    dtype: str = ""
    characters: int = 0

    @property
    def length(self) -> int:
        """The length of its shortest array."""
        return int(self.bounds.get("minItems", 0))


def read_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The members of a `Schema` for those that have the right type."""
    found: dict[str, Any] = {}
    for keyword, read in _READERS.items():
        if keyword in schema:
            found |= read(schema[keyword])
    bounds = {name: schema[name] for name in _BOUNDS if _is_number(schema.get(name))}
    bounds |= {name: schema[name] for name in _LENGTHS if _is_length(schema.get(name))}
    if bounds:
        found["bounds"] = bounds
    known = ("title", "description", "format", "pattern", "enum", "const", "default", "examples")
    texts = [schema[name] for name in known if name in schema]
    names = [schema.get("properties"), schema.get("required")]
    found["characters"] = sum(map(_characters, (*texts, *names)))
    return found


def merged(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """The members of the schema that is all of these; the last one counts."""
    if len(parts) == 1:
        return parts[0]
    found: dict[str, Any] = {}
    for part in parts:
        joined: dict[str, Any] = {
            "properties": {**found.get("properties", {}), **part.get("properties", {})},
            "required": {**found.get("required", {}), **part.get("required", {})},
            "bounds": {**found.get("bounds", {}), **part.get("bounds", {})},
            "characters": found.get("characters", 0) + part["characters"],
        }
        found |= part | joined
    return found


def branches(schema: Schema) -> list[Subschema | Schema]:
    """The alternatives of a schema that is a union; empty for any other schema."""
    if schema.parts:
        return list(schema.parts)
    types = schema.types
    return [replace(schema, types=(name,)) for name in types] if len(types) > 1 else []


def mapping(value: object) -> Mapping[str, Any]:
    """An object, or an empty one."""
    return value if isinstance(value, dict) else {}


def text_of(holder: Mapping[str, Any], name: str) -> str:
    """The text of a member; empty without one."""
    value = holder.get(name)
    return _cut(value) if isinstance(value, str) else ""


def _cut(text: str) -> str:
    return text if len(text) <= TEXT_CHARACTERS_MAX else f"{text[:TEXT_CHARACTERS_MAX]}…"


def _is_number(value: object) -> bool:
    """Whether it is a number that a float can hold."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return -_NUMBER_MAX <= value <= _NUMBER_MAX


def _is_length(value: object) -> bool:
    return isinstance(value, int) and _is_number(value) and value >= 0


def _characters(value: object) -> int:
    """About the length of the text of a JSON value. Its nesting is limited."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(len(name) + 8 for name in value)
    if isinstance(value, list):
        return 4 * len(value) + sum(map(_characters, value))
    return 16


def _types(value: object) -> dict[str, Any]:
    names = value if isinstance(value, list) else [value]
    return {"types": tuple(dict.fromkeys(name for name in names if isinstance(name, str)))}


def _text(member: str) -> Callable[[object], dict[str, Any]]:
    return lambda value: {member: _cut(value)} if isinstance(value, str) else {}


def _list(member: str) -> Callable[[object], dict[str, Any]]:
    return lambda value: {member: tuple(value)} if isinstance(value, list) else {}


def _parts(value: object) -> dict[str, Any]:
    return {"parts": tuple(map(Subschema, value))} if isinstance(value, list) and value else {}


def _prefix_items(value: object) -> dict[str, Any]:
    return {"prefix_items": tuple(map(Subschema, value))} if isinstance(value, list) else {}


def _items(value: object) -> dict[str, Any]:
    """JSON Schema had the items of tuples here before 2020-12."""
    return _prefix_items(value) or ({"items": Subschema(value)} if isinstance(value, dict) else {})


def _properties(value: object) -> dict[str, Any]:
    return {"properties": {name: Subschema(it) for name, it in mapping(value).items()}}


def _required(value: object) -> dict[str, Any]:
    names = value if isinstance(value, list) else []
    return {"required": dict.fromkeys(name for name in names if isinstance(name, str))}


def _others(value: object) -> dict[str, Any]:
    if value is False:
        return {"is_closed": True}
    return {"others": Subschema(value)} if isinstance(value, dict) else {}


def _encoding(value: object) -> dict[str, Any]:
    return {"binary": "bytes"} if value == "base64" else {}


def _hints(value: object) -> dict[str, Any]:
    known = mapping(value)
    if not isinstance(known.get("type"), str) or known["type"] not in BINARY_TYPES:
        return {}
    return {"binary": known["type"], "dtype": text_of(known, "dtype")}


#: In the order in which a later one replaces an earlier one.
_READERS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "type": _types,
    "title": _text("title"),
    "description": _text("description"),
    "format": _text("format"),
    "pattern": _text("pattern"),
    "enum": _list("choices"),
    "const": lambda value: {"choices": (value,)},
    "default": lambda value: {"default": value},
    "examples": _list("examples"),
    "oneOf": _parts,
    "anyOf": _parts,
    "items": _items,
    "prefixItems": _prefix_items,
    "properties": _properties,
    "required": _required,
    "additionalProperties": _others,
    "uniqueItems": lambda value: {"has_unique_items": value is True},
    "contentEncoding": _encoding,
    "x-ucall": _hints,
}
