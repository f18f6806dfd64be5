"""Arrays, images and other types through the client, and the codecs of arrays and images alone."""

from __future__ import annotations

import base64
import dataclasses
import datetime
import decimal
import enum
import io
import struct
import uuid
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest
from PIL import Image
from scripted import answering, scripted

import ucall
from ucall.client import Client
from ucall.types.arrays import decode_array, encode_array
from ucall.types.images import FORMATS, decode_image, encode_image, sniff_format

NUMBERS = ["?", *"bhilqBHILQefdgFDG", ">i4", ">f8", "<u2", ">c16"]


@pytest.fixture
def client(serve_once: Callable[..., ucall.Server]) -> Iterator[Client]:
    def echo(value: Any) -> Any:
        return value

    with Client(port=serve_once(echo).port) as client:
        yield client


class Color(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


@dataclasses.dataclass
class Street:
    street: str


@dataclasses.dataclass
class Person:
    name: str
    home: Street
    photo: bytes = dataclasses.field(default=b"\0")


UTC = datetime.UTC


@pytest.mark.parametrize(
    ("value", "json"),
    [
        (Person("A", Street("Elm")), {"name": "A", "home": {"street": "Elm"}, "photo": "AA=="}),
        (Color.RED, "red"),
        (Level.HIGH, 3),
        ({"color": Color.RED, "levels": [Level.HIGH]}, {"color": "red", "levels": [3]}),
        (datetime.datetime(2026, 11, 21, 9, 30, tzinfo=UTC), "2026-11-21T09:30:00+00:00"),
        (datetime.date(2026, 11, 21), "2026-11-21"),
        (datetime.time(9, 30, 1, 5), "09:30:01.000005"),
        (datetime.timedelta(days=1, seconds=2, microseconds=500_000), "P1DT2.5S"),
        (datetime.timedelta(seconds=-5), "-P0DT5S"),
        (uuid.UUID(int=5), "00000000-0000-0000-0000-000000000005"),
        (decimal.Decimal("1.10"), "1.10"),
        ((1, (2,)), [1, [2]]),
        (OrderedDict(b=1, a=2), {"b": 1, "a": 2}),
        ({1: "a", False: "b"}, {"1": "a", "false": "b"}),
        (frozenset([1]), [1]),
        (numpy.int8(5), 5),
        (numpy.float32(0.5), 0.5),
        (numpy.longdouble(0.5), 0.5),
        (numpy.bool_(True), True),
        (numpy.str_("a"), "a"),
        (bytearray(b"ab"), "YWI="),
        (memoryview(b"abcd")[::2], "YWM="),
        (2**80, 2**80),
    ],
)  # fmt: skip
def test_objects_are_encoded(client: Client, value: Any, json: Any) -> None:
    assert client.echo(value).json == json
    assert client.echo(value={"inside": [value]}).json == {"inside": [json]}


def test_msgspec_structs(client: Client) -> None:
    msgspec = pytest.importorskip("msgspec")
    Point = msgspec.defstruct("Point", [("x", int), ("y", Any)], rename="upper")
    value = Point(1, Point(numpy.int8(2), None))
    assert client.echo(value).json == {"X": 1, "Y": {"X": 2, "Y": None}}
    array = numpy.arange(3)
    assert client.echo(Point(1, [array])).json == {"X": 1, "Y": [client.echo(array).json]}


def test_pydantic_models(client: Client) -> None:
    pydantic = pytest.importorskip("pydantic")
    Model = pydantic.create_model("Model", inner=(Any, pydantic.Field(serialization_alias="in")))
    assert client.echo(Model(inner=Model(inner=numpy.int8(2)))).json == {"in": {"in": 2}}
    for wrong, problem in [
        (Model(inner=numpy.arange(3)), "numpy.ndarray cannot be written"),
        (Model(inner=b"\xff"), "cannot be written as JSON: .*utf-8"),
    ]:
        with pytest.raises(ValueError, match=problem):
            client.echo(wrong)
    assert client.echo(Model(inner=b"text")).json == {"in": "text"}


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (7,), (3, 5), (2, 3, 4)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_round_trip(client: Client, dtype: str, shape: tuple[int, ...], order: Any) -> None:
    count = int(numpy.prod(shape))
    array = numpy.arange(count).astype(dtype).reshape(shape, order=order)
    back = client.echo(array).numpy
    assert back.dtype == array.dtype and back.shape == array.shape
    assert numpy.array_equal(back, array)
    assert back.flags.writeable
    assert back.flags.f_contiguous == array.flags.f_contiguous


def test_strided_arrays_are_sent_whole(client: Client) -> None:
    array = numpy.arange(24).reshape(4, 6)[::-2, 1::3]
    assert numpy.array_equal(client.echo(array).numpy, array)
    assert numpy.array_equal(client.echo(numpy.broadcast_to(5, (2, 3))).numpy, [[5] * 3] * 2)


def test_lists_of_numbers_are_arrays(client: Client) -> None:
    assert numpy.array_equal(client.echo([[1, 2], [3, 4]]).numpy, [[1, 2], [3, 4]])
    for value in (["a"], [{}], [None]):
        with pytest.raises(ValueError):
            _ = client.echo(value).numpy


@pytest.mark.parametrize(
    "array",
    [
        numpy.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]),
        numpy.array([object()]),
        numpy.array(["text"]),
        numpy.array([b"bytes"]),
        numpy.array(["2026-11-21"], dtype="M8[D]"),
        numpy.array([b"ab"], dtype="V2"),
    ],
)
def test_arrays_of_other_dtypes_are_refused(client: Client, array: Any) -> None:
    with pytest.raises(TypeError, match=r"dtype .* cannot be sent: only bool and numbers"):
        encode_array(array)
    with pytest.raises(ValueError, match=r"params\[0\]\.x: an array of dtype"):
        client.echo({"x": array})


def npy(header: str | bytes, data: bytes = b"", version: tuple[int, int] = (1, 0)) -> bytes:
    text = header.encode() if isinstance(header, str) else header
    size = struct.pack("<H" if version == (1, 0) else "<I", len(text))
    return b"\x93NUMPY" + bytes(version) + size + text + data


def described(shape: str, descr: str = "'<f8'", order: str = "False") -> str:
    return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}}}\n"


def pickled() -> bytes:
    out = io.BytesIO()
    numpy.save(out, numpy.array([print], dtype=object), allow_pickle=True)
    return out.getvalue()


HOSTILE = {
    "empty": b"",
    "other": b"hello, world",
    "pickled": pickled(),
    "8 TiB": npy(described("(1099511627776,)")),
    "overflow": npy(described("(4294967296, 4294967296, 4294967296)")),
    "too long": npy(described("(1,)"), b"\0" * 9),
    "too short": npy(described("(2,)"), b"\0" * 15),
    "negative": npy(described("(-1, -1)"), b"\0" * 8),
    "deep": npy(described("(" + "1," * 100 + ")"), b"\0" * 8),
    "empty and huge": npy(described(f"(0, {2**62}, {2**62})")),
    "structured": npy(described("(1,)", "[('a', '<f8')]"), b"\0" * 8),
    "text": npy(described("(1,)", "'<U2'"), b"\0" * 8),
    "void": npy(described("(1,)", "'|V8'"), b"\0" * 8),
    "no dtype": npy(described("(1,)", "'nonsense'"), b"\0" * 8),
    "call": npy("__import__('os').abort()"),
    "no dict": npy("[1]"),
    "nested": npy("(" * 9000),
    "cut": npy(described("(1,)"))[:20],
    "version 3": npy(described("(1,)"), b"\0" * 8, (3, 0)),
    "version 9": npy(described("(1,)"), b"\0" * 8, (9, 0)),
    "long header": npy(described("(1,)") + " " * 20_000, b"\0" * 8, (2, 0)),
    "claimed header": b"\x93NUMPY\x02\x00\xff\xff\xff\x7f",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_arrays_are_refused(client: Client, name: str) -> None:
    with pytest.raises(ValueError):
        decode_array(HOSTILE[name])
    with pytest.raises(ValueError):
        _ = client.echo(HOSTILE[name]).numpy


def test_a_version_2_header_is_read() -> None:
    assert decode_array(npy(described("(1,)"), b"\0" * 8, (2, 0)))[0] == 0


def test_results_of_the_wrong_kind(client: Client) -> None:
    for value in (5, None, "no base64!", {"a": 1}, "YQ"):
        for shape in ("numpy", "bytes", "image"):
            with pytest.raises(ValueError):
                getattr(client.echo(value), shape)


def picture(mode: str) -> Image.Image:
    colors = Image.linear_gradient("L").resize((40, 30))
    return Image.merge("RGBA", [colors, colors.rotate(90), colors, colors]).convert(mode)


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA"])
def test_images_round_trip_in_their_format(client: Client, kind: str, mode: str) -> None:
    if mode == "RGBA" and kind in ("JPEG", "GIF", "BMP"):
        pytest.skip(f"{kind} has no {mode}")
    file = io.BytesIO()
    # Pillow's own default is 75.
    picture(mode).save(file, kind, quality=95)
    image = decode_image(file.getvalue())
    back = client.echo(value=image).image
    assert back.format == image.format == kind
    assert back.size == (40, 30)
    if kind != "JPEG":
        assert back.convert("RGBA").tobytes() == image.convert("RGBA").tobytes()
    else:
        assert back.quantization == image.quantization  # type: ignore[attr-defined]


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "RGBA", "I;16"])
def test_images_without_a_format_are_sent_as_png(client: Client, mode: str) -> None:
    image = picture("L").convert(mode) if mode != "I;16" else Image.new("I;16", (3, 2), 500)
    back = client.echo(image).image
    assert (back.format, back.mode, back.size) == ("PNG", mode, image.size)
    assert back.tobytes() == image.tobytes()


def test_an_image_with_an_unsupported_mode_is_sent_as_png() -> None:
    file = io.BytesIO()
    picture("RGB").save(file, "JPEG")
    image = Image.open(file)
    image.putalpha(100)
    assert sniff_format(encode_image(image)) == "PNG"


def test_formats_outside_the_list_are_refused(client: Client) -> None:
    for kind in ("PPM", "ICO", "PCX", "PDF"):
        file = io.BytesIO()
        picture("RGB").save(file, kind)
        assert sniff_format(file.getvalue()) is None
        with pytest.raises(ValueError, match="no image in any of the formats PNG, JPEG"):
            _ = client.echo(file.getvalue()).image


def bomb(width: int, height: int) -> bytes:
    """A PNG of a few hundred bytes with this many pixels."""

    def chunk(name: bytes, data: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(name + data))
        return struct.pack(">I", len(data)) + name + data + check

    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    rows = zlib.compress(b"\0" * min((width // 8 + 1) * height, 1 << 20), 9)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")
    )


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("side", [8193, 10_000, 20_000, 60_000])
def test_decompression_bombs_are_refused(client: Client, side: int) -> None:
    with pytest.raises(ValueError, match=r"pixels|too large"):
        decode_image(bomb(side, 8192 if side == 8193 else side))
    with pytest.raises(ValueError, match=r"pixels|too large"):
        _ = client.echo(bomb(side, 8192 if side == 8193 else side)).image


def test_the_pixel_limit_is_exact() -> None:
    data = encode_image(picture("L"))
    assert decode_image(data, 1200).size == (40, 30)
    with pytest.raises(ValueError, match=r"40 x 30 pixels, more than max_image_pixels \(1199\)"):
        decode_image(data, 1199)


def test_the_clients_pixel_limit() -> None:
    def reply(request: Any) -> bytes:
        text = base64.b64encode(encode_image(picture("L"))).decode()
        return f'{{"jsonrpc":"2.0","id":{request["id"]},"result":"{text}"}}'.encode()

    with scripted(answering(reply)) as server:
        assert Client(port=server.port).picture().image.size == (40, 30)
        with pytest.raises(ValueError, match="more than max_image_pixels"):
            _ = Client(port=server.port, max_image_pixels=1199).picture().image


def test_broken_images_are_refused() -> None:
    data = encode_image(picture("RGB"))
    for broken in (
        data[: len(data) // 2],
        data[:40],
        data[:8],
        b"",
        b"\x89PNG\r\n\x1a\n" + b"\0" * 100,
    ):
        with pytest.raises(ValueError):
            decode_image(broken)
