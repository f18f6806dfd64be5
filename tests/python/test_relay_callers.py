"""What one caller sends through a relay harms no other caller."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from relaying import relay
from scripted import Peer, scripted
from serving import Serve

import ucall
from harness import Wire, eventually, free_port, http, request
from ucall.client import Client

__all__ = ["relay"]

SMUGGLED = b'[\n{"jsonrpc":"2.0","id":0,"method":"admin.stop"}\r\n]'
CALL = b'{"jsonrpc":"2.0","method":"up.f",\n"params":%s%s}'
META = b'"_meta":{\n"progressToken":1,\r"tracestate":"a","traceparent":"a\\u000ab"}'


def test_line_breaks_are_not_passed_to_servers_that_read_lines(
    relay: Callable[..., Wire],
) -> None:
    methods: list[str] = []

    def lines(peer: Peer) -> None:
        while True:
            call = json.loads(peer.raw_request())
            methods.append(call["method"])
            if "id" in call:
                peer.send(b'{"jsonrpc":"2.0","id":%d,"result":1}\n' % call["id"])

    named = b'{"a":%s}' % SMUGGLED
    forms = [CALL % (it, b',\n"id":1') for it in (SMUGGLED, named)]
    with scripted(lines) as upstream:
        for options in ({}, {"params": {"b": "\n"}}):
            wire = relay(upstream, **options)
            notification = CALL % (named, b"")
            wire.send(http(forms[-1]) + http(b"[%s]" % b",".join([*forms, notification])))
            assert json.loads(wire.reply()[2])["result"] == 1
            is_error = ["error" in reply for reply in json.loads(wire.reply()[2])]
            assert sorted(is_error) == [False, bool(options)]
            with Wire(wire.socket.getpeername()[1]) as raw:
                raw.send(notification + CALL % (named, b',"id":2,\n' + META))
                assert json.loads(raw.line())["result"] == 1
        # The last call is a stream, on a connection of its own.
        assert eventually(lambda: len(methods) == 6 + 5)
        assert set(methods) == {"up.f"}


class Upstream:
    """A server with a call that waits, and calls with long params and replies."""

    def __init__(self, server: ucall.Server, scheme: str) -> None:
        self.noted: list[int] = []
        self.release = threading.Event()
        self.waits = threading.Semaphore(0)
        self.address = f"{scheme}://127.0.0.1:{server.port}"
        server.add(self.wait, name="up.wait", threads=True)
        server.add(self.noted.append, name="up.note_length")
        server.add(self.note, name="up.note")
        server.add(self.big, name="up.big")
        server.add(self.feed, name="up.feed")
        server.add(self.later, name="up.later", threads=True)

    def wait(self) -> str:
        self.waits.release()
        assert self.release.wait(60)
        return "done"

    def later(self) -> Iterator[str]:
        yield self.wait()

    def note(self, text: str) -> None:
        self.noted.append(len(text))

    def big(self, n: int) -> str:
        return "x" * n

    def feed(self, n: int) -> Iterator[str]:
        yield "first"
        yield "x" * n
        yield "last"


@pytest.fixture(params=["tcp", "http"])
def scheme(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_long_notification_ends_no_call_of_others(serve: Serve, scheme: str) -> None:
    upstream = Upstream(serve(max_body_bytes=1_000_000), scheme)
    server = serve()
    # It is told of a larger limit than the upstream has, so that this one refuses.
    server.relay("up.*", to=upstream.address, max_failures=1, max_request_bytes=2_000_000)
    with ThreadPoolExecutor(2) as pool, Wire(server.port) as wire:
        clients = [Client(f"tcp://127.0.0.1:{server.port}") for _ in range(2)]
        waiting = [pool.submit(lambda it: it.up.wait().json, client) for client in clients]
        assert all(upstream.waits.acquire(timeout=60) for _ in clients)
        for length in (1_500_000, 1_999_000, 900_000, 2_000_000, 300_000):
            wire.send(request("up.note", ["x" * length], id=...))
            # It is no failure: the circuit stays closed.
            assert wire.result("up.big", [1]) == "x"
        upstream.release.set()
        assert [it.result(60) for it in waiting] == ["done", "done"]
        assert wire.error("up.note", ["x" * 2_000_000])["code"] == -32600
    assert set(upstream.noted) <= {300_000, 900_000}


def test_the_log_says_that_limits_do_not_fit(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    serve(max_body_bytes=1000).relay("up.*", to="tcp://127.0.0.1:1", max_request_bytes=1000)
    assert not caplog.records
    serve(max_body_bytes=1001).relay("up.*", to="tcp://127.0.0.1:1", max_request_bytes=1000)
    assert "max_body_bytes (1001) is above max_request_bytes (1000)" in caplog.text


def test_a_long_reply_is_an_error_of_its_call_alone(serve: Serve, scheme: str) -> None:
    upstream = Upstream(serve(), scheme)
    server = serve(max_reply_bytes=100_000)
    server.relay("up.*", to=upstream.address, max_failures=1)
    with ThreadPoolExecutor(1) as pool, Wire(server.port) as wire:
        client = Client(f"tcp://127.0.0.1:{server.port}")
        waiting = pool.submit(lambda: client.up.wait().json)
        assert upstream.waits.acquire(timeout=60)
        for length in (100_001, 1_000_000, 5_000_000) * 3:
            found: dict[str, Any] = wire.error("up.big", [length])
            assert found["code"] == -32005 and "max_reply_bytes" in found["data"]["reason"]
            assert wire.result("up.big", [1]) == "x"
        batch = [json.loads(request("up.big", [n], id=n)) for n in (1, 200_000, 2)]
        wire.send(json.dumps(batch).encode())
        replies = {it["id"]: "error" in it for it in json.loads(wire.line())}
        assert replies == {1: False, 200_000: True, 2: False}
        upstream.release.set()
        assert waiting.result(60) == "done"


def test_items_are_measured_as_the_server_does_that_sends_them(serve: Serve) -> None:
    """With equal limits an item that the upstream may send comes through."""
    limit = 100_000
    upstream = Upstream(serve(max_reply_bytes=limit), "tcp")
    server = serve(max_reply_bytes=limit)
    server.relay("up.*", to=upstream.address, max_failures=1)
    client = Client(f"tcp://127.0.0.1:{server.port}")
    items = list(client.stream.up.feed(limit - 2))
    assert [len(item) for item in items] == [5, limit - 2, 4]
    larger = Upstream(serve(), "tcp")
    server.relay("down.*", to=larger.address, max_failures=1, rename={"down.*": "up.*"})
    for length in (limit - 1, 1_000_000):
        with pytest.raises(ucall.RPCError) as error:
            list(client.stream.down.feed(length))
        assert error.value.code == -32005 and "max_reply_bytes" in error.value.data["reason"]
        assert client.down.big(1).json == "x"


def test_deadlines_of_a_caller_open_no_circuit(serve: Serve, scheme: str) -> None:
    upstream = Upstream(serve(), scheme)
    server = serve()
    server.relay("up.*", to=upstream.address, max_failures=1)
    with Wire(server.port) as hasty, Wire(server.port) as wire:
        for _ in range(5):
            call = json.loads(request("up.wait")) | {"_meta": {"timeout_ms": 20}}
            hasty.send(b"".join(json.dumps(call | {"id": n}).encode() for n in range(5)))
            assert {json.loads(hasty.line())["error"]["code"] for _ in range(5)} == {-32001}
            assert wire.result("up.big", [1]) == "x"
    upstream.release.set()


@pytest.mark.parametrize("method", ["up.wait", "up.later"])
def test_calls_do_not_wait_for_a_slow_one_after_a_failure(
    serve: Serve, scheme: str, method: str
) -> None:
    port, server = free_port(), serve()
    to = f"{scheme}://127.0.0.1:{port}"
    server.relay("up.*", to=to, max_failures=1, timeout_ms=300_000)
    with Wire(server.port) as slow, Wire(server.port) as wire:
        assert wire.error("up.big", [1])["code"] == -32005
        started = ucall.Server(port=port)
        upstream = Upstream(started, scheme)
        started.start()
        call = json.loads(request(method)) | {"_meta": {"progressToken": 1}}

        def is_probed() -> bool:
            slow.send(json.dumps(call).encode())
            return upstream.waits.acquire(timeout=0.1)

        assert eventually(is_probed)
        assert eventually(lambda: wire.call("up.big", [1]).get("result") == "x")
        upstream.release.set()
        started.stop()


@pytest.mark.parametrize("form", ["calls", "streams", "batch"])
def test_one_connection_leaves_calls_to_others(serve: Serve, scheme: str, form: str) -> None:
    upstream, server = Upstream(serve(), scheme), serve()
    # An eighth is less than 16, which a connection has at least.
    server.relay("up.*", to=upstream.address, max_outstanding=20)
    method = "up.later" if form == "streams" else "up.wait"
    meta = {"_meta": {"progressToken": 1}} if form == "streams" else {}
    calls = [json.loads(request(method, id=n)) | meta for n in range(20)]
    with Wire(server.port) as hog, Wire(server.port) as wire:
        texts = [calls] if form == "batch" else calls
        hog.send(b"".join(json.dumps(it).encode() for it in texts))
        replies: list[dict[str, Any]] = []
        if form != "batch":
            replies = [json.loads(hog.line()) for _ in range(4)]
        for _ in range(16):
            assert upstream.waits.acquire(timeout=60)
        assert wire.result("up.big", [1]) == "x"
        upstream.release.set()
        while len(replies) < 20:
            found = json.loads(hog.line())
            found = found if form == "batch" else [found]
            replies += [it for it in found if "method" not in it]
        errors = [it["error"] for it in replies if "error" in it]
        assert [it["code"] for it in errors] == [-32003] * 4
        assert {it["data"]["max_connection_outstanding"] for it in errors} == {16}
        assert sorted(it["id"] for it in replies) == list(range(20))
