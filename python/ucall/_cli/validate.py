"""Checks a JSON value against a schema, as far as a server's descriptions use JSON Schema.

Formats, multiples and unique items are left to the server, and so are patterns: a regular
expression of the server's could run for ever.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ucall._cli.type_names import type_name
from ucall._openrpc import Document, Schema, Subschema, branches
from ucall.types.messages import kind_of, value_text

__all__ = ["problem_with"]

#: Unions within unions of the same value are checked to this depth.
_DEPTH_MAX = 32

_KINDS: dict[str, tuple[type, ...]] = {
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "string": (str,),
    "null": (type(None),),
    "array": (list,),
    "object": (dict,),
}


def problem_with(document: Document, schema: Subschema | Schema, value: object) -> str | None:
    """The first problem, as the server would name it: ``".age: expected int >= 0, got -1"``."""
    return next(_problems(document, schema, value, "", 0), None)


def _problems(
    document: Document, schema: Subschema | Schema, value: Any, path: str, depth: int
) -> Iterator[str]:
    """Problems of a value; `depth` are the unions around it."""
    resolved = document.resolve(schema)
    if not _fits(document, resolved, value, depth):
        is_kind = any(_is_kind(value, name) for name in resolved.types) or not resolved.types
        got = value_text(value) if is_kind else kind_of(value)
        yield f"{path}: expected {type_name(document, schema)}, got {got}"
    elif isinstance(value, list):
        yield from _item_problems(document, resolved, value, path)
    elif isinstance(value, dict):
        yield from _member_problems(document, resolved, value, path)


def _fits(document: Document, schema: Schema, value: Any, depth: int) -> bool:
    """Whether the value fits, its items and members aside unless the schema is a union."""
    if schema.choices:
        return any(type(one) is type(value) and one == value for one in schema.choices)
    if parts := branches(schema):
        if depth > _DEPTH_MAX:
            return True
        found = (next(_problems(document, part, value, "", depth + 1), None) for part in parts)
        return None in found
    if schema.types and not any(_is_kind(value, name) for name in schema.types):
        return False
    return _is_within(schema, value)


def _is_kind(value: object, name: str) -> bool:
    if isinstance(value, bool):
        return name == "boolean"
    return isinstance(value, _KINDS.get(name, (object,)))


def _is_within(schema: Schema, value: Any) -> bool:
    bounds = schema.bounds
    if isinstance(value, (str, list)):
        suffix, length = "Length" if isinstance(value, str) else "Items", len(value)
        return bounds.get(f"min{suffix}", length) <= length <= bounds.get(f"max{suffix}", length)
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return True
    return (
        bounds.get("minimum", value) <= value <= bounds.get("maximum", value)
        and ("exclusiveMinimum" not in bounds or bounds["exclusiveMinimum"] < value)
        and ("exclusiveMaximum" not in bounds or value < bounds["exclusiveMaximum"])
    )


def _item_problems(
    document: Document, schema: Schema, value: list[Any], path: str
) -> Iterator[str]:
    if schema.prefix_items is not None:
        schemas: list[Subschema] = list(schema.prefix_items)
    else:
        schemas = [] if schema.items is None else [schema.items] * len(value)
    for position, (item, one) in enumerate(zip(value, schemas, strict=False)):
        yield from _problems(document, one, item, f"{path}[{position}]", 0)


def _member_problems(
    document: Document, schema: Schema, value: dict[str, Any], path: str
) -> Iterator[str]:
    for name in schema.required:
        if name not in value:
            kind = type_name(document, schema.properties.get(name, Schema()))
            yield f"{path}.{name}: missing, expected {kind}"
    for name, member in value.items():
        known = schema.properties.get(name, schema.others)
        if known is not None:
            yield from _problems(document, known, member, f"{path}.{name}", 0)
        elif schema.is_closed:
            yield f"{path}.{name}: unexpected"
