"""Arrays, images and bytes in the binary parts of requests and replies."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import http.client
import io
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from part_frames import frame, parse
from PIL import Image

import ucall
from harness import HOST
from harness import http as post
from ucall.client import Client

Serve = Callable[..., ucall.Server]
Array = np.ndarray


class Caller:
    """Calls in frames over HTTP."""

    def __init__(self, port: int) -> None:
        self.connection = http.client.HTTPConnection(HOST, port, timeout=60)

    def document(self, document: Any, *parts: bytes) -> tuple[Any, list[bytes]]:
        self.connection.request("POST", "/", frame(document, list(parts)))
        return parse(self.connection.getresponse().read())

    def __call__(self, method: str, params: Any, *parts: bytes) -> tuple[Any, list[bytes]]:
        request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        reply, parts_of_reply = self.document(request, *parts)
        return reply.get("result", reply.get("error", {}).get("data")), parts_of_reply


@pytest.fixture
def caller_of(serve: Serve) -> Iterator[Callable[..., Caller]]:
    callers: list[Caller] = []

    def caller_of(*functions: Callable[..., Any], **options: Any) -> Caller:
        server = serve(*functions, **options)
        callers.append(Caller(server.port))
        return callers[-1]

    yield caller_of
    for caller in callers:
        caller.connection.close()


def part(index: int) -> dict[str, int]:
    return {"$part": index}


def npy(array: NDArray[Any]) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()


def loaded(data: bytes) -> NDArray[Any]:
    array: NDArray[Any] = np.load(io.BytesIO(data), allow_pickle=False)
    return array


SMALL = np.arange(4, dtype="f4")
LARGE = np.arange(30_000, dtype="f8").reshape(100, 300)
LAYOUTS = [
    SMALL,
    LARGE,
    np.asfortranarray(LARGE),
    LARGE[:, :0],
    LARGE[::2, ::3],
    LARGE.astype(">i4"),
]


def doubled(a: Array) -> Array:
    assert a.flags.writeable and a.flags.aligned
    a *= 2
    return a


async def at_once(a: Array) -> Array:
    return doubled(a)


async def later(a: Array) -> Array:
    await asyncio.sleep(0)
    return doubled(a)


def in_thread(a: Array) -> Array:
    return doubled(a)


def in_process(a: Array) -> Array:
    return doubled(a)


def with_context(a: Array, context: ucall.Context) -> Array:
    context.progress(1, 2)
    return doubled(a)


def in_batch(a: Array) -> Array:
    return doubled(a)


def in_batch_thread(a: Array) -> Array:
    return doubled(a)


async def in_batch_task(a: Array) -> Array:
    return doubled(a)


def test_functions_of_each_kind_take_and_return_parts(serve: Serve) -> None:
    server = serve(doubled, at_once, later, with_context)
    server.add(in_thread, threads=True)
    server.add(in_process, processes=1)
    server.batch(in_batch)
    server.batch(in_batch_thread, threads=True)
    server.batch(in_batch_task)
    caller = Caller(server.port)
    for array in LAYOUTS:
        for function in (
            *(doubled, at_once, later, with_context, in_thread, in_process),
            *(in_batch, in_batch_thread, in_batch_task),
        ):
            result, parts = caller(function.__name__, [part(0)], npy(array))
            assert result == part(0), function
            assert np.array_equal(loaded(parts[0]), array * 2), function
            # NumPy unpickles arrays in the byte order of the machine.
            kept = array.dtype if function is not in_process else array.dtype.newbyteorder("=")
            assert loaded(parts[0]).dtype == kept, function
    caller.connection.close()


def kinds(data: bytes, array: bytearray, view: memoryview, value: Any, **more: Any) -> Any:
    assert view.readonly
    array += b"!"
    return [type(data).__name__, data, array, bytes(view), value, more]


def test_bytes_of_each_kind_are_parts(caller_of: Callable[..., Caller]) -> None:
    call = caller_of(kinds)
    params = {
        "data": part(2),
        "array": part(0),
        "view": part(1),
        "value": [part(3), {"deep": part(4)}, {"$part": 5, "x": 1}, {"$part": "5"}, {"$part": -1}],
        "other": part(6),
    }
    result, parts = call("kinds", params, b"0", b"1", b"2", b"3", b"4", b"5", b"")
    unchanged = [{"$part": 5, "x": 1}, {"$part": "5"}, {"$part": -1}]
    values = [part(3), {"deep": part(4)}, *unchanged]
    assert result == ["bytes", part(0), part(1), part(2), values, {"other": part(5)}]
    assert parts == [b"2", b"0!", b"1", b"3", b"4", b""]


@dataclasses.dataclass
class Reading:
    values: NDArray[np.float32]
    image: Image.Image
    raw: bytes


def of_reading(reading: Reading) -> Reading:
    assert reading.image.size == (3, 2)
    return dataclasses.replace(reading, values=reading.values + 1)


def of_image(image: Image.Image | None) -> Any:
    return None if image is None else image.rotate(180)


def test_parts_are_parts_of_other_types(caller_of: Callable[..., Caller]) -> None:
    call = caller_of(of_reading, of_image)
    file = io.BytesIO()
    Image.new("RGB", (3, 2), "red").save(file, "PNG")
    png = file.getvalue()
    reading = {"values": part(1), "image": part(0), "raw": part(2)}
    result, parts = call("of_reading", [reading], png, npy(SMALL), b"raw")
    assert result == {"values": part(0), "image": part(1), "raw": part(2)}
    assert loaded(parts[0]).tolist() == [1, 2, 3, 4]
    assert Image.open(io.BytesIO(parts[1])).size == (3, 2) and parts[2] == b"raw"
    result, parts = call("of_image", [part(0)], png)
    assert result == part(0) and Image.open(io.BytesIO(parts[0])).size == (3, 2)
    assert call("of_image", [None]) == (None, [])


def of_matrix(a: np.ndarray[tuple[int, int], np.dtype[np.float64]], n: int = 0) -> float:
    return float(a.sum()) + n


def test_wrong_parts_are_refused_at_their_path(caller_of: Callable[..., Caller]) -> None:
    call = caller_of(of_matrix, kinds, of_reading)
    matrix = npy(np.ones((2, 2)))
    assert call("of_matrix", [part(0), 1], matrix) == (5.0, [])
    how = "expected 2-d array of float64 (.npy in base64, or nested lists)"
    for params, expected in [
        ([part(1)], "params.a: there is no part 1"),
        ({"a": part(0), "b": part(0)}, "params.b: unexpected, expected a, n"),
        ({"a": part(0), "n": part(0)}, "params.n: expected int, got dict"),
        ([{"$part": 0.0}], f"params.a: {how}, got dict"),
        ([{"$part": 0, "$part2": 1}], f"params.a: {how}, got dict"),
    ]:
        assert call("of_matrix", params, matrix) == (expected, [])
    cast = "send it after .astype('float64'), or annotate the parameter as numpy.ndarray"
    for wrong, problem in [
        (npy(np.ones(2)), ", got one of 1 dimensions"),
        (npy(np.ones((2, 2), "c8")), f", got one of complex64; {cast}, which takes any dtype"),
        (matrix[:-1], ": the .npy claims 4 items of 8 bytes, but has 31 bytes"),
        (b"", ": no .npy that can be read: it has no header"),
    ]:
        assert call("of_matrix", [part(0)], wrong) == (f"params.a: {how}{problem}", [])
    assert call("of_matrix", [part(0), 1], npy(np.ones((2, 2), "i2"))) == (5.0, [])
    twice = call("kinds", ["", "", "", [part(0), {"k": part(0)}]], b"x")
    assert twice == ("params.value[1].k: part 0 is used twice", [])
    reading = {"values": part(1), "image": 3, "raw": part(1)}
    assert call("of_reading", [reading], b"", b"")[0] == "params.reading: part 1 is used twice"


def test_the_calls_of_a_batch_take_their_own_parts(caller_of: Callable[..., Caller]) -> None:
    call = caller_of(of_matrix)
    ones = npy(np.ones((2, 2)))
    calls = [[part(0)], [part(1), "x"], [part(1)], [part(0)], [part(2)]]
    batch = [
        {"jsonrpc": "2.0", "id": n, "method": "of_matrix", "params": params}
        for n, params in enumerate(calls)
    ]
    replies, _ = call.document(batch, ones, ones, ones)
    found = [reply.get("result", reply.get("error", {}).get("data")) for reply in replies]
    twice = "params.a: part {} is used twice"
    expected = [4.0, "params.n: expected int, got str", twice.format(1), twice.format(0), 4.0]
    assert found == expected


class Watched(np.ndarray):  # type: ignore[type-arg]
    """An array that reports its end. Its views do not."""

    ended: threading.Event | None = None

    def __del__(self) -> None:
        if self.ended is not None:
            self.ended.set()


@pytest.mark.parametrize("kind", ["inline", "task", "thread"])
def test_a_large_result_is_released_when_it_was_sent(serve: Serve, kind: str) -> None:
    ended = threading.Event()
    kept: list[Any] = []

    def made(keeps: bool) -> Any:
        array = Watched(50_000)
        array.ended = ended
        array[:] = 7
        if keeps:
            kept.append(array)
        return array

    async def made_later(keeps: bool) -> Any:
        await asyncio.sleep(0)
        return made(keeps)

    server = serve()
    function = made_later if kind == "task" else made
    server.add(function, threads=kind == "thread")
    caller = Caller(server.port)
    for keeps in (False, True):
        ended.clear()
        result, parts = caller(function.__name__, [keeps])
        assert result == part(0) and loaded(parts[0]).tolist() == [7] * 50_000
        if keeps:
            kept[0][:] = 8
            kept.clear()
        assert ended.wait(30)
    caller.connection.close()


def test_a_result_that_its_function_keeps_is_copied(caller_of: Callable[..., Caller]) -> None:
    kept = np.ones(200_000)

    def keep() -> list[Any]:
        return [kept, kept[:100_000], bytes(100_000), {"a": b"small"}]

    call = caller_of(keep)
    result, parts = call("keep", [])
    assert result == [part(0), part(1), part(2), {"a": part(3)}]
    assert [len(it) for it in parts] == [128 + 1_600_000, 128 + 800_000, 100_000, 5]


@pytest.mark.parametrize("is_in_tuple", [False, True], ids=["alone", "in a tuple"])
def test_a_result_may_change_before_it_is_sent(serve: Serve, is_in_tuple: bool) -> None:
    kept = [(np.ones(20_000),)] if is_in_tuple else [np.ones(20_000)]

    def keep() -> Any:
        return kept[0]

    def change() -> Any:
        array = kept[0][0] if is_in_tuple else kept[0]
        array[:] = 2
        return kept.pop()

    calls = [frame({"jsonrpc": "2.0", "id": 1, "method": name}, []) for name in ("keep", "change")]
    requests = [post(call) for call in calls]
    with socket.create_connection((HOST, serve(keep, change).port), timeout=60) as wire:
        # Both calls run before a reply leaves.
        wire.sendall(b"".join(requests))
        with wire.makefile("rb") as replies:
            for expected in (1, 2):
                head = http.client.parse_headers(replies) if replies.readline() else {}
                _, parts = parse(replies.read(int(head["Content-Length"])))
                assert loaded(parts[0]).tolist() == [expected] * 20_000


@pytest.mark.parametrize("source", ["param", "a view of a param", "base64", "reply"])
def test_an_array_of_a_request_or_reply_may_change_before_it_is_sent(
    serve: Serve, source: str
) -> None:
    kept: list[Array] = []

    def ones() -> Array:
        return np.ones(20_000)

    client = Client(port=serve(ones).port)

    def keep(values: Array) -> Array:
        if source != "reply":
            kept.append(values[:] if source == "a view of a param" else values)
            return values
        response = client.ones()
        kept.append(response.numpy)
        return response.numpy

    def change() -> None:
        kept.pop()[:] = 2

    sent = npy(ones())
    params = [base64.b64encode(sent).decode() if source == "base64" else part(0)]
    request = {"jsonrpc": "2.0", "id": 1, "method": "keep", "params": params}
    changing = {"jsonrpc": "2.0", "id": 1, "method": "change"}
    with socket.create_connection((HOST, serve(keep, change).port), timeout=60) as wire:
        # Both calls run before a reply leaves.
        wire.sendall(post(frame(request, [sent])) + post(frame(changing, [])))
        with wire.makefile("rb") as replies:
            head = http.client.parse_headers(replies) if replies.readline() else {}
            _, parts = parse(replies.read(int(head["Content-Length"])))
            assert loaded(parts[0]).tolist() == [1] * 20_000


def test_an_object_that_looks_like_a_part_stays_one(
    caller_of: Callable[..., Caller],
) -> None:
    def tagged(tags: Any) -> Any:
        return [b"secret", tags]

    async def later(tags: Any) -> Any:
        await asyncio.sleep(0)
        return tagged(tags)

    call = caller_of(tagged, later)
    for method in ("tagged", "later"):
        assert call(method, [[part(0), part(0)]]) == (["c2VjcmV0", [part(0), part(0)]], [])
        assert call(method, [{"$part": 0, "a": 1}])[1] == [b"secret"]


def test_an_error_has_no_parts(caller_of: Callable[..., Caller]) -> None:
    def broken() -> Any:
        return [np.ones(3), object()]

    def too_large() -> Any:
        return [np.ones(100), np.ones(100)]

    def fits() -> Any:
        return [np.ones(100)]

    call = caller_of(broken, too_large, fits, max_reply_bytes=1500)
    assert call("broken", []) == ("result[1]: object cannot be written as JSON", [])
    # Noticed before the second part is made.
    limit = "result: larger than a reply may be (max_reply_bytes)"
    assert call("too_large", []) == (limit, [])
    result, parts = call("fits", [])
    assert result == [part(0)] and loaded(parts[0]).tolist() == [1] * 100
