"""Encodes results of types that JSON does not have.

The core writes None, bool, int, float, str, list, tuple, dict, bytes and NumPy's arrays, and calls
`Encoder.encode` for other objects; the encoded object may contain such objects again. The encoder
of a class is looked up once.

``msgspec`` writes the dataclasses in an object as such, whether pydantic or a registered encoder
should. It therefore writes only objects whose fields, by their annotations, hold none of these;
others are encoded one level at a time.
"""

from __future__ import annotations

import collections
import functools
import pathlib
import sys
from collections.abc import Callable
from typing import Any, TypeAlias

from ucall._core import ArrayLike, Unwritable
from ucall.types.messages import require, type_name

__all__ = ["Encoder", "encode_scalar", "is_derived"]

Encode: TypeAlias = Callable[[Any], object]

#: Types that the core writes without calling `Encoder.encode`.
_WRITTEN = (bool, int, float, str, list, tuple, dict, bytes, bytearray, memoryview, type(None))

#: Types that msgspec must leave as they are, because the core writes them.
_CORE_TYPES = (bytes, bytearray, memoryview, ArrayLike)

#: Kinds of NumPy's scalars whose items are written: bool, integers, floats, text, bytes.
_WRITTEN_KINDS = "biufUS"

_BY_MSGSPEC = (
    ("datetime", "date"),
    ("datetime", "time"),
    ("datetime", "timedelta"),
    ("decimal", "Decimal"),
    ("enum", "Enum"),
    ("uuid", "UUID"),
)

#: Classes that are written as lists of their items.
_LISTS = (set, frozenset, collections.deque, range)

#: What classes with fields have: dataclasses, attrs and Structs.
_FIELDS = ("__dataclass_fields__", "__attrs_attrs__", "__struct_fields__")


class Encoder:
    """Encodes objects by their class. Registered classes come first."""

    def __init__(self) -> None:
        self._registered: dict[type, Encode] = {}
        self._known: dict[type, Encode] = {}

    def register(self, kind: type, encode: Encode) -> None:
        """Registers a function that encodes a class and its derived classes.

        Raises:
            TypeError: The core writes such objects itself.
        """
        if issubclass(kind, _WRITTEN):
            raise TypeError(f"{type_name(kind)} is written as what it derives from")
        numpy = sys.modules.get("numpy")
        if kind is object or (numpy is not None and issubclass(kind, numpy.ndarray)):
            ArrayLike.are_registered()
        self._registered[kind] = encode
        self._known.clear()

    def encode(self, value: Any) -> object:
        """The object to write for a value.

        Raises:
            Unwritable: The type has no encoder, or its encoder refuses the value.
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
        if hasattr(kind, "__pydantic_serializer__"):
            return self._find_class_encoder(kind)
        if kind.__module__.startswith("pydantic"):
            return self._by_pydantic
        if issubclass(kind, _LISTS):
            return list
        if issubclass(kind, pathlib.PurePath):
            return str
        if any(hasattr(kind, name) for name in _FIELDS):
            return self._find_class_encoder(kind)
        if any(is_derived(kind, *named) for named in _BY_MSGSPEC):
            return self._by_msgspec
        return _array_like

    def _find_class_encoder(self, kind: type) -> Encode:
        from ucall.types import fields
        from ucall.types.classes import is_pydantic

        if is_pydantic(kind):
            return functools.partial(self._by_serializer, fields.serializer(kind))
        if fields.hold_only_plain(kind, self._registered):
            return self._by_msgspec
        is_struct = hasattr(kind, "__struct_fields__")
        return fields.of_struct if is_struct else fields.of_objects(kind)

    def _by_msgspec(self, value: Any) -> object:
        """Encodes by msgspec; parts of other types by this encoder."""
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
        """Encodes an object of a type of pydantic's own, such as a URL."""
        pydantic_core = _require("pydantic_core", value)
        try:
            return pydantic_core.to_jsonable_python(value, by_alias=True, inf_nan_mode="constants")
        except ValueError as error:
            raise Unwritable(f"{_type_name(value)} cannot be written as JSON: {error}") from error

    def _by_serializer(self, serializer: Any, value: Any) -> object:
        """Encodes by pydantic, with the names that it validates."""
        try:
            return serializer.to_python(
                value, mode="json", by_alias=True, fallback=self._encode_in_model
            )
        except ValueError as error:
            if isinstance(error, Unwritable):
                raise
            raise Unwritable(f"{_type_name(value)} cannot be written as JSON: {error}") from error

    def _encode_in_model(self, value: Any) -> object:
        """Encodes a part that pydantic does not know. Bytes are refused: it reads no base64."""
        encoded = self.encode(value)
        return _reject(value) if isinstance(encoded, (bytes, ArrayLike)) else encoded


def encode_scalar(value: Any) -> object:
    """Encodes a NumPy scalar.

    Raises:
        Unwritable: JSON has no such value.
    """
    kind = value.dtype.kind
    if kind in _WRITTEN_KINDS:
        item: Any = value.item()  # That of a long double is a long double again.
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


def _raw(value: Any) -> object:
    msgspec = _require("msgspec", value)
    try:
        return msgspec.json.decode(value)
    except ValueError as error:
        raise Unwritable(f"{_type_name(value)} cannot be written as JSON: {error}") from None


def _array_like(value: Any) -> object:
    """Leaves tensors of other libraries, buffers and what NumPy makes arrays of to the core."""
    if ArrayLike.accepts(value):
        return ArrayLike(value)
    return ArrayLike(_as_array(value)) if hasattr(type(value), "__array__") else _reject(value)


def _as_array(value: Any) -> object:
    numpy = _require("numpy", value)
    try:
        return numpy.asarray(value)
    except Exception as error:  # That of another library.
        raise Unwritable(f"{_type_name(value)} cannot be written as an array: {error}") from error


def _reject(value: Any) -> object:
    raise Unwritable(f"{_type_name(value)} cannot be written as JSON")


_BUILTIN_ENCODERS: tuple[tuple[str, str, Encode], ...] = (
    ("numpy", "ndarray", ArrayLike),
    ("numpy", "generic", encode_scalar),
    ("PIL.Image", "Image", _image),
    ("msgspec", "Raw", _raw),
)


def is_derived(kind: type, module: str, name: str) -> bool:
    """Whether a class derives from a named one. If so, the module of that is imported already."""
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
