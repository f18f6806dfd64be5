"""Refuses annotations with parts, at any depth, that the library which builds them would not check.

``msgspec`` and pydantic ignore each other's metadata, and that of other libraries.
"""

from __future__ import annotations

import typing
from typing import TYPE_CHECKING, Any

from ucall.types.classes import (
    Part,
    Sort,
    defaults_of,
    is_generated,
    pydantic_notes,
    sets_plainly,
    sort_of,
    walk,
)
from ucall.types.markers import check_default
from ucall.types.messages import UnsupportedType, type_name
from ucall.types.parts import is_known_note, metadata_of

if TYPE_CHECKING:
    from ucall.types.registry import TypeRegistry

__all__ = ["check"]

#: The members of ``msgspec.Meta`` that restrict values.
_CONSTRAINTS = (
    "gt", "ge", "lt", "le", "multiple_of", "pattern", "min_length", "max_length", "tz",
)  # fmt: skip


def check(annotation: Any, registry: TypeRegistry) -> None:
    """Checks an annotation and the fields of all classes in it.

    Raises:
        UnsupportedType: No library checks a part of it. The message names the field.
    """
    for part in walk(annotation, registry.is_registered):
        try:
            registry.decoder_of(part.annotation)
            _check_keys(part.annotation)
            _check_metadata(part)
            kind = typing.get_origin(part.annotation) or part.annotation
            if isinstance(kind, type):
                _check_class(kind, part, registry)
        except UnsupportedType as unsupported:
            raise UnsupportedType(part.where + unsupported.problem, unsupported.reason) from None


def _check_keys(annotation: Any) -> None:
    """Refuses NumPy scalars as keys: JSON's keys are texts, which none of them takes."""
    arguments = typing.get_args(annotation)
    if typing.get_origin(annotation) is dict and hasattr(arguments[0], "dtype"):
        raise UnsupportedType(type_name(annotation), "use int, float or str for its keys")


def _check_metadata(part: Part) -> None:
    notes = metadata_of(part.annotation)
    if not part.in_model and not all(map(is_known_note, notes)):
        raise UnsupportedType(type_name(part.annotation))
    if part.builder == "pydantic" and any(map(_is_constraint, notes)):
        reason = "pydantic does not check msgspec.Meta: use pydantic.Field"
        raise UnsupportedType(type_name(part.annotation), reason)


def _is_constraint(note: object) -> bool:
    is_meta = type(note).__module__ == "msgspec"
    return is_meta and any(getattr(note, name, None) is not None for name in _CONSTRAINTS)


def _check_class(kind: type, part: Part, registry: TypeRegistry) -> None:
    is_of_pydantic = part.builder == "pydantic"
    has_schema = hasattr(kind, "__get_pydantic_core_schema__")
    if is_of_pydantic and registry.is_registered(kind) and not has_schema:
        reason = "pydantic builds it there, not the registered decoder"
        raise UnsupportedType(type_name(kind), reason)
    sort = sort_of(kind)
    if sort in ("struct", "attrs") and pydantic_notes(kind):
        library, remedy = ("msgspec", "msgspec.Meta") if sort == "struct" else ("attrs", "attrs")
        raise UnsupportedType(
            f"{kind.__name__}.{pydantic_notes(kind)[0]}",
            f"{library} does not check metadata of pydantic's: use {remedy}'s",
        )
    if sort not in (None, "model") and not hasattr(kind, "__pydantic_validator__"):
        _check_defaults(kind, sort)
        if sort == "dataclass" and is_of_pydantic and not _is_called_alike(kind):
            reason = "pydantic builds it without its own constructor: use pydantic.dataclasses"
            raise UnsupportedType(type_name(kind), reason)


def _is_called_alike(kind: type) -> bool:
    """Whether pydantic builds the same instances of a dataclass as its constructor: it knows
    ``init=False`` and ``InitVar``, but sets the fields itself."""
    return is_generated(kind) and sets_plainly(kind)


def _check_defaults(kind: Any, sort: Sort) -> None:
    for name, default in defaults_of(kind, sort):
        reason = check_default(default)
        if reason is not None:
            raise UnsupportedType(f"{kind.__name__}.{name}", reason)
