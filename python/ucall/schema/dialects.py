"""Rewrites JSON Schemas: 2020-12 as draft-07, the dialect of OpenRPC, and their references."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

__all__ = ["LOCAL", "PREFIX", "draft_07", "reached", "rewritten", "with_new_references", "writable"]

Schema = dict[str, Any]

#: How schemas refer to the components of a server, and those of a library to its own.
PREFIX = "#/components/schemas/"
LOCAL = "#/$defs/"

#: Members whose values are schemas by name, and members whose values are data.
_NAMED = ("properties", "patternProperties", "components", "$defs")
_DATA = ("default", "const", "enum", "examples", "x-ucall", "required", "discriminator")


def rewritten(schema: Any, change: Callable[[Schema], Schema]) -> Any:
    """The schema after a change of each schema in it, the innermost first."""
    if isinstance(schema, list):
        return [rewritten(part, change) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return change({name: _member(name, value, change) for name, value in schema.items()})


def _member(name: str, value: Any, change: Callable[[Schema], Schema]) -> Any:
    if name in _DATA:
        return value
    if name in _NAMED and isinstance(value, dict):
        return {key: rewritten(part, change) for key, part in value.items()}
    return rewritten(value, change)


def writable(schema: Any) -> Any:
    """The schema without what JSON has not: NaN and infinities, say, as a default or a bound."""
    return rewritten(schema, _writable_members)


def _writable_members(made: Schema) -> Schema:
    kept = {}
    for name, value in made.items():
        if name in ("enum", "examples") and isinstance(value, list):
            kept[name] = [item for item in value if _is_writable(item)]
        elif (name not in _DATA and isinstance(value, (dict, list))) or _is_writable(value):
            kept[name] = value
    return kept


def _is_writable(value: object) -> bool:
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError):  # A UnicodeEncodeError is a ValueError.
        return False
    return True


def draft_07(schema: Any) -> Any:
    """The same schema in draft-07.

    There a ``$ref`` hides the members beside it, and the schemas of a tuple's items are a list.
    """
    return rewritten(schema, _in_draft_07)


def _in_draft_07(made: Schema) -> Schema:
    if "prefixItems" in made:
        made["additionalItems"] = made.pop("items", True)
        made["items"] = made.pop("prefixItems")
    if "$ref" in made and len(made) > 1:
        reference = made.pop("$ref")
        made["allOf"] = [*made.get("allOf", []), {"$ref": reference}]
    return made


def with_new_references(schema: Any, references: dict[str, str]) -> Any:
    """The schema with other references, also in the mapping of a ``discriminator``."""

    def change(made: Schema) -> Schema:
        if "$ref" in made:
            made["$ref"] = references.get(made["$ref"], made["$ref"])
        discriminator = made.get("discriminator")
        if isinstance(discriminator, dict) and "mapping" in discriminator:
            mapping = discriminator["mapping"].items()
            named = {tag: references.get(reference, reference) for tag, reference in mapping}
            made["discriminator"] = discriminator | {"mapping": named}
        return made

    return rewritten(schema, change)


def reached(name: str, components: dict[str, Schema]) -> dict[str, Schema]:
    """The component of a library with this name, and all those that it refers to."""
    found: dict[str, Schema] = {}
    names = [name]

    def note(made: Schema) -> Schema:
        names.append(made.get("$ref", "").removeprefix(LOCAL))
        return made

    while names:
        name = names.pop()
        if name in components and name not in found:
            found[name] = components[name]
            rewritten(found[name], note)
    return found
