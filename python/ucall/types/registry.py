"""The types that a server supports besides JSON's: NumPy's, Pillow's and registered ones."""

from __future__ import annotations

import binascii
import functools
import sys
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from ucall.types import scalars
from ucall.types.encode import Encoder
from ucall.types.messages import Explained, Takes, UnsupportedType, kind_of, type_name

if TYPE_CHECKING:
    from ucall._core import ArrayType
    from ucall.types.images import PixelBudget

__all__ = ["Decoder", "TypeRegistry"]


@dataclass(frozen=True)
class Decoder:
    """Builds the values of a type.

    Args:
        form: The argument of ``decode``: ``"text"`` for JSON text as bytes, ``"value"`` for a value
            of JSON, ``"binary"`` for the same with strings decoded from base64 to bytearray.
        decode: Builds the value. ValueError or TypeError refuse it, with a message that says what
            was expected.
        type_name: The name of the type in messages.
        array_type: What the core builds by itself.
    """

    form: Literal["text", "value", "binary"]
    decode: Callable[[Any], Any]
    type_name: str
    array_type: ArrayType | None = None

    def takes(self) -> Takes:
        """The description for the core."""
        if self.array_type is not None:
            return "array", self.array_type
        return "custom", (self.form, self.decode, explain, self.type_name)

    def decode_part(self, value: Any) -> Any:
        """Builds a value that is a part of a type which ``msgspec`` builds."""
        if self.form == "binary" and isinstance(value, str):
            value = bytearray(_of_base64(value, self.type_name))
        return self.decode(value)


def explain(error: BaseException, given: object, limit: int) -> Explained:
    """The message of a decoder's exception."""
    return [(str(error), [])] if isinstance(error, (ValueError, TypeError)) else []


#: A type, its encoder and its decoder.
_Given = tuple[type, Callable[[Any], object], Callable[[Any], Any]]


class TypeRegistry:
    """The decoders and encoders of one server.

    Args:
        max_image_pixels: The limit of an image's width times height.
        max_held_image_pixels: The same of all received images that still exist.
    """

    def __init__(self, max_image_pixels: int, max_held_image_pixels: int) -> None:
        self._max_image_pixels = max_image_pixels
        self._max_held_image_pixels = max_held_image_pixels
        self._reserved: PixelBudget | None = None
        self._registered: dict[Any, Decoder] = {}
        #: The arguments of each `register`.
        self._given: list[_Given] = []
        self._found: dict[Any, Decoder] = {}
        self._encoder = Encoder()
        self.encode = self._encoder.encode

    def register(
        self, kind: type, encode: Callable[[Any], object], decode: Callable[[Any], Any]
    ) -> None:
        """Registers a type. See `ucall.Server.register_type`."""
        if not isinstance(kind, type):
            raise TypeError(f"{kind!r} is not a class")
        if not callable(encode) or not callable(decode):
            raise TypeError(f"{type_name(kind)}: encode and decode must be callable")
        self._encoder.register(kind, encode)
        named = functools.partial(_decode_registered, decode, type_name(kind))
        self._registered[kind] = Decoder("value", named, type_name(kind))
        self._given.append((kind, encode, decode))

    def __reduce__(self) -> tuple[Callable[..., TypeRegistry], tuple[object, ...]]:
        """Pickles what was registered, for a process of a pool, without what was built of it."""
        limits = self._max_image_pixels, self._max_held_image_pixels
        return _registry_of, (*limits, self._given)

    def is_registered(self, kind: object) -> bool:
        """Whether the class is registered."""
        return _lookup(self._registered, kind) is not None

    def decoder_of(self, annotation: Any) -> Decoder | None:
        """The decoder of a registered type, an array, an image, a path or a NumPy scalar; ``None``
        for other types.

        Raises:
            UnsupportedType: It is an array of an unsupported dtype.
        """
        known = _lookup(self._registered, annotation) or _lookup(self._found, annotation)
        if known is None:
            known = self._find_decoder(annotation)
            if known is not None:
                self._found[annotation] = known
        return known

    def _find_decoder(self, annotation: Any) -> Decoder | None:
        kind = typing.get_origin(annotation) or annotation
        if _is_named(kind, "numpy", "ndarray"):
            from ucall.types.array_params import array_type

            built = array_type(annotation)
            return Decoder("binary", built.decode, built.type_name, built)
        if _is_named(kind, "PIL.Image", "Image"):
            decode = functools.partial(_decode_image, self._max_image_pixels, self._pixel_budget())
            return Decoder("binary", decode, _IMAGE)
        if isinstance(kind, type) and hasattr(kind, "__dlpack__"):
            advice = "functions get NumPy's arrays: annotate it as numpy.ndarray"
            raise UnsupportedType(type_name(annotation), f"{advice}, and make a tensor of that")
        scalar = scalars.decoder(annotation)
        return None if scalar is None else Decoder("value", *scalar)

    def _pixel_budget(self) -> PixelBudget:
        """The limit that all parameters of the server share."""
        if self._reserved is None:
            from ucall.types.images import PixelBudget

            self._reserved = PixelBudget(self._max_held_image_pixels)
        return self._reserved

    def decode_part(self, kind: Any, value: Any) -> Any:
        """Builds a registered type, an array or an image in a type that ``msgspec`` builds."""
        decoder = self.decoder_of(kind)
        if decoder is None:
            raise TypeError(f"{type_name(kind)} has no decoder")
        return decoder.decode_part(value)


def _registry_of(max_pixels: int, max_held_pixels: int, given: list[_Given]) -> TypeRegistry:
    registry = TypeRegistry(max_pixels, max_held_pixels)
    for kind, encode, decode in given:
        registry.register(kind, encode, decode)
    return registry


_IMAGE = "image in base64"


def _decode_image(pixels_max: int, budget: PixelBudget, value: Any) -> Any:
    if not isinstance(value, bytearray):
        raise ValueError(f"expected {_IMAGE}, got {kind_of(value)}")
    from ucall.types.images import decode_image

    try:
        return decode_image(value, pixels_max, budget)
    except ValueError as error:
        raise ValueError(f"expected {_IMAGE}: {error}") from None


def _decode_registered(decode: Callable[[Any], Any], name: str, value: Any) -> Any:
    try:
        return decode(value)
    except (ValueError, TypeError) as error:
        raise ValueError(f"expected {name}, got {kind_of(value)}: {error}") from error


def _of_base64(text: str, expected: str) -> bytes:
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except ValueError:
        raise ValueError(f"expected {expected}, got a str that is no base64") from None


def _is_named(kind: object, module: str, name: str) -> bool:
    """Whether it is the named class. If so, the module of that is imported already."""
    return kind is not None and kind is getattr(sys.modules.get(module), name, None)


def _lookup(registered: dict[Any, Decoder], kind: object) -> Decoder | None:
    try:
        return registered.get(kind)
    except TypeError:  # It has no hash.
        return None
