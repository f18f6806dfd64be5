"""Pillow images as parameters and results."""

from __future__ import annotations

import base64
import io
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from PIL import Image

import ucall
from harness import Wire

ConnectTo = Callable[..., Wire]


def encoded(image: Image.Image, kind: str, **how: Any) -> str:
    file = io.BytesIO()
    image.save(file, kind, **how)
    return base64.b64encode(file.getvalue()).decode()


def opened(result: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(result, validate=True)))


def sample(mode: str, size: tuple[int, int] = (8, 6)) -> Image.Image:
    bands = len(Image.new(mode, (1, 1)).getbands())
    pixels = bytes(i * 7 % 256 for i in range(size[0] * size[1] * bands))
    return Image.frombytes(mode, size, pixels)


def echo(image: Image.Image) -> Image.Image:
    return image


def mirrored(image: Image.Image) -> Image.Image:
    assert image.format
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)


KINDS = [
    *((kind, mode) for kind in ("PNG", "TIFF") for mode in ("1", "L", "RGB", "RGBA", "LA")),
    *(("WEBP", mode) for mode in ("RGB", "RGBA")),
    *(("BMP", mode) for mode in ("L", "RGB")),
    ("GIF", "L"),
]


@pytest.mark.parametrize(("kind", "mode"), KINDS)
def test_images_round_trip(connect_to: ConnectTo, kind: str, mode: str) -> None:
    image = sample("L").convert("1") if mode == "1" else sample(mode)
    how = {"lossless": True} if kind == "WEBP" else {}
    back = opened(connect_to(echo).result("echo", [encoded(image, kind, **how)]))
    assert (back.format, back.size) == (kind, image.size)
    assert back.convert(mode).tobytes() == image.tobytes()


@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_jpeg_stays_jpeg(connect_to: ConnectTo, mode: str) -> None:
    given = encoded(Image.linear_gradient("L").convert(mode), "JPEG")
    back = opened(connect_to(echo).result("echo", [given]))
    assert (back.format, back.mode, back.size) == ("JPEG", mode, (256, 256))
    was = opened(given).tobytes()
    assert max(abs(a - b) for a, b in zip(back.tobytes(), was, strict=True)) <= 2


def test_grey_webp_is_decoded_as_colour(connect_to: ConnectTo) -> None:
    back = opened(connect_to(echo).result("echo", [encoded(sample("L"), "WEBP", lossless=True)]))
    assert (back.format, back.mode) == ("WEBP", "RGB")
    assert back.convert("L").tobytes() == sample("L").tobytes()


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "P", "F", "CMYK"])
def test_an_image_without_a_format_is_sent_as_png(connect_to: ConnectTo, mode: str) -> None:
    def give() -> Image.Image:
        return Image.new(mode, (3, 2))

    reply = connect_to(give).call("give")
    if mode in ("F", "CMYK"):  # PNG supports neither.
        assert reply["error"]["code"] == -32603
        assert reply["error"]["data"].startswith("result: ")
    else:
        assert opened(reply["result"]).format == "PNG"


def test_a_derived_image_is_sent_as_png(connect_to: ConnectTo) -> None:
    assert opened(connect_to(mirrored).result("mirrored", [encoded(sample("L"), "TIFF")])).size == (
        8,
        6,
    )


def png_of(width: int, height: int, data: bytes = b"") -> str:
    """A small file that claims this many pixels."""

    def chunk(name: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        )

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return base64.b64encode(
        b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", data) + chunk(b"IEND", b"")
    ).decode()


BAD: list[tuple[Any, str]] = [
    ("", ": no image in any of the formats PNG, JPEG, WEBP, TIFF, GIF, BMP"),
    ("AAAA", ": no image in any of the formats PNG, JPEG, WEBP, TIFF, GIF, BMP"),
    ("?", ", got a str that is no base64"),
    (1, ", got int"),
    (None, ", got None"),
    ([[1]], ", got list"),
    (
        png_of(8193, 8192),
        ": the image has 8193 x 8192 pixels, more than max_image_pixels (67108864)",
    ),
    (png_of(50_000, 50_000), ": the image is too large: "),
    (png_of(4, 4, b"garbage"), ": the image cannot be read: "),
    (encoded(sample("RGB"), "PPM"), ": no image in any of the formats"),
    (encoded(sample("RGB"), "ICO"), ": no image in any of the formats"),
    (base64.b64encode(b"%!PS-Adobe-3.0 EPSF-3.0\n").decode(), ": no image in any of the formats"),
]


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize(("given", "problem"), BAD)
def test_bad_images_are_refused(connect_to: ConnectTo, given: Any, problem: str) -> None:
    error = connect_to(echo).error("echo", [given])
    assert error["code"] == -32602
    assert error["data"].startswith("params.image: expected image in base64" + problem)


def test_the_pixel_limit_is_per_server(connect_to: ConnectTo) -> None:
    wire = connect_to(echo, max_image_pixels=48)
    assert opened(wire.result("echo", [encoded(sample("L"), "PNG")])).size == (8, 6)
    error = wire.error("echo", [encoded(sample("L", (7, 7)), "PNG")])
    assert error["data"].endswith("the image has 7 x 7 pixels, more than max_image_pixels (48)")


def test_pixels_are_counted_while_images_exist(connect_to: ConnectTo) -> None:
    """Small files with many pixels: two in a call, or one that a function keeps."""
    kept: list[Any] = []

    def count(images: list[Image.Image], keeps: bool = False) -> int:
        kept.extend(images if keeps else [])
        return len(images)

    wire = connect_to(count, max_held_image_pixels=96)
    one = encoded(sample("1"), "PNG")
    for _ in range(3):
        assert wire.result("count", [[one, one]]) == 2
        error = wire.error("count", [[one, one, one]])
        assert (error["code"], error["message"]) == (-32003, "Overloaded")
        assert error["data"] == {"retry_after_ms": 1000, "max_held_image_pixels": 96}
    assert wire.result("count", [[one], True]) == 1
    assert wire.error("count", [[one, one]])["code"] == -32003
    assert wire.result("count", [[one]]) == 1
    kept.clear()
    assert wire.result("count", [[one, one]]) == 2


@dataclass
class Product:
    title: str
    photos: list[Image.Image]
    thumbnail: Image.Image | None = None


def thumbnailed(product: Product) -> Product:
    return Product(product.title, product.photos[:1], product.photos[0].resize((2, 2)))


def test_images_nest_in_other_types(connect_to: ConnectTo) -> None:
    wire = connect_to(thumbnailed)
    photos = [encoded(sample("RGB"), "PNG"), encoded(sample("L"), "GIF")]
    product = wire.result("thumbnailed", [{"title": "a", "photos": photos}])
    assert opened(product["photos"][0]).tobytes() == sample("RGB").tobytes()
    assert opened(product["thumbnail"]).size == (2, 2)
    error = wire.error("thumbnailed", [{"title": "a", "photos": [photos[0], "AAAA"]}])
    assert error["data"].startswith("params.product.photos[1]: expected image in base64: no image")


def test_a_module_is_not_an_annotation() -> None:
    def function(image: Image) -> None: ...  # type: ignore[valid-type]

    with pytest.raises(TypeError, match=r"parameter 'image': .*PIL\.Image"):
        ucall.Server(port=0).add(function)
