"""The parts of an annotation, and who defines them."""

from __future__ import annotations

import sys
import types
import typing
from collections.abc import Iterator
from typing import Any

from ucall.types.aliases import bounds_of, named_by

__all__ = ["PYDANTIC", "is_known_note", "is_of", "is_union", "metadata_of", "parts_of"]

#: The packages of pydantic, and of what it builds upon.
PYDANTIC = ("pydantic", "pydantic_core", "pydantic_extra_types", "annotated_types")

#: Packages whose metadata pydantic understands, or that only documents.
_METADATA_PACKAGES = (*PYDANTIC, "typing_extensions")


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


def is_known_note(note: object) -> bool:
    """Whether metadata is a text, msgspec's, pydantic's, or only documents."""
    meta = getattr(sys.modules.get("msgspec"), "Meta", ())
    kind = note if isinstance(note, type) else type(note)
    return isinstance(note, (str, meta)) or is_of(kind, _METADATA_PACKAGES)


def is_of(kind: type, packages: tuple[str, ...]) -> bool:
    """Whether one of the packages defines the class."""
    return kind.__module__.partition(".")[0] in packages
