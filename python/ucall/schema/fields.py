"""Describes what msgspec omits: the dtypes and dimensions of fields that are arrays, the formats of
dates and times, and that flags may be combined."""

from __future__ import annotations

import datetime
import enum
import typing
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from ucall.types.aliases import resolve_alias
from ucall.types.expected import nodes
from ucall.types.parts import is_union

if TYPE_CHECKING:
    from ucall.types.registry import TypeRegistry

__all__ = ["describe_flags", "describe_own_fields", "of_flags"]

Schema = dict[str, Any]

#: What msgspec writes of a field beside its type.
_OF_FIELD = ("default", "description")


def describe_own_fields(
    annotation: Any,
    components: dict[str, Schema],
    registry: TypeRegistry,
    schema_of: Callable[[Any], Schema],
) -> None:
    """Replaces the schemas of fields that are arrays, dates or times, or optional ones, lists or
    dicts of them.

    Args:
        annotation: A type that msgspec builds.
        components: The schemas of its classes, as msgspec has written them.
        registry: The types of the server.
        schema_of: Makes the schema of an annotation.
    """
    import msgspec.inspect

    for _, node in nodes(msgspec.inspect.type_info(annotation), "", set()):
        for hint, members, key in _fields(node, components):
            if _is_own(hint, registry):
                kept = {name: members[key][name] for name in _OF_FIELD if name in members[key]}
                members[key] = schema_of(hint) | kept


def describe_flags(annotation: Any, components: dict[str, Schema]) -> None:
    """Replaces the schemas of an `enum.Flag`, which list its members.

    Args:
        annotation: A type that msgspec builds.
        components: The schemas of its classes, as msgspec has written them.
    """
    import msgspec.inspect

    for _, node in nodes(msgspec.inspect.type_info(annotation), "", set()):
        kind = getattr(node, "cls", None)
        if isinstance(kind, type) and issubclass(kind, enum.Flag) and kind.__name__ in components:
            components[kind.__name__] = of_flags(components[kind.__name__])


def of_flags(made: Schema) -> Schema:
    """The schema of an `enum.Flag`, of one that lists its members."""
    return {name: it for name, it in made.items() if name != "enum"} | {"type": "integer"}


def _fields(node: Any, components: dict[str, Schema]) -> Iterator[tuple[Any, Any, Any]]:
    """The annotation of each field of a class, and where its schema is. Yields nothing if several
    classes have this name: msgspec gives them others."""
    component = components.get(getattr(getattr(node, "cls", None), "__name__", ""))
    fields = getattr(node, "fields", ())
    if component is None or not fields:
        return
    hints = typing.get_type_hints(node.cls, include_extras=True)
    items = component.get("prefixItems", ())
    for index, field in enumerate(fields, len(items) - len(fields)):
        if field.encode_name in component.get("properties", ()):
            yield hints[field.name], component["properties"], field.encode_name
        elif index >= 0:
            yield hints[field.name], items, index


def _is_own(annotation: Any, registry: TypeRegistry) -> bool:
    annotation = resolve_alias(annotation)
    if annotation in (datetime.datetime, datetime.time):
        return True
    decoder = registry.decoder_of(annotation)
    if decoder is not None:
        return "array" in decoder.type_name
    arguments = [it for it in typing.get_args(annotation) if it is not type(None)]
    origin = typing.get_origin(annotation)
    if origin is dict and len(arguments) == 2 and arguments[0] is str:
        return _is_own(arguments[1], registry)
    is_one = len(arguments) == 1 and (origin is list or is_union(annotation))
    return is_one and _is_own(arguments[0], registry)
