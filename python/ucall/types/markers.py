"""Finds defaults that describe a field instead of being its value.

FastAPI and the constructors of models and dataclasses replace these. A plain call of a function, or
of another class, passes the description itself.
"""

from __future__ import annotations

from typing import Any

__all__ = ["check_default", "has_own_default"]

_OF_FIELDS = "is for the fields of classes: write the default itself"
_ANNOTATED = "write Annotated[T, {name}(…)] = default"

#: Classes whose objects describe a field, by package, and what to write instead.
_MARKERS = {
    ("pydantic", "FieldInfo"): _ANNOTATED,
    ("fastapi", "Depends"): "call it in the function, or see Server(auth=…)",
    ("dataclasses", "Field"): _OF_FIELDS,
    ("msgspec", "Field"): _OF_FIELDS,
    ("attr", "_CountingAttr"): _OF_FIELDS,
}


def check_default(default: object) -> str | None:
    """Why a default cannot be passed as it is, with what to write instead; ``None`` if it can."""
    for base in type(default).__mro__:
        remedy = _MARKERS.get((base.__module__.partition(".")[0], base.__name__))
        if remedy is not None:
            kind = type(default).__name__
            name = {"FieldInfo": "Field", "_CountingAttr": "attrs.field"}.get(kind, kind)
            return f"its default is the {kind} itself: {remedy.format(name=name)}"
    return None


def has_own_default(note: Any) -> bool:
    """Whether metadata of pydantic's has a default, which only the fields of its models get."""
    is_required = getattr(note, "is_required", None)
    return check_default(note) is not None and callable(is_required) and not is_required()
