"""What the typed clients of ``ucall stub`` import: omitted params, and decoders of results.

A decoder makes the value of an annotation from a result or an item in JSON's types. Programs may
use them too: ``stubs.array_of(item)`` is the array of a stream's item.
"""

from __future__ import annotations

import base64
import datetime
import decimal
import enum
import uuid
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL.Image import Image

    import ucall.aio
    import ucall.client

__all__ = [
    "OMITTED",
    "Omitted",
    "array_of",
    "async_items",
    "bytes_of",
    "date_of",
    "datetime_of",
    "decimal_of",
    "dict_of",
    "given",
    "given_positions",
    "image_of",
    "items",
    "list_of",
    "members",
    "nothing",
    "optional",
    "time_of",
    "unchanged",
    "uuid_of",
]

T = TypeVar("T")


class Omitted(enum.Enum):
    """The type of `OMITTED`."""

    OMITTED = "omitted"


#: A param that is not sent, so that the server's default counts.
OMITTED: Final[Literal[Omitted.OMITTED]] = Omitted.OMITTED


def given(params: Mapping[str, object]) -> dict[str, Any]:
    """The params that are not omitted."""
    return {name: value for name, value in params.items() if value is not OMITTED}


def given_positions(params: Sequence[object]) -> Sequence[object]:
    """The params before the first one that is omitted.

    Raises:
        TypeError: A later one is not omitted, and cannot be sent without it.
    """
    if OMITTED not in params:
        return params
    end = params.index(OMITTED)
    if any(param is not OMITTED for param in params[end:]):
        raise TypeError(f"params go by position: param {end} is omitted before one that is given")
    return params[:end]


def unchanged(value: Any) -> Any:
    """A value that JSON has."""
    return value


def bytes_of(value: Any) -> bytes:
    """The bytes of base64.

    Raises:
        ValueError: The value is not base64 (RFC 4648, section 4).
    """
    return base64.b64decode(value, validate=True)


def array_of(value: Any) -> NDArray[Any]:
    """The array of a `.npy` in base64, or of nested lists.

    Raises:
        ValueError: The value is neither.
    """
    from ucall.types.arrays import decode_array

    if isinstance(value, str):
        return decode_array(bytes_of(value))
    import numpy

    return numpy.array(value)


def image_of(value: Any) -> Image:
    """The image of an image file in base64, of at most 67,108,864 pixels.

    Raises:
        ValueError: The value is not such a file.
    """
    from ucall._client.base import IMAGE_PIXELS_MAX
    from ucall.types.images import decode_image

    return decode_image(bytes_of(value), IMAGE_PIXELS_MAX)


def date_of(value: Any) -> datetime.date:
    """The date of a text such as ``"2026-11-23"``."""
    return datetime.date.fromisoformat(value)


def datetime_of(value: Any) -> datetime.datetime:
    """The date and time of a text such as ``"2026-11-23T12:00:00Z"``."""
    return datetime.datetime.fromisoformat(value)


def time_of(value: Any) -> datetime.time:
    """The time of a text such as ``"12:00:00"``."""
    return datetime.time.fromisoformat(value)


def uuid_of(value: Any) -> uuid.UUID:
    """The UUID of its text."""
    return uuid.UUID(value)


def decimal_of(value: Any) -> decimal.Decimal:
    """The decimal number of its text."""
    return decimal.Decimal(value)


def optional(decode: Callable[[Any], T]) -> Callable[[Any], T | None]:
    """A decoder that leaves ``None`` as it is."""
    return lambda value: None if value is None else decode(value)


def list_of(decode: Callable[[Any], T]) -> Callable[[Any], list[T]]:
    """A decoder of each item of a list."""
    return lambda value: [decode(item) for item in value]


def dict_of(decode: Callable[[Any], T]) -> Callable[[Any], dict[str, T]]:
    """A decoder of each value of a dict."""
    return lambda value: {name: decode(item) for name, item in value.items()}


def members(value: Any, decoders: Mapping[str, Callable[[Any], object]]) -> dict[str, Any]:
    """An object whose members of these names are decoded."""
    decoded = {name: decode(value[name]) for name, decode in decoders.items() if name in value}
    return {**value, **decoded}


def nothing(_: object) -> None:
    """The decoder of a value that has no description."""


def items(
    stream: ucall.client.Stream,
    decode: Callable[[Any], T],
    decode_returned: Callable[[Any], Any] = nothing,
) -> Generator[T, None, Any]:
    """The decoded items of a stream, and what the function returned at the end. Closing the
    generator cancels the call."""
    return _items(iter(stream), stream, decode, decode_returned)


def _items(
    items: Iterator[Any],
    stream: ucall.client.Stream,
    decode: Callable[[Any], T],
    decode_returned: Callable[[Any], Any],
) -> Generator[T, None, Any]:
    for item in items:
        yield decode(item)
    return decode_returned(stream.result)


def async_items(stream: ucall.aio.Stream, decode: Callable[[Any], T]) -> AsyncGenerator[T, None]:
    """As `items`, for asyncio."""
    return (decode(item) async for item in stream)
