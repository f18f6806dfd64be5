"""Whole bodies: functions that are called by ``POST /name``, without JSON-RPC."""

from __future__ import annotations

import asyncio
import io
import json
import struct
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from serving import Serve

import ucall

NPY, OCTETS = "application/x-npy", "application/octet-stream"
TENSORS = "application/safetensors"


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def png(width: int, height: int) -> bytes:
    file = io.BytesIO()
    Image.new("L", (width, height)).save(file, "PNG")
    return file.getvalue()


def double(x: NDArray[np.float32]) -> NDArray[np.float32]:
    return x + x


async def resize(image: Image.Image, width: int = 2, title: str = "") -> Image.Image:
    await asyncio.sleep(0)
    made = image.resize((width, width))
    made.info["title"] = title
    return made


def sizes(images: list[Image.Image], names: list[str], label: str) -> dict[str, Any]:
    return {"sizes": [it.width for it in images], "names": names, "label": label}


def split(x: np.ndarray, y: np.ndarray | None = None) -> dict[str, np.ndarray]:
    return {"first": x[:1], "rest": x[1:].astype(np.float64)}


def raw(data: bytes) -> bytes:
    return data[::-1]


def count(n: int) -> Iterator[int]:
    yield from range(n)


class Caller:
    """Posts bodies to a server."""

    def __init__(self, server: ucall.Server) -> None:
        self.url = f"http://127.0.0.1:{server.port}"

    def __call__(
        self, path: str, body: bytes = b"", kind: str = "", accept: str = "*/*", **headers: str
    ) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        given = {"Accept": accept, **({"Content-Type": kind} if kind else {}), **named}
        return httpx.post(self.url + path, content=body, headers=given)


@pytest.fixture
def post(serve: Serve) -> Caller:
    return Caller(serve(double, resize, sizes, split, raw, count))


def test_arrays_are_bodies_in_several_types(post: Caller) -> None:
    array = np.arange(30_000, dtype=np.float32).reshape(2, -1)
    response = post("/double", npy(array), NPY, NPY)
    assert response.headers["Content-Type"] == NPY
    assert np.array_equal(np.load(io.BytesIO(response.content)), array + array)
    response = post(
        "/double", array.tobytes(), OCTETS, OCTETS, Ucall_Dtype="float32", Ucall_Shape="2,15000"
    )
    assert response.headers["Ucall-Dtype"] == "float32"
    assert response.headers["Ucall-Shape"] == "2,15000"
    assert response.content == (array + array).tobytes()
    assert post("/double", npy(array[:, :2]), NPY).json() == [[0, 2], [30_000, 30_002]]
    assert post("/double", b'{"x": [1, 2.5]}', "application/json").json() == [2, 5]
    assert post("/double", b"[[1, 2.5]]").json() == [2, 5]
    assert post("/double?x=[1]").json() == [2]


def test_images_and_bytes_are_bodies(post: Caller) -> None:
    for accept in ("image/png", "image/*", "image/webp, image/png;q=0.9"):
        response = post("/resize?width=5&title=12", png(3, 3), "image/png", accept)
        assert response.headers["Content-Type"] == "image/png"
        assert Image.open(io.BytesIO(response.content)).size == (5, 5)
    assert post("/resize", png(3, 3), "image/png", "image/jpeg").status_code == 406
    assert post("/raw", b"abc", OCTETS, OCTETS).content == b"cba"
    assert post("/raw", b"abc", OCTETS).json() == "Y2Jh"


def test_safetensors_name_the_params_and_the_results(post: Caller) -> None:
    header = {
        "x": {"dtype": "I64", "shape": [3], "data_offsets": [8, 32]},
        "y": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
    }
    text = json.dumps(header).encode()
    items = np.array([1, 2], np.float32).tobytes() + np.array([7, 8, 9]).tobytes()
    response = post("/split", struct.pack("<Q", len(text)) + text + items, TENSORS, TENSORS)
    assert response.headers["Content-Type"] == TENSORS
    (length,) = struct.unpack_from("<Q", response.content)
    found = json.loads(response.content[8 : 8 + length])

    def array(name: str, dtype: type) -> list[float]:
        start, end = found[name]["data_offsets"]
        data: list[float] = np.frombuffer(response.content[8 + length :][start:end], dtype).tolist()
        return data

    assert (found["first"]["dtype"], array("first", np.int64)) == ("I64", [7])
    assert (found["rest"]["dtype"], array("rest", np.float64)) == ("F64", [8, 9])
    huge = struct.pack("<Q", 100_000_000) + b"{}"
    assert post("/split", huge, TENSORS).status_code == 400


def test_forms_are_params(post: Caller) -> None:
    files = [
        ("images", ("a.png", png(3, 3), "image/png")),
        ("images", ("b.png", png(4, 4), "image/png")),
    ]
    fields = {"names": ["1", "two"], "label": "34"}
    response = httpx.post(f"{post.url}/sizes", files=files, data=fields)
    assert response.json() == {"sizes": [3, 4], "names": ["1", "two"], "label": "34"}
    fields = {"names": "one", "label": "x"}
    response = httpx.post(f"{post.url}/sizes", files=files[:1], data=fields)
    assert response.json() == {"sizes": [3], "names": ["one"], "label": "x"}
    response = httpx.post(f"{post.url}/resize", files={"image": png(2, 2)}, data={"width": "3"})
    assert response.status_code == 200


def test_wrong_requests_get_a_status_and_an_error(post: Caller) -> None:
    def refused(*args: Any, **options: Any) -> tuple[int, int, str]:
        response = post(*args, **options)
        error = response.json()["error"]
        return response.status_code, error["code"], error.get("data", error["message"])

    assert refused("/double", b"{", "application/json")[:2] == (400, -32700)
    assert refused("/double", b"")[:2] == (422, -32602)
    status, code, reason = refused("/double", b"no array", NPY)
    assert (status, code) == (422, -32602) and ".npy" in reason
    assert refused("/resize", b"no image", "image/png")[:2] == (422, -32602)
    assert refused("/double", b"x", "text/plain")[:2] == (415, -32600)
    assert refused("/double", npy(np.ones(1, np.float32)), NPY, "text/html")[:2] == (406, -32600)
    for shape in ("3", "-1", "9223372036854775807,4", "1,1"):
        headers = {"Ucall_Dtype": "float32", "Ucall_Shape": shape}
        assert refused("/double", bytes(8), OCTETS, **headers)[:2] == (400, -32600)
    assert post("/unknown").status_code == 404
    assert httpx.get(f"{post.url}/double").status_code == 405


def test_a_stream_is_a_list(post: Caller) -> None:
    assert post("/count?n=3").json() == [0, 1, 2]
    assert post("/count?n=3", accept="text/event-stream, application/json").json() == [0, 1, 2]


def test_routes_come_before_functions(serve: Serve) -> None:
    def read(a: int) -> int:
        return a

    server = ucall.Server(port=0)
    server.add(read)
    server.add(read, name="a/b é")

    @server.http("/read", methods=["POST"])
    def route(request: ucall.HttpRequest) -> str:
        return "route"

    @server.http("/a/*")
    def pages(request: ucall.HttpRequest) -> str:
        return "page"

    server.start()
    try:
        post = Caller(server)
        assert post("/read?a=1").text == "route"
        assert post("/a/b%20%C3%A9?a=2").json() == 2
        assert httpx.get(f"{post.url}/a/b%20%C3%A9").text == "page"
    finally:
        server.stop()


def test_deadlines_keys_and_origins_hold_for_bodies(serve: Serve) -> None:
    async def wait() -> int:
        await asyncio.sleep(60)
        return 1

    def check(ctx: ucall.Context) -> str | None:
        return "user" if ctx.headers.get("authorization") == "Bearer key" else None

    post = Caller(serve(wait, auth=check))
    assert post("/wait").status_code == 401
    key = {"Authorization": "Bearer key"}
    response = post("/wait", Ucall_Timeout_Ms="20", **key)
    assert (response.status_code, response.json()["error"]["code"]) == (504, -32001)
    assert post("/wait", Origin="http://evil.example", **key).status_code == 403
