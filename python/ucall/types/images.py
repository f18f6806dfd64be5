"""Encodes and decodes Pillow's images, in a list of formats and below a number of pixels."""

from __future__ import annotations

import io
import weakref
from collections import deque
from typing import TYPE_CHECKING

from ucall.errors import RPCError

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["FORMATS", "PIXELS_MAX", "PixelBudget", "decode_image", "encode_image", "sniff_format"]

FORMATS = ("PNG", "JPEG", "WEBP", "TIFF", "GIF", "BMP")
"""The supported formats, by Pillow's names."""

PIXELS_MAX = 64 * 1024 * 1024
"""The default limit of an image's width times height."""

#: Formats that count as another one.
_ALIASES = {"MPO": "JPEG"}

#: The first bytes of each format; a dot matches any byte.
_SIGNATURES = (
    ("PNG", b"\x89PNG\r\n\x1a\n"),
    ("JPEG", b"\xff\xd8\xff"),
    ("WEBP", b"RIFF....WEBP"),
    ("TIFF", b"II*\0"),
    ("TIFF", b"MM\0*"),
    ("GIF", b"GIF8"),
    ("BMP", b"BM"),
)


class PixelBudget:
    """Limits the pixels of all images that exist.

    A file of a kilobyte may hold millions of pixels, and one call may have many such files.
    """

    def __init__(self, pixels_max: int) -> None:
        self._pixels_max = pixels_max
        self._reserved = 0
        # Finalizers run on any thread at any time: they only append.
        self._freed: deque[int] = deque()

    def reserve(self, image: Image) -> None:
        """Reserves the pixels of an image before it is decoded.

        Raises:
            RPCError: The limit is exceeded (-32003).
        """
        while self._freed:
            self._reserved -= self._freed.popleft()
        pixels = image.width * image.height
        if self._reserved + pixels > self._pixels_max:
            data = {"retry_after_ms": 1000, "max_held_image_pixels": self._pixels_max}
            raise RPCError(-32003, "Overloaded", data)
        self._reserved += pixels
        weakref.finalize(image, self._freed.append, pixels).atexit = False


def encode_image(image: Image) -> bytes:
    """Encodes an image in the format that it was read from, if that is in `FORMATS`, else as PNG.

    The encoding is lossless except for JPEG, which keeps the quality that it was read with if
    Pillow knows it.
    """
    kind = _ALIASES.get(image.format or "", image.format or "")
    if kind not in FORMATS:
        return _saved(image, "PNG")
    try:
        return _saved(image, kind)
    except (OSError, ValueError):
        return _saved(image, "PNG")  # The format does not support the image's mode.


def decode_image(
    data: bytes | bytearray | memoryview,
    pixels_max: int = PIXELS_MAX,
    budget: PixelBudget | None = None,
) -> Image:
    """Decodes a whole image.

    Args:
        pixels_max: The limit of width times height, checked before decoding. Pillow's own limit of
            about 179 million applies too.
        budget: The limit of the pixels of all images.

    Raises:
        ValueError: It is in none of `FORMATS`, has too many pixels, or is invalid.
        RPCError: ``budget`` is exceeded (-32003).
    """
    from PIL import Image, UnidentifiedImageError

    try:
        image = Image.open(io.BytesIO(data), formats=FORMATS)
    except UnidentifiedImageError:
        raise ValueError(f"no image in any of the formats {', '.join(FORMATS)}") from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise ValueError(f"the image is too large: {error}") from None
    except Exception as error:  # Pillow documents no set of exceptions.
        raise ValueError(f"the image cannot be read: {error}") from None
    width, height = image.size
    if width * height > pixels_max:
        raise ValueError(
            f"the image has {width} x {height} pixels, more than max_image_pixels ({pixels_max})"
        )
    if budget is not None:
        budget.reserve(image)
    try:
        image.load()
    except Exception as error:
        raise ValueError(f"the image cannot be read: {error}") from None
    return image


def sniff_format(data: bytes) -> str | None:
    """The format of a file by its first 16 bytes; ``None`` if it is not in `FORMATS`."""
    for kind, signature in _SIGNATURES:
        found = zip(data, signature, strict=False)
        if len(data) >= len(signature) and all(a == b or b == ord(".") for a, b in found):
            return kind
    return None


def _saved(image: Image, kind: str) -> bytes:
    out = io.BytesIO()
    if kind == "JPEG":
        _save_jpeg(image, out)
    elif kind == "WEBP":
        image.save(out, kind, lossless=True)
    else:
        image.save(out, kind)
    return out.getvalue()


def _save_jpeg(image: Image, out: io.BytesIO) -> None:
    try:
        image.save(out, "JPEG", quality="keep")
    except ValueError:  # The image was changed since it was read.
        out.seek(0)
        out.truncate()
        image.save(out, "JPEG", quality=95)
