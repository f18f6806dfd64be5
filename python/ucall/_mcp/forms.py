"""Forms: the flat schemas of elicitation, and the check of what comes back.

The specification limits them to texts, numbers, booleans and choices, so that any client can show
them. A field with another JSON Schema is sent as it is written.
"""

from __future__ import annotations

import enum
import typing
from collections.abc import Mapping
from typing import Any, Literal

from ucall._mcp.texts import members_of
from ucall.types.aliases import resolve_alias
from ucall.types.messages import kind_of, type_name
from ucall.types.parts import is_union

__all__ = ["form", "problems"]

_TYPES: dict[Any, str] = {str: "string", int: "integer", float: "number", bool: "boolean"}
_KINDS: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
}


def form(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of a form.

    Raises:
        TypeError: A field has another type.
    """
    properties: dict[str, Any] = {}
    required = []
    for name, field in fields.items():
        if isinstance(field, Mapping):
            properties[name], is_required = dict(field), "default" not in field
        else:
            properties[name], is_required = _property(name, field)
        if is_required:
            required.append(name)
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    return schema | ({"required": required} if required else {})


def _property(name: str, field: Any) -> tuple[dict[str, Any], bool]:
    kind, is_required = resolve_alias(field), True
    if is_union(kind):
        others = [it for it in typing.get_args(kind) if it is not type(None)]
        if len(others) == 1:
            kind, is_required = resolve_alias(others[0]), False
    if kind in _TYPES:
        return {"type": _TYPES[kind]}, is_required
    choice = _choice(kind)
    if choice is not None:
        return choice, is_required
    if typing.get_origin(kind) is list:
        items = _choice(resolve_alias(typing.get_args(kind)[0]))
        if items is not None:
            return {"type": "array", "items": items}, is_required
    raise TypeError(
        f"field {name!r}: {type_name(field)}: expected str, int, float, bool, a Literal or an Enum "
        "of texts, a list of one, or a JSON Schema"
    )


def _choice(kind: Any) -> dict[str, Any] | None:
    """The schema of a choice of texts; None for another type."""
    is_enum = isinstance(kind, type) and issubclass(kind, enum.Enum)
    if not is_enum and typing.get_origin(kind) is not Literal:
        return None
    members = members_of(kind)
    values = [it.value for it in kind] if is_enum else list(members.values())
    if not all(isinstance(it, str) for it in values):
        return None
    return {"type": "string", "enum": list(members)}


def problems(content: Any, schema: Mapping[str, Any], where: str) -> list[str]:
    """What is wrong with the content of a form, a line for each field."""
    if not isinstance(content, dict):
        return [f"{where}: expected an object, got {kind_of(content)}"]
    properties = schema.get("properties", {})
    found = [
        f"{where}.{name}: missing, expected {_expected(properties.get(name, {}))}"
        for name in schema.get("required", ())
        if name not in content
    ]
    for name, value in content.items():
        # A field that was not asked for is ignored.
        if name in properties and not _fits(value, properties[name]):
            got = kind_of(value)
            found.append(f"{where}.{name}: expected {_expected(properties[name])}, got {got}")
    return found


def _fits(value: Any, schema: Mapping[str, Any]) -> bool:
    kinds = _KINDS.get(schema.get("type", ""))
    if kinds is not None and not isinstance(value, kinds):
        return False
    if isinstance(value, bool) and kinds is not None and bool not in kinds:
        return False
    choices = _choices(schema)
    if choices is not None and value not in choices:
        return False
    if isinstance(value, str):
        length = len(value)
        return bool(schema.get("minLength", 0) <= length <= schema.get("maxLength", length))
    if isinstance(value, list):
        length, items = len(value), schema.get("items", {})
        is_sized = schema.get("minItems", 0) <= length <= schema.get("maxItems", length)
        return is_sized and all(_fits(it, items) for it in value)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return bool(schema.get("minimum", value) <= value <= schema.get("maximum", value))
    return True


def _choices(schema: Mapping[str, Any]) -> list[Any] | None:
    if "enum" in schema:
        return list(schema["enum"])
    titled = schema.get("oneOf", schema.get("anyOf"))
    return None if titled is None else [it.get("const") for it in titled]


def _expected(schema: Mapping[str, Any]) -> str:
    """What a field takes: its schema without the texts for people."""
    choices = _choices(schema)
    if choices is not None:
        return "one of " + ", ".join(map(repr, choices))
    limits = ("minLength", "maxLength", "minimum", "maximum", "minItems", "maxItems")
    stated = [f"{name} {schema[name]}" for name in limits if name in schema]
    return ", ".join([str(schema.get("type", "any value")), *stated])
