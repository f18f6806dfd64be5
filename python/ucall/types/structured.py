"""Builds dataclasses, dates, unions and similar types from JSON text, by ``msgspec``."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from ucall.types import forms
from ucall.types.collisions import with_collision_check
from ucall.types.expected import described, nodes
from ucall.types.messages import UnsupportedType, require, type_name
from ucall.types.msgspec_errors import ANY_KEY, UNKNOWN, explain_value, translated
from ucall.types.validation_errors import Search

if TYPE_CHECKING:
    from ucall.types.messages import Explained, Takes
    from ucall.types.registry import TypeRegistry

__all__ = ["describe"]


def describe(annotation: Any, registry: TypeRegistry) -> Takes:
    """Describes an annotation that ``msgspec`` builds, with registered types as parts.

    Raises:
        UnsupportedType: ``msgspec`` cannot build it, or has no decoder for a part of it.
        ImportError: ``msgspec`` is not installed.
    """
    require("msgspec", type_name(annotation))
    require("msgspec.inspect", type_name(annotation))
    try:
        form = forms.Forms(registry).of(annotation)
        decoder, info = forms.form_decoder(form, registry)
    except NameError as error:
        raise UnsupportedType(
            type_name(annotation), f"it refers to an unknown name: {error}"
        ) from None
    except (NotImplementedError, TypeError, ValueError) as error:
        raise _unsupported(annotation, str(error)) from None
    hook = functools.partial(forms.decode_hook, registry)
    # ``msgspec`` converts no decoded value to text.
    has_raw = any(type(node).__name__ == "RawType" for _, node in nodes(info, "", set()))
    search = None if has_raw else Search(form, hook)
    explain_error = functools.partial(explain, info, search)
    return "custom", (
        "text",
        *with_collision_check(annotation, decoder.decode, explain_error),
        described(info),
    )


def explain(
    info: Any, search: Search | None, error: BaseException, raw: bytes, limit: int
) -> Explained:
    """The message and the path of an error that ``msgspec`` raised for a value of a type, and of
    the errors after it."""
    import msgspec

    if not isinstance(error, msgspec.DecodeError):
        return []
    document = _document(raw)
    first = explain_value(info, error, document)
    if limit == 1 or document is UNKNOWN or search is None:
        return [first]
    found = search.errors_of(document, len(raw), limit)
    if found and ANY_KEY in first[1]:
        return found
    return [first, *(it for it in found if it[1] != first[1])]


def _document(raw: bytes) -> Any:
    """The value of a text; unknown if a number in it is out of the range of every type."""
    import msgspec

    try:
        return msgspec.json.decode(raw)
    except msgspec.DecodeError:
        return UNKNOWN


def _unsupported(annotation: Any, reason: str) -> UnsupportedType:
    is_generic = reason.startswith("Type '") and reason.endswith("' is not supported")
    return UnsupportedType(type_name(annotation), "" if is_generic else translated(reason))
