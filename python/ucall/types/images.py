"""Pillow's images as encoded files in memory, and back, within an allow-list and a pixel limit."""

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
"""The formats that are written and read, by Pillow's names."""

PIXELS_MAX = 64 * 1024 * 1024
"""Width times height that an image may have, by default."""

PIXEL_BUDGET_MAX = 4 * PIXELS_MAX
"""Width times height of all images together that a server has taken and still holds, by default."""

#: What is not the format itself, and counts as it.
_ALIASES = {"MPO": "JPEG"}

#: How a file of each format begins; a dot stands for any byte.
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
    """Counts the pixels of images for as long as these are there, up to a limit.

    A file of a kilobyte may hold millions of pixels, and a call, or many at once, many such files.
    """

    def __init__(self, pixels_max: int = PIXEL_BUDGET_MAX) -> None:
        self._pixels_max = pixels_max
        self._reserved = 0
        # Images end on any thread, and at any moment: they are only noted there.
        self._freed: deque[int] = deque()

    def reserve(self, image: Image) -> None:
        """Counts an image that is not decoded yet.

        Raises:
            RPCError: There are too many already (-32003).
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
    """The image as a file, in its own format if that is in `FORMATS`, else as PNG.

    An image that was not read from a file has no format. Nothing is lost on the way, except what
    JPEG loses; it is written with the quality that it was read with, where Pillow can tell.
    """
    kind = _ALIASES.get(image.format or "", image.format or "")
    if kind not in FORMATS:
        return _saved(image, "PNG")
    try:
        return _saved(image, kind)
    except (OSError, ValueError):
        return _saved(image, "PNG")  # Its mode has changed to one that the format does not have.


def decode_image(
    data: bytes | bytearray | memoryview,
    pixels_max: int = PIXELS_MAX,
    budget: PixelBudget | None = None,
) -> Image:
    """Reads an image, whole, so that one which is broken is found here.

    Args:
        pixels_max: Width times height. Checked before a pixel is decoded. Pillow's own limit, of
            about 179 million, stays.
        held: Counts them.

    Raises:
        ValueError: It is in none of `FORMATS`, has too many pixels, or is broken.
        RPCError: ``budget`` has too many.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        image = Image.open(io.BytesIO(data), formats=FORMATS)
    except UnidentifiedImageError:
        raise ValueError(f"no image in any of the formats {', '.join(FORMATS)}") from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise ValueError(f"the image is too large: {error}") from None
    except Exception as error:  # Pillow raises what its plugins happen to raise.
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
    """Which of `FORMATS` a file is in, by its first 16 bytes; ``None`` if in none. No Pillow."""
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
    except ValueError:  # It is no longer what was read from a JPEG file.
        out.seek(0)
        out.truncate()
        image.save(out, "JPEG", quality=95)
