"""Rewrites JSON Schema of 2020-12 as draft-07, the dialect of OpenRPC."""

from __future__ import annotations

from typing import Any

__all__ = ["draft_07", "with_renamed_components"]

PREFIX = "#/components/schemas/"

#: Members whose values are schemas by name, and members whose values are data.
_NAMED = ("properties", "patternProperties", "components", "$defs")
_DATA = ("default", "const", "enum", "examples", "x-ucall", "required", "discriminator")


def draft_07(schema: Any) -> Any:
    """The same schema in draft-07.

    There a ``$ref`` hides the members beside it, and the schemas of a tuple's items are a list.
    """
    if not isinstance(schema, dict):
        return schema
    made = {name: _member(name, value) for name, value in schema.items()}
    if "prefixItems" in made:
        made["additionalItems"] = made.pop("items", True)
        made["items"] = made.pop("prefixItems")
    if "$ref" in made and len(made) > 1:
        reference = made.pop("$ref")
        made["allOf"] = [*made.get("allOf", []), {"$ref": reference}]
    return made


def _member(name: str, value: Any) -> Any:
    if name in _DATA:
        return value
    if isinstance(value, list):
        return [draft_07(part) for part in value]
    if name in _NAMED and isinstance(value, dict):
        return {key: draft_07(part) for key, part in value.items()}
    return draft_07(value)


def with_renamed_components(schema: Any, names: dict[str, str]) -> Any:
    """The schema with references to components under new names."""
    if isinstance(schema, list):
        return [with_renamed_components(part, names) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: _renamed(value, names)
        if key == "$ref"
        else value
        if key in _DATA
        else with_renamed_components(value, names)
        for key, value in schema.items()
    }


def _renamed(reference: str, names: dict[str, str]) -> str:
    name = reference.removeprefix(PREFIX)
    return PREFIX + names.get(name, name)
