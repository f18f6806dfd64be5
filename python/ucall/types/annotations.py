"""Describes for the core how values of an annotation are built.

The core itself builds JSON's types, lists, dicts and ``T | None``, and within them arrays, images
and registered types. An annotation with any other part is built as a whole by ``msgspec``, or by
``pydantic`` if it contains a type of pydantic's. Each is imported on first use. The fields of
classes follow the same rule: see `ucall.types.forms`.
"""

from __future__ import annotations

import inspect
import sys
import types
import typing
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

from ucall.types.aliases import (
    RECURSIVE_ALIAS,
    bounds_of,
    is_recursive,
    named_by,
    resolve_alias,
)
from ucall.types.messages import UnsupportedType, type_name

if TYPE_CHECKING:
    from ucall.types.registry import TypeRegistry

__all__ = [
    "Takes",
    "describe_annotation",
    "is_known_note",
    "is_pydantic",
    "is_union",
    "metadata_of",
    "parts_of",
]

Takes: TypeAlias = str | tuple[str, Any]
"""A kind (``"int"``), or a kind and its parts (``("list", "int")``)."""

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

_PYDANTIC = ("pydantic", "pydantic_core", "pydantic_extra_types", "annotated_types")

#: Packages whose metadata pydantic understands, or that only documents.
_METADATA_PACKAGES = (*_PYDANTIC, "typing_extensions")


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
    from ucall.types import checks, models, structured

    annotation = resolve_alias(annotation)
    checks.check(annotation, registry)
    if any(map(is_pydantic, parts_of(annotation))):
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


def is_union(annotation: Any) -> bool:
    """Whether it is ``A | B`` or ``typing.Union[A, B]``."""
    return typing.get_origin(annotation) in (typing.Union, types.UnionType)


def parts_of(annotation: Any, seen: list[Any] | None = None) -> Iterator[Any]:
    """Yields an annotation and all its parts, without the metadata of ``Annotated``.

    Args:
        annotation: The annotation.
        seen: Names that were resolved already; each one is resolved once.
    """
    yield annotation
    if typing.get_origin(annotation) is typing.Literal:
        return
    seen = [] if seen is None else seen
    parts, named = [*_types_in(annotation), *bounds_of(annotation)], named_by(annotation)
    if named is not None and annotation not in seen:
        seen.append(annotation)
        parts.extend(named)
    for part in parts:
        yield from parts_of(part, seen)


def _types_in(annotation: Any) -> tuple[Any, ...]:
    arguments = typing.get_args(annotation)
    is_annotated = typing.get_origin(annotation) is typing.Annotated
    return arguments[:1] if is_annotated else arguments


def metadata_of(part: Any) -> tuple[Any, ...]:
    """The metadata of ``Annotated``; empty for other annotations."""
    is_annotated = typing.get_origin(part) is typing.Annotated
    return typing.get_args(part)[1:] if is_annotated else ()


def is_pydantic(part: Any) -> bool:
    """Whether pydantic defines the type, made it, or has metadata in it or in its fields; or a
    recursive name, which msgspec does not know."""
    if is_recursive(part):
        return True
    if metadata_of(part):
        return any(_is_of(type(note), _PYDANTIC) for note in metadata_of(part))
    kind = typing.get_origin(part) or part
    if not isinstance(kind, type):
        return False
    return hasattr(kind, "__pydantic_validator__") or _is_of(kind, _PYDANTIC) or _is_noted(kind)


def _is_noted(kind: type) -> bool:
    """Whether pydantic builds the class since metadata of pydantic's is in its fields."""
    from ucall.types import classes

    sort = classes.sort_of(kind)
    return sort in ("dataclass", "namedtuple", "typeddict") and bool(classes.pydantic_notes(kind))


def is_known_note(note: object) -> bool:
    """Whether metadata is a text, msgspec's, pydantic's, or only documents."""
    meta = getattr(sys.modules.get("msgspec"), "Meta", ())
    kind = note if isinstance(note, type) else type(note)
    return isinstance(note, (str, meta)) or _is_of(kind, _METADATA_PACKAGES)


def _is_of(kind: type, packages: tuple[str, ...]) -> bool:
    return kind.__module__.partition(".")[0] in packages
