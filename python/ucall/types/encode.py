"""What a function returned that JSON has no word for, turned into what the core can write.

The core writes None, bool, int, float, str, list, tuple, dict and bytes by itself, and asks here
about all else; what comes back may again hold what it asks about. Arrays go as the pieces of a
`.npy`, which the core joins in the reply. How a class is encoded is found once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeAlias

from ucall._core import Pieces, Unwritable
from ucall.types.messages import require, type_name

__all__ = ["Encoder", "is_derived"]

Encode: TypeAlias = Callable[[Any], object]

#: What the core writes before it would ask.
_WRITTEN = (bool, int, float, str, list, tuple, dict, bytes, bytearray, memoryview, type(None))

#: What the core writes where msgspec would not leave it as it is.
_CORE_TYPES = (bytes, bytearray, memoryview, Pieces)

#: Kinds of NumPy's scalars: bool, integers, floats.
_NUMBERS = "biuf"

_BY_MSGSPEC = (
    ("builtins", "set"),
    ("builtins", "frozenset"),
    ("datetime", "date"),
    ("datetime", "time"),
    ("datetime", "timedelta"),
    ("decimal", "Decimal"),
    ("enum", "Enum"),
    ("msgspec", "Struct"),
    ("msgspec", "Raw"),
    ("uuid", "UUID"),
)


class Encoder:
    """Encodes by class, with what a user has registered first."""

    def __init__(self) -> None:
        self._registered: dict[type, Encode] = {}
        self._known: dict[type, Encode] = {}

    def register(self, kind: type, encode: Encode) -> None:
        """Encodes a class, and those derived from it, by a user's own function.

        Raises:
            TypeError: The core writes such objects by itself, and would never ask.
        """
        if issubclass(kind, _WRITTEN):
            raise TypeError(f"{type_name(kind)} is written as what it derives from")
        self._registered[kind] = encode
        self._known.clear()

    def encode(self, value: Any) -> object:
        """What to write in place of a value.

        Raises:
            Unwritable: There is nothing.
        """
        kind = type(value)
        encode = self._known.get(kind)
        if encode is None:
            encode = self._known[kind] = self._find_encoder(kind)
        return encode(value)

    def _find_encoder(self, kind: type) -> Encode:
        for base in kind.__mro__:
            if base in self._registered:
                return self._registered[base]
        for module, name, encode in _BUILTIN_ENCODERS:
            if is_derived(kind, module, name):
                return encode
        if hasattr(kind, "__pydantic_serializer__") or kind.__module__.startswith("pydantic"):
            return self._by_pydantic
        if hasattr(kind, "__dataclass_fields__") or any(is_derived(kind, *n) for n in _BY_MSGSPEC):
            return self._by_msgspec
        return _reject

    def _by_msgspec(self, value: Any) -> object:
        """Dicts, lists and scalars; the parts of other types as they are encoded here."""
        msgspec = _require("msgspec", value)
        try:
            return msgspec.to_builtins(
                value, builtin_types=_CORE_TYPES, str_keys=True, enc_hook=self.encode
            )
        except (TypeError, ValueError) as error:
            if isinstance(error, Unwritable):
                raise
            raise Unwritable(f"{_type_name(value)} cannot be written as JSON: {error}") from error

    def _by_pydantic(self, value: Any) -> object:
        """As pydantic writes JSON, by the names that it reads."""
        pydantic_core = _require("pydantic_core", value)
        serializer = getattr(type(value), "__pydantic_serializer__", None)
        try:
            if serializer is not None:
                return serializer.to_python(
                    value, mode="json", by_alias=True, fallback=self._encode_in_model
                )
            return pydantic_core.to_jsonable_python(value, by_alias=True, inf_nan_mode="constants")
        except ValueError as error:
            if isinstance(error, Unwritable):
                raise
            raise Unwritable(f"{_type_name(value)} cannot be written as JSON: {error}") from error

    def _encode_in_model(self, value: Any) -> object:
        """What pydantic does not know. Bytes are no base64 to it, so it would read others back."""
        encoded = self.encode(value)
        return _reject(value) if isinstance(encoded, (bytes, Pieces)) else encoded


def _array(value: Any) -> object:
    from ucall.types.arrays import array_pieces

    try:
        header, items = array_pieces(value)
        return Pieces(header, items.data)
    except TypeError as error:
        raise Unwritable(str(error)) from None


def _scalar(value: Any) -> object:
    """A scalar of NumPy. A long double has no item other than itself."""
    kind = value.dtype.kind
    if kind in _NUMBERS:
        item: Any = value.item()
        return float(value) if type(item) is type(value) else item
    if kind == "M":
        return str(value)
    raise Unwritable(f"{_type_name(value)} cannot be written as JSON")


def _image(value: Any) -> object:
    from ucall.types.images import encode_image

    try:
        return encode_image(value)
    except (OSError, ValueError) as error:
        raise Unwritable(f"{_type_name(value)} cannot be written: {error}") from None


def _reject(value: Any) -> object:
    raise Unwritable(f"{_type_name(value)} cannot be written as JSON")


_BUILTIN_ENCODERS: tuple[tuple[str, str, Encode], ...] = (
    ("numpy", "ndarray", _array),
    ("numpy", "generic", _scalar),
    ("PIL.Image", "Image", _image),
)


def is_derived(kind: type, module: str, name: str) -> bool:
    """Whether it is derived from a class, whose module must be there if it is."""
    base = getattr(sys.modules.get(module), name, None)
    return isinstance(base, type) and issubclass(kind, base)


def _require(module: str, value: object) -> Any:
    try:
        return require(module, _type_name(value))
    except ImportError as error:
        raise Unwritable(str(error)) from None


def _type_name(value: object) -> str:
    kind = type(value)
    package = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    return f"{package}{kind.__qualname__}"
