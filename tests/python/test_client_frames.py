"""Clients and frames: when they send them, to servers that know them and to others."""

from __future__ import annotations

import base64
import ctypes
import json
import weakref
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
from both_clients import NewClient
from frame_peer import Server, echo, npy, pack
from scripted import http_reply, result, scripted

import ucall
from harness import HOST
from ucall import _core
from ucall._client.address import Address, Addresses
from ucall._client.encode import default
from ucall.client import Client

SCHEMES = ["http", "tcp", "ws"]
SMALL = numpy.arange(6, dtype="float32").reshape(2, 3)
#: Sent from where it lies, and received into memory of its own.
LARGE = numpy.arange(30_000, dtype="int64").reshape(3, -1)


def refusal(scheme: str) -> bytes:
    """How a server that does not know frames answers one."""
    error = {"jsonrpc": "2.0", "id": None, "error": {"code": -32700, "message": "Parse error"}}
    text = json.dumps(error).encode()
    return {"http": http_reply(text, status="400 Bad Request"), "tcp": text + b"\n", "ws": b""}[
        scheme
    ]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_binary_params_and_results_are_parts(scheme: str, new_client: NewClient) -> None:
    server = Server(scheme, echo)
    with (
        scripted(server.script()) as peer,
        new_client(f"{scheme}://{HOST}:{peer.port}") as client,
    ):
        assert client.same(1).json == 1
        assert client.same(b"abc").bytes == b"abc"  # So short that no server is asked.
        for array in SMALL, LARGE, LARGE.T, LARGE[:, ::2], numpy.array(3.0):
            response = client.same(array)
            assert numpy.array_equal(response.numpy, array)
            assert response.numpy.dtype == array.dtype
            assert response.numpy.flags.writeable
            if array.size > 1000:
                assert response.numpy.ctypes.data % 64 == 0
                assert numpy.shares_memory(response.numpy, response.numpy)
        for data in b"", b"abc", bytes(200_000), bytearray(b"x" * 70_000), memoryview(b"abc"):
            response = client.same(value=data)
            assert response.bytes == bytes(data)
            # As from a server that sends base64.
            assert response.json == base64.b64encode(data).decode()
            assert response.data["result"] == response.json
            assert json.loads(response.text)["result"] == response.json
        nested = client.same({"a": [b"abc", SMALL, 1]})
        assert nested.json["a"][0::2] == ["YWJj", 1]
        assert base64.b64decode(nested.json["a"][1]) == npy(SMALL)
        with pytest.raises(ValueError, match="expected bytes"):
            _ = nested.bytes
        assert client.same(2).json == 2  # Its result might be an array.
    assert server.frames == [False, False] + [True] * 12
    assert server.probes == 1


@pytest.mark.parametrize("scheme", SCHEMES)
def test_all_kinds_of_calls(scheme: str, new_client: NewClient) -> None:
    server = Server(scheme, echo)
    with (
        scripted(server.script()) as peer,
        new_client(f"{scheme}://{HOST}:{peer.port}", timeout=20) as client,
    ):
        with client.batch() as batch:
            first = batch.same(1)
            batch.notify("same", LARGE)
        assert first.json == 1
        client.notify("same", SMALL)
        assert client.with_options(timeout=7).same(b"abc").bytes == b"abc"
        request = {"method": "same", "params": [b"abc"], "id": "x"}
        assert client(request).bytes == b"abc"
        assert client.same({"$part": 0}).json == {"$part": 0}
        assert client.same([{"$part": 0}, b"abc"]).json == [{"$part": 0}, "YWJj"]
    assert server.frames == [True, True, True, True, False, False]
    assert server.probes == 1


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_server_that_refuses_frames_is_asked_once(scheme: str, new_client: NewClient) -> None:
    server = Server(scheme, echo, refusal(scheme))
    with (
        scripted(server.script()) as peer,
        new_client(f"{scheme}://{HOST}:{peer.port}") as client,
    ):
        for _ in range(2):
            assert numpy.array_equal(client.same(LARGE).numpy, LARGE)
            assert client.same(b"abc").bytes == b"abc"
    assert server.refused == 1
    assert server.frames == [False] * 4


@pytest.mark.parametrize(
    ("reply", "takes_frames"),
    [
        (b"", "no"),
        (http_reply(b"no", status="415 Unsupported Media Type"), "no"),
        (http_reply(b"no", status="500 Internal Server Error"), "no"),
        (http_reply(b"<html>"), "no"),
        (http_reply(b"", status="204 No Content"), "no"),
        (http_reply(b'{"jsonrpc":"2.0","id":null,"error":{"code":-32600}}'), "no"),
        (http_reply(b'{"jsonrpc":"2.0","id":null,"error":{"code":-32003}}'), "unknown"),
        (http_reply(b"", status="503 Service Unavailable"), "unknown"),
        (http_reply(b"", status="401 Unauthorized"), "unknown"),
    ],
)
def test_what_the_answer_to_the_first_frame_means(
    reply: bytes, takes_frames: str, new_client: NewClient
) -> None:
    server = Server("http", echo, reply)
    with scripted(server.script()) as peer, new_client(f"{HOST}:{peer.port}") as client:
        for _ in range(3):
            assert client.same(b"abc").bytes == b"abc"
    assert server.frames == [False, False, False]
    assert server.refused == {"no": 1, "unknown": 2}[takes_frames]


def test_a_server_that_waits_for_the_end_of_a_frame(
    new_client: NewClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ucall._client.frames._ANSWER_S", 0.05)
    server = Server("tcp", echo)

    def script(peer: Any) -> None:
        first = peer.take(1)
        peer.received[:0] = first
        if first == b"\xb1":
            peer.rest()
        server.script()(peer)

    with scripted(script) as peer, new_client(f"tcp://{HOST}:{peer.port}", timeout=30) as client:
        for _ in range(2):
            assert numpy.array_equal(client.same(LARGE).numpy, LARGE)
        assert peer.accepted <= 3
    assert server.frames == [False, False]


def test_a_result_that_was_read_as_bytes_makes_calls_frames(new_client: NewClient) -> None:
    def handle(document: Any, parts: list[bytes], is_frame: bool) -> bytes:
        if is_frame:
            part = {"jsonrpc": "2.0", "id": document["id"], "result": {"$part": 0}}
            return pack(part, npy(SMALL))
        return result(base64.b64encode(npy(SMALL)).decode(), document["id"])

    server = Server("http", handle)
    with scripted(server.script()) as peer, new_client(f"{HOST}:{peer.port}") as client:
        assert isinstance(client.made().json, str)
        for _ in range(3):
            assert numpy.array_equal(client.made().numpy, SMALL)
    assert server.frames == [False, False, True, True]
    assert server.probes == 1


def test_one_of_several_threads_asks(new_client: NewClient) -> None:
    server = Server("http", echo)
    with scripted(server.script()) as peer, new_client(f"{HOST}:{peer.port}") as client:
        with ThreadPoolExecutor(8) as pool:
            for response in pool.map(client.same, [b"abc"] * 32):
                assert response.bytes == b"abc"
        assert client.same(b"abc").bytes == b"abc"
    assert server.probes == 1
    assert server.frames[-1]


@pytest.mark.parametrize("is_balanced", [False, True])
def test_a_server_that_takes_frames_no_more(new_client: NewClient, is_balanced: bool) -> None:
    """An older server has taken over its address."""
    new, old = Server("http", echo), Server("http", echo, refusal("http"))

    def script(peer: Any) -> None:
        (new if len(new.calls) < 2 else old).script()(peer)

    def both(peer: Any) -> None:
        new.transport.begin(peer)
        while (new if len(new.calls) < 2 else old)._answer(peer):
            pass

    with scripted(both) as peer:
        uri = f"{HOST}:{peer.port}"
        with new_client([uri] if is_balanced else uri) as client:
            for _ in range(4):
                assert client.same(b"abc").bytes == b"abc"
    assert (new.frames, old.frames) == ([is_balanced, True], [False, False])
    assert old.refused == 2  # The call, and the question.


@pytest.mark.parametrize("scheme", SCHEMES)
def test_each_of_several_addresses_is_asked(scheme: str, new_client: NewClient) -> None:
    new, old = Server(scheme, echo), Server(scheme, echo, refusal(scheme))
    with scripted(new.script()) as one, scripted(old.script()) as other:
        uris = [f"{scheme}://{HOST}:{peer.port}" for peer in (one, other)]
        with new_client(uris) as client:
            for _ in range(40):
                assert client.same(b"abc").bytes == b"abc"
            assert numpy.array_equal(client.same(LARGE).numpy, LARGE)
    assert new.frames == [True] * len(new.frames)
    assert old.frames == [False] * len(old.frames)
    assert (new.probes, old.refused) == (1, 1)
    assert len(new.calls) + len(old.calls) == 41


def test_an_address_of_a_name_has_knowledge_of_its_own() -> None:
    name = Address("http://localhost:1")
    one, other = name.at("127.0.0.1"), name.at("127.0.0.2")
    assert one.frames is not None and other.frames is not None
    assert one.frames.ask()
    assert other.frames.ask()
    assert not other.frames.ask()
    assert Address("udp://localhost:1").frames is None
    assert Addresses("nats://localhost:1/group").first.frames is None


def test_a_frame_is_sent_again_to_another_address(new_client: NewClient) -> None:
    full, other = Server("http", overloaded), Server("http", echo)
    with (
        scripted(full.script()) as one,
        scripted(other.script()) as two,
        new_client([f"{HOST}:{one.port}", f"{HOST}:{two.port}"]) as client,
    ):
        for _ in range(8):
            assert numpy.array_equal(client.same(LARGE).numpy, LARGE)
    assert len(other.calls) == 8
    assert full.frames[:1] in ([], [True])


def overloaded(document: Any, parts: list[bytes], is_frame: bool) -> bytes:
    error = {"code": -32003, "message": "Overloaded"}
    return json.dumps({"jsonrpc": "2.0", "id": document["id"], "error": error}).encode()


REPLY = {"jsonrpc": "2.0", "id": 1, "result": {"$part": 0}}
GOOD = pack(REPLY, b"abc")
TWICE = {"jsonrpc": "2.0", "id": 1, "result": [{"$part": 0}, {"$part": 0}]}


def with_length(index: int, value: int) -> bytes:
    return GOOD[: 8 + 8 * index] + value.to_bytes(8, "little") + GOOD[16 + 8 * index :]


BAD = {
    "another version": b"\xb1\x02" + GOOD[2:],
    "a part that is missing": pack(REPLY),
    "a part of a great index": pack({**REPLY, "result": {"$part": 1 << 62}}, b"abc"),
    "a negative index": pack({**REPLY, "result": {"$part": -1}}, b"abc"),
    "a part twice": pack(TWICE, b"abc"),
    "padding": GOOD[:-4] + b"x" + GOOD[-3:],
    "a length past memory": with_length(0, 2**64 - 1),
    "a length past the sign": with_length(0, 2**63),
    "a length past the limit": with_length(0, 1 << 40),
    "lengths whose sum overflows": pack(REPLY, b"", b"").replace(
        bytes(16), (2**64 - 64).to_bytes(8, "little") * 2
    ),
    "a text past the limit": GOOD[:4] + b"\xff\xff\xff\xff" + GOOD[8:],
    "a text that is no JSON": pack(b"x" * 10, b"abc"),
    "a batch with parts": pack([REPLY], b"abc"),
}
#: What only the length of a body or a message shows.
BAD_LENGTHS = {
    "a shorter part": with_length(0, 2),
    "a longer part": with_length(0, 4),
    "a head that ends": GOOD[:9],
    "bytes after the end": GOOD + b"x",
}


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", [*BAD, *BAD_LENGTHS])
def test_replies_that_are_no_frames(scheme: str, name: str) -> None:
    if name in BAD_LENGTHS and scheme == "tcp":
        return
    server = Server(scheme, echo)
    data = {**BAD, **BAD_LENGTHS}[name]
    reader = _core.ReplyReader(
        http=scheme == "http",
        reply_bytes_max=1 << 20,
        accept=b"x" if scheme == "ws" else None,
    )
    if scheme == "ws":
        reader.feed(b"HTTP/1.1 101 S\r\nSec-WebSocket-Accept: x\r\n\r\n")
    with pytest.raises(ucall.ConnectionError, match=r"not JSON-RPC|max_reply_bytes"):
        reader.feed(server.transport.reply(data))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_bad_frame_fails_its_call_alone(scheme: str, new_client: NewClient) -> None:
    def handle(document: Any, parts: list[bytes], is_frame: bool) -> bytes:
        if document.get("params") == ["bad"]:
            return pack({**REPLY, "id": document["id"]})
        return echo(document, parts, is_frame)

    server = Server(scheme, handle)
    with (
        scripted(server.script()) as peer,
        new_client(f"{scheme}://{HOST}:{peer.port}") as client,
    ):
        for _ in range(2):
            assert client.same(b"abc").bytes == b"abc"
            with pytest.raises(ucall.ConnectionError, match="a part which is not there"):
                client.same("bad")


@pytest.mark.parametrize("scheme", SCHEMES)
def test_frames_at_every_split(scheme: str) -> None:
    transport = Server(scheme, echo).transport
    large = pack({**REPLY, "id": 2}, bytes(range(256)) * 300)
    text = transport.reply(GOOD) + transport.reply(result(5)) + transport.reply(large)
    start = b"HTTP/1.1 101 S\r\nSec-WebSocket-Accept: x\r\n\r\n" if scheme == "ws" else b""
    cuts = [*range(0, 400), *range(400, len(text), 7919)]
    for cut in cuts:
        reader = _core.ReplyReader(
            http=scheme == "http",
            reply_bytes_max=len(large),
            accept=b"x" if scheme == "ws" else None,
        )
        replies = [
            *reader.feed(start),
            *reader.feed(text[:cut]),
            *reader.feed(text[cut:]),
        ]
        first, second, third = replies
        assert isinstance(first, _core.Reply) and isinstance(third, _core.Reply)
        assert (bytes(first.result_part() or b""), second.result()) == (b"abc", 5)
        part = third.result_part()
        assert part == bytes(range(256)) * 300
        assert numpy.frombuffer(part, "uint8").ctypes.data % 64 == 0


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_limit_of_replies_holds_for_frames(scheme: str, new_client: NewClient) -> None:
    for data, fits in ((bytes(99_000), True), (bytes(100_000), False)):
        server = Server(scheme, echo)
        with (
            scripted(server.script()) as peer,
            new_client(f"{scheme}://{HOST}:{peer.port}", max_reply_bytes=100_000) as client,
        ):
            if fits:
                assert client.same(data).bytes == data
                continue
            with pytest.raises(ucall.ConnectionError, match="max_reply_bytes"):
                client.same(data)


def test_memory_of_the_program_is_sent_without_a_copy() -> None:
    support = _core.FrameSupport()
    assert support.ask()
    support.record(True)
    writer = _core.RequestWriter(None, repr, None, support)
    large, small = bytearray(b"l" * 100_000), bytearray(b"s" * 100)
    request = writer.call("f", (large, small, large), {}, 1)
    pieces = request.pieces
    assert [len(piece) for piece in pieces[1::2]] == [100_000, 100_000]
    assert all(piece.readonly for piece in pieces)
    with pytest.raises(BufferError):
        large.append(1)  # It stays where it is until the reply.
    assert b"".join(pieces) == bytes(request.data)
    assert len(request) == len(request.data)
    del request, pieces
    large.append(1)
    small.append(1)


class Tensor:
    """A tensor of another library."""

    def __init__(self, values: Any) -> None:
        self.values = values

    def __dlpack__(self) -> Any:
        return self.values.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


def test_tensors_and_buffers_of_numbers_are_sent_without_a_copy() -> None:
    support = _core.FrameSupport()
    assert support.ask()
    support.record(True)
    writer = _core.RequestWriter(None, default, None, support)
    values, numbers = numpy.arange(200_000, dtype="f4"), (ctypes.c_double * 20_000)(1.5)
    strided, alive = Tensor(values[::2]), weakref.ref(values)
    request = writer.call("f", (Tensor(values), numbers, strided), {}, 1)
    pieces = [numpy.frombuffer(piece, "u1") for piece in request.pieces[1::2]]
    places = [piece.ctypes.data for piece in pieces[:2]]
    assert places == [values.ctypes.data, ctypes.addressof(numbers)]
    sent = b"".join(request.pieces)
    for expected in (values, values[::2], numpy.array(numbers)):
        assert expected.tobytes() in sent
    del values, strided
    assert alive() is not None, "the request keeps what it sends"
    del request, pieces
    assert alive() is None


def test_an_array_may_change_once_a_transport_of_asyncio_has_it() -> None:
    """One of uvloop sends its bytes later."""
    client = Client(f"tcp://{HOST}:1")
    support = client._options.address.frames
    assert support is not None and support.ask()
    support.record(True)
    array = numpy.ones(100_000)
    request = client._options.writer.call("same", (array,), None, None)
    written: list[memoryview] = []
    request.write_to(SimpleNamespace(write=written.append, writelines=written.extend))
    array[:] = 7
    assert b"".join(written).endswith(npy(numpy.ones(100_000)))
