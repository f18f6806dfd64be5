"""Relayed streams: item by item, cancelled, cut, and for callers that read slowly."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator

import pytest
from relaying import relay
from scripted import Peer, scripted
from serving import Serve
from streaming import Source, cancel_request, stream_request
from test_relay import read_call, reply
from websockets.sync.client import connect

import ucall
from harness import HOST, Wire, eventually, http, request

__all__ = ["relay"]


@pytest.fixture
def source() -> Source:
    return Source("async")


@pytest.fixture
def server(serve: Serve, source: Source) -> ucall.Server:
    """A relay of a real upstream with a stream and a function."""
    upstream = serve()
    source.add_to(upstream, name="up.stream")
    upstream.add(lambda: 1, name="up.one")

    def failing() -> Iterator[int]:
        yield 1
        raise ucall.RPCError(-5, "no", [1.5])

    upstream.add(failing, name="up.failing")
    server = serve()
    server.relay("up.*", to=f"tcp://127.0.0.1:{upstream.port}", timeout_ms=600_000)
    return server


def test_items_come_one_by_one(server: ucall.Server) -> None:
    with Wire(server.port) as wire:
        wire.send(stream_request("up.stream", 3))
        assert wire.stream() == ([0, 1, 2], {"jsonrpc": "2.0", "id": 1, "result": None})
        wire.send(stream_request("up.one", id=2))
        assert wire.message()["error"]["code"] == -32602
        wire.send(b'{"jsonrpc":"2.0","method":"up.one","id":3,"_meta":{"progressToken":1}}')
        assert wire.message()["result"] == 1
        wire.send(stream_request("up.failing", id=4).replace(b"[-1, 0]", b"[]"))
        items, last = wire.stream()
        assert items == [1] and last["error"] == {"code": -5, "message": "no", "data": [1.5]}
        assert wire.result("up.stream", [3]) == [0, 1, 2]
    with connect(f"ws://{HOST}:{server.port}") as socket:
        socket.send(stream_request("up.stream", 2).decode())
        items = [json.loads(socket.recv(60)) for _ in range(3)]
        assert [it.get("params", {}).get("value") for it in items] == [0, 1, None]
    with Wire(server.port) as wire:
        wire.send(http(request("up.stream", [2]), "Accept: application/x-ndjson"))
        while b'"result"' not in (line := wire.line()):
            assert not line.startswith(b"HTTP/1.1") or line == b"HTTP/1.1 200 OK\r"
        assert json.loads(line)["result"] is None


def test_many_streams_and_calls_at_once(server: ucall.Server, source: Source) -> None:
    with Wire(server.port) as wire, Wire(server.port) as other:
        for id in range(1, 41):
            wire.send(stream_request("up.stream", id=id, token=id))
        seen: dict[int, list[int]] = {id: [] for id in range(1, 41)}
        while min(map(len, seen.values())) < 20:
            params = wire.message()["params"]
            seen[params["token"]].append(params["value"])
            if params["value"] == 10:
                assert other.result("up.one") == 1
        assert all(items == [*range(len(items))] for items in seen.values())
    assert eventually(lambda: source.closed == 40)


def test_a_cancel_goes_upstream(server: ucall.Server, source: Source) -> None:
    with Wire(server.port) as wire:
        wire.send(stream_request("up.stream", id=5))
        assert wire.message()["params"]["value"] == 0
        wire.send(cancel_request(5))
        assert wire.stream()[1]["error"]["code"] == -32800
        assert eventually(lambda: source.closed == 1 and source.cancelled == [True])
        wire.send(stream_request("up.stream", 2, id=6))
        assert wire.stream()[0] == [0, 1]


def test_a_caller_that_leaves_ends_the_stream(server: ucall.Server, source: Source) -> None:
    with Wire(server.port) as wire:
        wire.send(stream_request("up.stream"))
        assert wire.message()["params"]["value"] == 0
    assert eventually(lambda: source.closed == 1)


def settled(source: Source) -> int:
    """What the source has produced once it has paused."""
    produced = -1

    def has_paused() -> bool:
        nonlocal produced
        before, produced = produced, source.produced
        return before == produced

    assert eventually(has_paused)
    return produced


@pytest.mark.slow
def test_a_slow_caller_pauses_the_upstream(server: ucall.Server, source: Source) -> None:
    size, count = 10_000, 6_000
    with Wire(server.port, buffer_bytes=4096) as slow, Wire(server.port) as other:
        slow.send(stream_request("up.stream", count, size))
        assert slow.message()["params"]["value"] == "x" * size
        assert eventually(lambda: source.produced == settled(source) > 1)
        # Of 60 MB, what the buffers of the kernel hold.
        assert source.produced < count // 2
        assert other.result("up.one") == 1
        assert other.result("up.stream", [2]) == [0, 1]
        # From here on it reads fast.
        slow.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        items, last = slow.stream()
        assert len(items) == count - 1 and last["result"] is None
        slow.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.send(stream_request("up.stream", count, size, id=2))
        assert slow.message()["params"]["value"] == "x" * size
        assert eventually(lambda: source.produced == settled(source))
        slow.send(cancel_request(2))
        assert slow.stream()[1]["error"]["code"] == -32800
    assert eventually(lambda: source.closed == 3)


def item(token: bytes, value: bytes = b"1") -> bytes:
    form = b'{"jsonrpc":"2.0","method":"$/progress","params":{"token":%s,"value":%s}}\n'
    return form % (token, value)


@pytest.mark.parametrize("is_idempotent", [False, True])
def test_an_upstream_that_dies_in_a_stream_is_one_error(
    relay: Callable[..., Wire], is_idempotent: bool
) -> None:
    def dying(peer: Peer) -> None:
        peer.send(item(read_call(peer)["id"], b'["\xc3\xa9", 1.0]'))

    def whole(peer: Peer) -> None:
        while True:
            call = read_call(peer)
            peer.send(item(call["id"]), reply(call, b"2"))

    with scripted(dying, whole) as upstream:
        options = {"idempotent": ["up.f"]} if is_idempotent else {}
        port = relay(upstream, **options).socket.getpeername()[1]
        with Wire(port) as wire:
            wire.send(stream_request("up.f"))
            assert wire.line().endswith('"value":["é", 1.0]}}'.encode())
            # Also an idempotent call is not sent again after its first item.
            error = wire.message()["error"]
            assert error["code"] == -32005 and error["data"]["sent"] is True
            wire.send(stream_request("up.f", id=2))
            assert wire.stream() == ([1], {"jsonrpc": "2.0", "id": 2, "result": 2})


def test_late_items_of_a_cancelled_stream_reach_nobody(relay: Callable[..., Wire]) -> None:
    has_items = threading.Event()

    def script(peer: Peer) -> None:
        call = read_call(peer)
        peer.send(item(call["id"]))
        assert b"$/cancelRequest" in peer.raw_request()
        peer.send(item(call["id"], b"9") * 3, reply(call))
        has_items.set()
        next_call = read_call(peer)
        peer.send(item(next_call["id"], b"5"), reply(next_call))

    with scripted(script, script) as upstream:
        port = relay(upstream).socket.getpeername()[1]
        with Wire(port) as wire:
            wire.send(stream_request("up.f"))
            assert wire.message()["params"]["value"] == 1
            wire.send(cancel_request(1))
            assert wire.message()["error"]["code"] == -32800
            assert has_items.wait(60)
            wire.send(stream_request("up.f", id=2))
            first = wire.message()
            assert first["params"]["value"] in (1, 5)


def test_a_cancelled_stream_that_goes_on_ends_its_connection(relay: Callable[..., Wire]) -> None:
    def script(peer: Peer) -> None:
        peer.send(item(read_call(peer)["id"]))
        while True:
            peer.raw_request()

    with scripted(script) as upstream:
        port = relay(upstream).socket.getpeername()[1]
        with Wire(port) as wire:
            wire.send(stream_request("up.f"))
            assert wire.message()["params"]["value"] == 1
            wire.send(cancel_request(1))
            assert wire.message()["error"]["code"] == -32800
            assert eventually(lambda: upstream.ended == 1)


@pytest.mark.parametrize("token", [b"99", b"0"])
def test_an_item_of_no_stream_ends_its_connection(relay: Callable[..., Wire], token: bytes) -> None:
    def bad(peer: Peer) -> None:
        read_call(peer)
        peer.send(item(token))
        peer.raw_request()

    with scripted(bad) as upstream:
        wire = relay(upstream)
        # Token 0 is that of a call that takes no items.
        error = wire.error("up.f")
        assert error["code"] == -32005
        assert f"the token {token.decode()}" in error["data"]["reason"]
