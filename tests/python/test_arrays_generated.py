"""Generated arrays there and back: every dtype, layout, client, transport and kind of function.

One server of each kind of address lives as long as the tests of an engine. Each example draws an
array, a client and a function, so that all of them meet in the long run.
"""

from __future__ import annotations

import base64
import dataclasses
import http.client
import importlib
import io
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy
import pytest
from both_clients import clients
from certificates import Authority, Files, authority, files
from generated_arrays import arrays, npy
from hypothesis import example, given, settings
from hypothesis import strategies as st
from part_frames import frame, parse
from serving import NO_URING

import ucall
from harness import HOST

__all__ = ["authority", "files"]


@dataclasses.dataclass
class Labelled:
    label: str
    values: numpy.ndarray


def plain(values: numpy.ndarray) -> numpy.ndarray:
    return values


async def coroutine(values: numpy.ndarray) -> numpy.ndarray:
    return values


def thread(values: numpy.ndarray) -> numpy.ndarray:
    return values


def batch(values: numpy.ndarray) -> numpy.ndarray:
    return values


def untyped(values):  # type: ignore[no-untyped-def]
    return values


def inside(values: dict[str, list[numpy.ndarray]]) -> dict[str, list[numpy.ndarray]]:
    return values


def labelled(values: Labelled) -> Labelled:
    return values


def same_bytes(values: bytes) -> bytes:
    return values


FUNCTIONS = ["plain", "coroutine", "thread", "batch", "untyped", "inside", "labelled"]
WAYS = ["http", "ws", "tcp", "unix", "shared memory", "https"]
KINDS = ["sync", "aio"]
#: Calls whose arrays are base64 or parts of a frame, by no client of ours.
BASE64, FRAMED = "base64", "framed"


@dataclasses.dataclass
class Peers:
    """Clients of each kind over each transport, and one that knows nothing of arrays."""

    clients: dict[tuple[str, str], Any]
    port: int

    def call(self, caller: tuple[str, str] | str, function: str, values: Any) -> Any:
        """The result: an array, or where the function has one, what is around it."""
        if isinstance(caller, tuple):
            return self.clients[caller].call(function, values)
        return self._by_hand(function, values, is_framed=caller == FRAMED)

    def _by_hand(self, function: str, values: Any, is_framed: bool) -> Reply:
        parts: list[bytes] = []

        def written(value: Any) -> Any:
            if isinstance(value, Labelled):
                return {"label": value.label, "values": value.values}
            content = value if isinstance(value, bytes) else npy(value)
            if not is_framed:
                return base64.b64encode(content).decode()
            parts.append(content)
            return {"$part": len(parts) - 1}

        params = json.dumps([values], default=written)
        text = f'{{"jsonrpc":"2.0","id":1,"method":"{function}","params":{params}}}'.encode()
        connection = http.client.HTTPConnection(HOST, self.port)
        connection.request("POST", "/", frame(text, parts) if is_framed else text)
        body = connection.getresponse().read()
        connection.close()
        if not is_framed:
            return Reply(json.loads(body)["result"])
        document, replied = parse(body)
        assert len(replied) == len(parts)
        return Reply(with_parts(document["result"], replied))


def with_parts(value: Any, parts: list[bytes]) -> Any:
    """A result with base64 in the place of its parts."""
    if isinstance(value, list):
        return [with_parts(it, parts) for it in value]
    if not isinstance(value, dict):
        return value
    if list(value) == ["$part"]:
        return base64.b64encode(parts[value["$part"]]).decode()
    return {key: with_parts(it, parts) for key, it in value.items()}


@dataclasses.dataclass
class Reply:
    """A result in base64, read by NumPy."""

    json: Any

    @property
    def numpy(self) -> numpy.ndarray:
        read: numpy.ndarray = numpy.load(io.BytesIO(self.bytes), allow_pickle=False)
        return read

    @property
    def bytes(self) -> bytes:
        return base64.b64decode(self.json, validate=True)


@pytest.fixture(scope="module", params=["posix", "uring"])
def engine(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if name == "uring" and NO_URING:
        pytest.skip(NO_URING)
    return name


@pytest.fixture(scope="module")
def peers(
    engine: str, authority: Authority, files: Files, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Peers]:
    path: Path = tmp_path_factory.mktemp("arrays") / "socket"
    new: type[ucall.Server] = importlib.import_module(f"ucall.{engine}").Server
    tls = ucall.TLS(certfile=files.certificate, keyfile=files.key)
    servers = [new(port=0), new(uds=path), new(port=0, tls=tls)]
    for server in servers:
        for function in (plain, coroutine, untyped, inside, labelled, same_bytes):
            server.add(function)
        server.add(thread, threads=True)
        server.batch(batch)
        server.start()
    port, secure = servers[0].port, servers[2].port
    uris = [f"{scheme}://{HOST}:{port}" for scheme in ("http", "ws", "tcp")]
    uris += [f"unix://{path}", f"unix://{path}", f"https://localhost:{secure}"]
    options = {"https": {"verify": authority.path}, "shared memory": {"shared_memory": True}}
    found: dict[tuple[str, str], Any] = {}
    with ExitStack() as stack:
        for kind in KINDS:
            new_client: Callable[..., Any] = stack.enter_context(clients(kind))
            for way, uri in zip(WAYS, uris, strict=True):
                client = new_client(uri, **options.get(way, {}))
                stack.callback(client.close)
                found[kind, way] = client
        yield Peers(found, port)
    for server in servers:
        server.stop()


CALLERS = st.sampled_from([*((kind, way) for kind in KINDS for way in WAYS), BASE64, FRAMED])


@given(arrays(), CALLERS, st.sampled_from(FUNCTIONS))
@example(numpy.zeros((3, 99_999), "<f4").T, ("sync", "http"), "plain")
@example(numpy.zeros((3, 99_999), ">f4"), ("aio", "tcp"), "plain")
@example(numpy.zeros((3, 99_999), "<f8"), ("aio", "ws"), "inside")
@settings(max_examples=200, deadline=None)
def test_every_array_comes_back(
    peers: Peers, array: numpy.ndarray, caller: tuple[str, str] | str, function: str
) -> None:
    sent: Any = {
        "inside": {"key": [array, array[..., :1] if array.ndim else array]},
        "labelled": Labelled("é", array),
    }.get(function, array)
    response = peers.call(caller, function, sent)
    if function in ("inside", "labelled"):
        compare_inside(response, function, sent)
    else:
        compare(response.numpy, array, is_batch=function == "batch")


def compare(back: numpy.ndarray, array: numpy.ndarray, is_batch: bool = False) -> None:
    assert back.shape == array.shape
    expected = array.astype(back.dtype)
    if back.dtype.char in "gG":  # Some of their bytes have no meaning.
        assert numpy.array_equal(back, expected, equal_nan=True)
    else:
        assert back.tobytes() == expected.tobytes()
    assert back.flags.writeable and back.flags.aligned
    # Batches are stacked, in the order of this machine.
    if not is_batch:
        assert back.dtype == array.dtype
        assert back.flags.f_contiguous or not array.flags.f_contiguous


def compare_inside(response: Any, function: str, sent: Any) -> None:
    """A result with arrays inside keeps its form; each array is the `.npy` that it was sent as."""
    result = response.json
    if function == "labelled":
        assert result["label"] == sent.label
        compare(read(result["values"]), sent.values)
        return
    assert list(result) == ["key"]
    for back, array in zip(result["key"], sent["key"], strict=True):
        compare(read(back), array)


def read(text: str) -> numpy.ndarray:
    # NumPy's own reader makes it read-only.
    return Reply(text).numpy.copy(order="K")


@given(st.binary(max_size=200), st.sampled_from([1, 700]), CALLERS)
@settings(max_examples=60, deadline=None)
def test_bytes_come_back(
    peers: Peers, data: bytes, times: int, caller: tuple[str, str] | str
) -> None:
    sent = data * times
    kinds: list[Any] = [bytes, bytearray, memoryview] if isinstance(caller, tuple) else [bytes]
    for value in (kind(sent) for kind in kinds):
        assert peers.call(caller, "same_bytes", value).bytes == sent


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "array",
    [
        numpy.zeros(2, [("a", "i4"), ("b", "f8")]),
        numpy.array([object()]),
        numpy.array(["text"]),
        numpy.array(["2026-11-21"], "M8[D]"),
        numpy.array([b"ab"], "V2"),
    ],
    ids=lambda array: str(array.dtype),
)
def test_other_dtypes_are_named_before_anything_is_sent(
    peers: Peers, kind: str, array: numpy.ndarray
) -> None:
    for way in WAYS:
        with pytest.raises(ValueError, match=r"params\[0\]: an array of dtype .* cannot be sent"):
            peers.call((kind, way), "plain", array)
