"""Encodes the fields of objects: of dataclasses, attrs and Structs."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import types
import typing
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ucall.types.aliases import resolve_alias
from ucall.types.classes import Part, is_built_alike, is_pydantic, sort_of, walk
from ucall.types.messages import UnsupportedType

__all__ = ["hold_only_plain", "of_objects", "of_struct", "serializer"]

#: Classes whose objects contain no others, and containers, whose items have annotations.
_PLAIN = (
    bool, int, float, str, bytes, bytearray, memoryview, type(None),
    datetime.date, datetime.time, datetime.timedelta, decimal.Decimal, uuid.UUID, enum.Enum,
)  # fmt: skip
_CONTAINERS = (list, tuple, set, frozenset, dict)
_COMPOSED = (typing.Union, types.UnionType, typing.Annotated, typing.Literal)


def serializer(kind: Any) -> Any:
    """pydantic's serializer of a class, which leaves NaN and infinities in fields without a type
    unless the class has a configuration for them: JSON has none, so they are errors."""
    from pydantic import TypeAdapter

    configuration: Any = {"arbitrary_types_allowed": True, "ser_json_inf_nan": "constants"}
    own = getattr(kind, "model_config", getattr(kind, "__pydantic_config__", None))
    if own is None:
        configuration["ser_json_bytes"] = "base64"
    else:
        configuration |= {name: it for name, it in own.items() if name.startswith("ser_json_")}
    # A class alone may not be given a configuration; within a tuple it may.
    return _Serializer(TypeAdapter(tuple[kind], config=configuration).serializer)


class _Serializer:
    """The serializer of the only item of a tuple."""

    def __init__(self, of_tuple: Any) -> None:
        self._of_tuple = of_tuple

    def to_python(self, value: Any, **options: Any) -> object:
        return self._of_tuple.to_python((value,), **options)[0]


def hold_only_plain(kind: type, registered: Iterable[type]) -> bool:
    """Whether ``msgspec`` writes a class as it is to be written: no object in its fields, by their
    annotations, is one of pydantic's or of a registered class, at any depth, and all fields are
    attributes of the object itself, as those with ``init=False`` need not be."""
    kinds = tuple(registered)
    try:
        return all(_is_plain(part, kinds) for part in walk(kind, lambda _: False))
    except (UnsupportedType, TypeError, RecursionError):
        return False


def _is_plain(part: Part, registered: tuple[type, ...]) -> bool:
    annotation = part.annotation
    origin = typing.get_origin(annotation)
    kind = origin or annotation
    if part.builder == "pydantic" or annotation in _CONTAINERS:
        return False
    if annotation in (None, Ellipsis) or kind in (*_CONTAINERS, *_COMPOSED):
        return True
    if not isinstance(kind, type):
        return resolve_alias(annotation) is not annotation  # What it names is a part, too.
    if sort_of(kind) is not None:
        derived: list[Any] = list(_with_derived(kind))
        is_alike = all(is_built_alike(it) and not _may_lack_fields(it) for it in derived)
        return is_alike and not any(issubclass(it, registered) or is_pydantic(it) for it in derived)
    return issubclass(kind, _PLAIN) and not any(issubclass(it, kind) for it in registered)


def _may_lack_fields(kind: Any) -> bool:
    """Whether ``msgspec`` leaves a default of a dataclass to the class, when it builds an object,
    and then does not write it."""
    if sort_of(kind) != "dataclass" or not kind.__dictoffset__:
        return False
    fields: tuple[Any, ...] = dataclasses.fields(kind)
    return any(field.default is not dataclasses.MISSING for field in fields)


def _with_derived(kind: type) -> Iterator[type]:
    yield kind
    subclasses: list[type] = kind.__subclasses__()
    for derived in subclasses:
        yield from _with_derived(derived)


def of_objects(kind: Any) -> Callable[[Any], dict[str, Any]]:
    """What returns the fields of a dataclass or of an attrs class, which keeps private ones to
    itself."""
    attributes = getattr(kind, "__attrs_attrs__", None)
    if attributes is None:
        names = [field.name for field in dataclasses.fields(kind)]
    else:
        names = [it.name for it in attributes if not it.name.startswith("_")]

    def fields_of(value: Any) -> dict[str, Any]:
        try:
            return {name: getattr(value, name) for name in names}
        except AttributeError:
            return {name: getattr(value, name) for name in names if hasattr(value, name)}

    return fields_of


def of_struct(value: Any) -> object:
    """The fields of a Struct: an object, or a list."""
    import msgspec

    config = value.__struct_config__
    tag = [] if config.tag is None else [(config.tag_field, config.tag)]
    held = [(it.encode_name, getattr(value, it.name), it) for it in msgspec.structs.fields(value)]
    if config.array_like:
        return [item for _, item in tag] + [item for _, item, _ in held]
    kept = [
        (name, item)
        for name, item, field in held
        if item is not msgspec.UNSET and not (config.omit_defaults and _is_default(item, field))
    ]
    return dict([*tag, *kept])


def _is_default(item: Any, field: Any) -> bool:
    """Whether ``msgspec`` omits it: its default, or empty as what its factory makes."""
    if item is field.default:
        return True
    return type(item) is field.default_factory and not item
