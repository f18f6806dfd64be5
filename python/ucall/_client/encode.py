"""Encodes params of types that JSON does not have.

It does so as `ucall.types.encode` for results, but without msgspec: dates, dataclasses, enums and
sets are encoded here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ucall.types.encode import Encoder, is_derived

__all__ = ["default"]


class _PlainEncoder(Encoder):
    """Encodes dates, times and durations as ISO 8601, UUIDs and Decimals as their text, Enums as
    their value, dataclasses as dicts, and sets as lists."""

    def _by_msgspec(self, value: Any) -> object:
        for module, name, replace in _PLAIN:
            if is_derived(type(value), module, name):
                return replace(value)
        if hasattr(type(value), "__dataclass_fields__"):
            return _dataclass(value)
        return super()._by_msgspec(value)


def _duration(value: Any) -> object:
    """Days and seconds, by ISO 8601."""
    sign = ""
    if value.days < 0:
        sign, value = "-", -value
    fraction = f".{value.microseconds:06}".rstrip("0") if value.microseconds else ""
    return f"{sign}P{value.days}DT{value.seconds}{fraction}S"


def _dataclass(value: Any) -> object:
    from dataclasses import fields

    return {field.name: getattr(value, field.name) for field in fields(value)}


def _isoformat(value: Any) -> object:
    text: str = value.isoformat()
    return text


def _value(value: Any) -> object:
    inner: object = value.value
    return inner


_PLAIN: tuple[tuple[str, str, Callable[[Any], object]], ...] = (
    ("datetime", "date", _isoformat),
    ("datetime", "time", _isoformat),
    ("datetime", "timedelta", _duration),
    ("uuid", "UUID", str),
    ("decimal", "Decimal", str),
    ("enum", "Enum", _value),
    ("builtins", "set", list),
    ("builtins", "frozenset", list),
)

#: Encodes an object as one that the core writes; raises `ucall._core.Unwritable` for other types.
default = _PlainEncoder().encode
