"""What JSON has no word for, turned into what it has one for.

The core writes None, bool, int, float, str, list, tuple, dict and bytes by itself, and asks here
about all else. No module is imported for it: an object of a class that nobody has imported cannot
be there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from ucall._core import Pieces, Unwritable

__all__ = ["default"]


def default(value: Any) -> object:
    """Another object in place of one that cannot be written.

    Arrays become the bytes of a `.npy`, images those of an encoded image; dates, times and
    durations their ISO 8601 text; UUIDs and Decimals their text; Enums their value; dataclasses,
    ``msgspec.Struct`` and pydantic's models dicts; sets lists.

    Raises:
        ucall._core.Unwritable: There is none.
    """
    for module, name, replace in _REPLACEMENTS:
        kind = getattr(sys.modules.get(module), name, None)
        if isinstance(kind, type) and isinstance(value, kind):
            return replace(value)
    if hasattr(type(value), "__dataclass_fields__"):
        return _dataclass(value)
    raise Unwritable(f"{type(value).__qualname__} cannot be written as JSON")


def _array(value: Any) -> object:
    from ucall.types.arrays import array_pieces

    try:
        pieces: tuple[Any, ...] = array_pieces(value)
        return Pieces(*pieces)
    except TypeError as error:
        raise Unwritable(str(error)) from None


def _number(value: Any) -> object:
    """A scalar of NumPy. A long double is its own item."""
    item: object = value.item()
    is_its_own = type(item) is type(value)
    return float(value) if is_its_own else item


def _image(value: Any) -> object:
    from ucall.types.images import encode_image

    return encode_image(value)


def _duration(value: Any) -> object:
    """ISO 8601: days and seconds."""
    sign = ""
    if value.days < 0:
        sign, value = "-", -value
    fraction = f".{value.microseconds:06}".rstrip("0") if value.microseconds else ""
    return f"{sign}P{value.days}DT{value.seconds}{fraction}S"


def _dataclass(value: Any) -> object:
    from dataclasses import fields

    return {field.name: getattr(value, field.name) for field in fields(value)}


def _struct(value: Any) -> object:
    to_builtins: Callable[..., object] = sys.modules["msgspec"].to_builtins
    written = (bytes, bytearray, memoryview, Pieces)
    return to_builtins(value, str_keys=True, builtin_types=written, enc_hook=default)


def _model(value: Any) -> object:
    dumped: object = value.model_dump(by_alias=True)
    return dumped


def _isoformat(value: Any) -> object:
    text: str = value.isoformat()
    return text


def _value(value: Any) -> object:
    inner: object = value.value
    return inner


_REPLACEMENTS: tuple[tuple[str, str, Callable[[Any], object]], ...] = (
    ("numpy", "ndarray", _array),
    ("numpy", "generic", _number),
    ("PIL.Image", "Image", _image),
    ("datetime", "date", _isoformat),
    ("datetime", "time", _isoformat),
    ("datetime", "timedelta", _duration),
    ("uuid", "UUID", str),
    ("decimal", "Decimal", str),
    ("enum", "Enum", _value),
    ("msgspec", "Struct", _struct),
    ("pydantic", "BaseModel", _model),
    ("builtins", "set", list),
    ("builtins", "frozenset", list),
)
