"""Checks a JSON value against a schema, as far as a server's descriptions use JSON Schema.

Formats, multiples and unique items are left to the server.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from ucall._cli.type_names import choices_of, type_name
from ucall._openrpc import Document, Schema, branches, types_of
from ucall.types.messages import kind_of, value_text

__all__ = ["problem_with"]

_KINDS: dict[str, tuple[type, ...]] = {
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "string": (str,),
    "null": (type(None),),
    "array": (list,),
    "object": (dict,),
}


def problem_with(document: Document, schema: Schema, value: object) -> str | None:
    """The first problem, as the server would name it: ``".age: expected int >= 0, got -1"``."""
    return next(_problems(document, schema, value, ""), None)


def _problems(document: Document, schema: Schema, value: Any, path: str) -> Iterator[str]:
    resolved = document.resolve(schema)
    if not _fits(document, resolved, value):
        types = types_of(resolved)
        is_kind = any(_is_kind(value, name) for name in types) or not types
        got = value_text(value) if is_kind else kind_of(value)
        yield f"{path}: expected {type_name(document, schema)}, got {got}"
    elif isinstance(value, list):
        yield from _item_problems(document, resolved, value, path)
    elif isinstance(value, dict):
        yield from _member_problems(document, resolved, value, path)


def _fits(document: Document, schema: Schema, value: Any) -> bool:
    """Whether the value fits, its items and members aside unless the schema is a union."""
    choices = choices_of(document, schema)
    if choices:
        return any(type(one) is type(value) and one == value for one in choices)
    if parts := branches(schema):
        return any(next(_problems(document, part, value, ""), None) is None for part in parts)
    types = types_of(schema)
    if types and not any(_is_kind(value, name) for name in types):
        return False
    return _is_within(schema, value)


def _is_kind(value: object, name: str) -> bool:
    if isinstance(value, bool):
        return name == "boolean"
    return isinstance(value, _KINDS.get(name, (object,)))


def _is_within(schema: Schema, value: Any) -> bool:
    if isinstance(value, str):
        return _has_length(schema, value, "Length") and _matches(schema.get("pattern"), value)
    if isinstance(value, list):
        return _has_length(schema, value, "Items")
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return True
    return (
        schema.get("minimum", value) <= value <= schema.get("maximum", value)
        and ("exclusiveMinimum" not in schema or schema["exclusiveMinimum"] < value)
        and ("exclusiveMaximum" not in schema or value < schema["exclusiveMaximum"])
    )


def _has_length(schema: Schema, value: Any, suffix: str) -> bool:
    length = len(value)
    least, most = schema.get(f"min{suffix}", length), schema.get(f"max{suffix}", length)
    return bool(least <= length <= most)


def _matches(pattern: object, value: str) -> bool:
    try:
        return not isinstance(pattern, str) or re.search(pattern, value) is not None
    except re.error:  # It is for another dialect, so the server decides.
        return True


def _item_problems(
    document: Document, schema: Schema, value: list[Any], path: str
) -> Iterator[str]:
    items = schema.get("prefixItems", schema.get("items", {}))
    schemas = items if isinstance(items, list) else [items] * len(value)
    for position, (item, one) in enumerate(zip(value, schemas, strict=False)):
        yield from _problems(document, one, item, f"{path}[{position}]")


def _member_problems(
    document: Document, schema: Schema, value: dict[str, Any], path: str
) -> Iterator[str]:
    properties, others = schema.get("properties", {}), schema.get("additionalProperties", {})
    for name in schema.get("required", []):
        if name not in value:
            kind = type_name(document, properties.get(name, {}))
            yield f"{path}.{name}: missing, expected {kind}"
    for name, member in value.items():
        if name in properties:
            yield from _problems(document, properties[name], member, f"{path}.{name}")
        elif others is False:
            yield f"{path}.{name}: unexpected"
        else:
            yield from _problems(document, others, member, f"{path}.{name}")
