"""Describes for the core how values of an annotation are built.

The core itself builds JSON's types, lists, dicts and ``T | None``, and within them arrays, images
and registered types. An annotation with any other part is built as a whole by ``msgspec``, or by
``pydantic`` if it contains a type of pydantic's. Each is imported on first use. The fields of
classes follow the same rule: see `ucall.types.forms`.
"""

from __future__ import annotations

import inspect
import typing
from typing import TYPE_CHECKING, Any

from ucall.types.aliases import RECURSIVE_ALIAS, resolve_alias
from ucall.types.messages import Takes, UnsupportedType, type_name
from ucall.types.parts import is_union, parts_of

if TYPE_CHECKING:
    from ucall.types.registry import TypeRegistry

__all__ = ["describe_annotation"]

_PLAIN: dict[object, Takes] = {
    inspect.Parameter.empty: "any",
    Any: "any",
    object: "any",
    None: "none",
    type(None): "none",
    bool: "bool",
    int: "int",
    float: "float",
    str: "str",
    bytes: "bytes",
    bytearray: "bytearray",
    memoryview: "memoryview",
    list: ("list", "any"),
    dict: ("dict", "any"),
}


def describe_annotation(annotation: Any, registry: TypeRegistry) -> Takes:
    """Describes an annotation.

    Raises:
        UnsupportedType: No library can build its values.
        ImportError: The library that can is not installed.
    """
    try:
        return _describe(annotation, registry)
    except RecursionError:
        raise UnsupportedType(type_name(annotation), RECURSIVE_ALIAS) from None


def _describe(annotation: Any, registry: TypeRegistry) -> Takes:
    try:
        return _native(annotation, registry)
    except _NotNative:
        pass
    from ucall.types import checks, classes, models, structured

    annotation = resolve_alias(annotation)
    checks.check(annotation, registry)
    if any(map(classes.is_pydantic, parts_of(annotation))):
        return models.describe(annotation)
    return structured.describe(annotation, registry)


class _NotNative(Exception):
    """The core cannot build the annotation."""


def _native(annotation: Any, registry: TypeRegistry) -> Takes:
    annotation = resolve_alias(annotation)
    decoder = registry.decoder_of(annotation)
    if decoder is not None:
        return decoder.takes()
    try:
        return _PLAIN[annotation]
    except (KeyError, TypeError):  # TypeError: it has no hash.
        pass
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is list and len(arguments) < 2:
        return "list", _native(arguments[0] if arguments else Any, registry)
    if origin is dict and len(arguments) != 1 and (not arguments or arguments[0] in (str, Any)):
        return "dict", _native(arguments[1] if arguments else Any, registry)
    if is_union(annotation):
        return _native_union(arguments, registry)
    if origin is typing.Annotated and all(isinstance(note, str) for note in arguments[1:]):
        return _native(arguments[0], registry)
    raise _NotNative


def _native_union(arguments: tuple[Any, ...], registry: TypeRegistry) -> Takes:
    """Describes ``T | None``, the only union that the core builds."""
    others = [argument for argument in arguments if argument is not type(None)]
    if len(others) == len(arguments) or len(others) != 1:
        raise _NotNative
    return "optional", _native(others[0], registry)
