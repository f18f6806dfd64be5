"""Relayed calls to upstreams over HTTP."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from relaying import EXAMPLES, IDS, SPACE, containers, relay, unavailable, values
from scripted import Peer, Scripted, answering, http_reply, result, scripted
from serving import Serve

from harness import Wire, eventually, free_port, http, program, request

__all__ = ["relay"]

CALL = re.compile(rb'\{"jsonrpc":"2.0","method":"[^"]*"(,"params":(?P<params>.*))?,"id":1\}\n')
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def url(upstream: Scripted, path: str = "/rpc") -> str:
    return f"http://127.0.0.1:{upstream.port}{path}"


def text_of(params: bytes) -> bytes:
    return b'{"jsonrpc":"2.0","result":%s,"id":1}' % params


def chunked(body: bytes) -> bytes:
    """A reply in chunks of a few bytes."""
    pieces = [body[at : at + 7] for at in range(0, len(body), 7)] + [b""]
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks


def silent(peer: Peer) -> None:
    while True:
        peer.http_request()


def test_calls_reach_another_server(serve: Serve) -> None:
    def add(a: int, b: int) -> int:
        return a + b

    upstream, server = serve(), serve()
    upstream.add(add, name="math.add")
    server.relay("math.*", to=f"http://127.0.0.1:{upstream.port}")
    with Wire(server.port) as wire:
        assert [wire.result("math.add", [n, n]) for n in range(20)] == [2 * n for n in range(20)]
        assert wire.error("math.none")["code"] == -32601
        assert wire.error("math.add", [1])["code"] == -32602
        batch = [json.loads(request("math.add", [n, n], id=n)) for n in range(50)]
    with Wire(server.port) as wire:
        wire.send(http(json.dumps(batch).encode()))
        replies = json.loads(wire.reply()[2])
        assert {it["id"]: it["result"] for it in replies} == {n: 2 * n for n in range(50)}


@pytest.mark.parametrize("frame", [http_reply, chunked])
def test_params_ids_and_results_come_through_byte_for_byte(
    relay: Callable[..., Wire], frame: Callable[[bytes], bytes]
) -> None:
    def echo(peer: Peer) -> None:
        while True:
            call = CALL.fullmatch(peer.http_request())
            assert call is not None
            peer.send(frame(text_of(call["params"])))

    with scripted(echo) as upstream:
        wire = relay(url(upstream))

        @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
        @given(st.lists(st.tuples(containers(values(SPACE), SPACE), IDS), min_size=1, max_size=5))
        def check(calls: list[tuple[str, str]]) -> None:
            form = '{"jsonrpc":"2.0","method":"up.f","params":%s,"id":%s}'
            wire.send("".join(form % call for call in calls).encode())
            lines = [wire.line().decode() for _ in calls]
            reply = '{"jsonrpc":"2.0","id":%s,"result":%s}'
            # Each call has a connection of its own.
            assert sorted(lines) == sorted(reply % (id, params) for params, id in calls)

        check()


def test_a_request_has_only_the_configured_headers(serve: Serve) -> None:
    heads: list[str] = []

    def script(peer: Peer) -> None:
        while True:
            call = json.loads(peer.http_request())
            heads.append(peer.head.decode())
            peer.send(http_reply(result([*call])))

    with scripted(script) as upstream:
        server = serve()
        server.relay("up.*", to=url(upstream, "/rpc?k=v"), headers={"Authorization": "Bearer up"})
        call = http(
            request("up.f"), "Authorization: Bearer caller", "Cookie: a", f"traceparent: {TRACE}"
        )
        with Wire(server.port) as wire:
            wire.send(call)
            assert json.loads(wire.reply()[2])["result"] == ["jsonrpc", "method", "id"]
        lines = [
            "POST /rpc?k=v HTTP/1.1",
            f"Host: 127.0.0.1:{upstream.port}",
            "Content-Type: application/json",
            "Accept: application/json",
            "Authorization: Bearer up",
            "Content-Length: 41",
            f"traceparent: {TRACE}",
        ]
        assert heads == ["\r\n".join(lines)]


def test_only_ucall_servers_get_meta(serve: Serve) -> None:
    with scripted(answering(lambda call: result(call["_meta"]))) as upstream:
        server = serve()
        server.relay("up.*", to=url(upstream), meta=True, timeout_ms=5000)
        with Wire(server.port) as wire:
            meta = wire.result("up.f")
            assert meta["hops"] == 1 and 0 < meta["timeout_ms"] <= 5000


def test_calls_one_after_another_share_a_connection(relay: Callable[..., Wire]) -> None:
    with scripted(answering()) as upstream:
        wire = relay(url(upstream))
        assert [wire.result("up.f", [n]) for n in range(20)] == [[n] for n in range(20)]
        assert upstream.accepted == 1


def test_calls_at_once_have_connections_of_their_own(relay: Callable[..., Wire]) -> None:
    go = threading.Event()

    def waiting(peer: Peer) -> None:
        while True:
            call = json.loads(peer.http_request())
            assert go.wait(60)
            peer.send(http_reply(result(call["params"])))

    with scripted(waiting) as upstream:
        wire = relay(url(upstream))
        wire.send(b"".join(request("up.f", [n], id=n) for n in range(20)))
        assert eventually(lambda: upstream.accepted == 20)
        go.set()
        replies = [json.loads(wire.line()) for _ in range(20)]
        assert {it["id"]: it["result"] for it in replies} == {n: [n] for n in range(20)}
        assert wire.result("up.f", [1]) == [1]
        assert upstream.accepted == 20


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_a_connection_that_the_upstream_closes_is_not_used_again(
    relay: Callable[..., Wire], version: str
) -> None:
    headers = ["Connection: close"] if version == "1.1" else []

    def once(peer: Peer) -> None:
        peer.http_request()
        peer.send(http_reply(result(1), *headers, version=version))
        silent(peer)

    with scripted(once) as upstream:
        wire = relay(url(upstream))
        assert [wire.result("up.f") for _ in range(3)] == [1, 1, 1]
        assert upstream.accepted == 3


def test_an_idle_connection_may_end(relay: Callable[..., Wire]) -> None:
    def once(peer: Peer) -> None:
        peer.http_request()
        peer.send(http_reply(result(1)))
        peer.wait_delivered()
        peer.send(http_reply(b"", status="408 Request Timeout"))

    with scripted(once) as upstream:
        wire = relay(url(upstream), max_failures=1)
        for count in range(1, 4):
            assert wire.result("up.f") == 1
            assert eventually(lambda count=count: upstream.ended == count)  # type: ignore[misc]


def test_a_notification_is_passed_on(relay: Callable[..., Wire]) -> None:
    seen: list[Any] = []

    def script(peer: Peer) -> None:
        while True:
            call = json.loads(peer.http_request())
            seen.append(call["params"])
            if "id" in call:
                peer.send(http_reply(result(len(seen))))
            else:
                peer.send(b"HTTP/1.1 204 No Content\r\n\r\n")

    with scripted(script) as upstream:
        wire = relay(url(upstream))
        wire.send(request("up.f", ["quiet"], id=...))
        assert eventually(lambda: seen == [["quiet"]])
        assert wire.result("up.f", [1]) == 2


@pytest.mark.parametrize("status", ["200 OK", "400 Bad Request", "500 Internal Server Error"])
def test_an_error_of_the_upstream_reaches_the_caller(
    relay: Callable[..., Wire], status: str
) -> None:
    error = {"code": -7, "message": "n\u00f6", "data": {"x": [1.0]}}
    body = json.dumps({"jsonrpc": "2.0", "error": error, "id": None}).encode()

    def failing(peer: Peer) -> None:
        while True:
            peer.http_request()
            peer.send(http_reply(body, status=status))

    with scripted(failing) as upstream:
        wire = relay(url(upstream))
        assert [wire.error("up.f"), wire.error("up.f")] == [error, error]
        assert upstream.accepted == 1


@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize("has_length", [True, False])
def test_replies_of_simple_servers_are_read(
    relay: Callable[..., Wire], version: str, has_length: bool
) -> None:
    """HTTP/1.0, and bodies that end with the connection."""

    def once(peer: Peer) -> None:
        call = json.loads(peer.http_request())
        body = result(call["params"], id=call.get("id"))
        if has_length:
            peer.send(http_reply(body, "Connection: close", version=version))
        elif "id" in call:
            peer.send(f"HTTP/{version} 200 OK\r\n\r\n".encode(), body[:20])
            peer.wait_delivered()
            peer.send(body[20:] + b"\n")
        else:
            peer.send(f"HTTP/{version} 200 OK\r\n\r\n".encode())

    with scripted(once) as upstream:
        wire = relay(url(upstream), max_failures=1)
        for n in range(3):
            wire.send(request("up.f", [0], id=...))
            assert wire.result("up.f", [n]) == [n]
        assert upstream.accepted == 6


def test_a_status_without_a_body_is_an_error_of_its_call(relay: Callable[..., Wire]) -> None:
    def failing(peer: Peer) -> None:
        peer.http_request()
        peer.send(b"HTTP/1.0 500 Oops\r\n\r\n")

    with scripted(failing) as upstream:
        wire = relay(url(upstream), max_failures=1)
        for _ in range(3):
            assert "HTTP status 500 Oops" in unavailable(wire)["reason"]


@pytest.mark.parametrize("status", ["301 Moved Permanently", "404 Not Found", "500 Error"])
def test_a_status_that_a_call_can_cause_is_no_failure(
    relay: Callable[..., Wire], status: str
) -> None:
    def failing(peer: Peer) -> None:
        while True:
            peer.http_request()
            peer.send(http_reply(b"<p>", "Location: /", status=status))

    with scripted(failing) as upstream:
        wire = relay(url(upstream), max_failures=1)
        for _ in range(3):
            assert f"HTTP status {status}" in unavailable(wire)["reason"]
        assert upstream.accepted == 1


HOSTILE: dict[str, tuple[bytes, str]] = {
    "a status": (http_reply(b"<p>busy", status="503 Busy"), "HTTP status 503 Busy"),
    "half a head": (b"HTTP/1.1 200 O", "closed the connection"),
    "half a body": (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{", "closed the connection"),
    "half a body without a length": (b"HTTP/1.1 200 OK\r\n\r\n{", "closed the connection"),
    "a long body": (http_reply(b'"' + b"x" * 9000 + b'"'), "max_reply_bytes"),
    "no HTTP": (result(1), "HTTP with"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_bad_reply_ends_its_connection(serve: Serve, case: str) -> None:
    answer, reason = HOSTILE[case]

    def bad(peer: Peer) -> None:
        peer.http_request()
        peer.send(answer)

    with scripted(bad, answering()) as upstream:
        server = serve(max_reply_bytes=8192)
        server.relay("up.*", to=url(upstream))
        with Wire(server.port) as wire:
            data = unavailable(wire)
            assert data["sent"] is True and reason in data["reason"], data
            assert "/rpc" not in data["reason"]
            assert wire.result("up.f", [2]) == [2]
            assert upstream.accepted == 2


def test_a_second_response_reaches_nobody(relay: Callable[..., Wire]) -> None:
    def twice(peer: Peer) -> None:
        peer.http_request()
        peer.send(2 * http_reply(result("first")))
        silent(peer)

    with scripted(twice, answering()) as upstream:
        wire = relay(url(upstream))
        assert wire.result("up.f", [1]) == "first"
        assert eventually(lambda: upstream.ended == 1)
        assert wire.result("up.f", [2]) == [2]


@pytest.mark.parametrize("ending", ["late", "cancelled"])
def test_a_call_that_is_given_up_closes_its_connection(
    relay: Callable[..., Wire], ending: str
) -> None:
    has_call = threading.Event()

    def waiting(peer: Peer) -> None:
        peer.http_request()
        has_call.set()
        silent(peer)

    with scripted(waiting, answering()) as upstream:
        wire = relay(url(upstream), timeout_ms=50 if ending == "late" else 60_000)
        wire.send(request("up.f", id=5))
        if ending == "cancelled":
            assert has_call.wait(60)
            wire.send(request("$/cancelRequest", {"id": 5}, id=...))
        code = json.loads(wire.line())["error"]["code"]
        assert code == (-32001 if ending == "late" else -32800)
        assert eventually(lambda: upstream.ended == 1)
        assert eventually(lambda: wire.call("up.f", [2]).get("result") == [2])


@pytest.mark.parametrize("is_idempotent", [False, True])
def test_only_idempotent_calls_are_sent_twice(
    relay: Callable[..., Wire], is_idempotent: bool
) -> None:
    def dying(peer: Peer) -> None:
        peer.http_request()

    with scripted(dying, answering()) as upstream:
        wire = relay(url(upstream), idempotent=["up.g*"])
        if is_idempotent:
            assert wire.result("up.get", [1]) == [1]
        else:
            assert unavailable(wire, "up.f")["sent"] is True
        assert upstream.accepted == 1 + is_idempotent


def test_upstreams_of_both_kinds_answer_for_each_other(relay: Callable[..., Wire]) -> None:
    with scripted(answering()) as upstream:
        dead = [f"tcp://127.0.0.1:{free_port()}", f"http://127.0.0.1:{free_port()}"]
        wire = relay(*dead, url(upstream))
        assert [wire.result("up.f", [n]) for n in range(20)] == [[n] for n in range(20)]


def test_metrics_do_not_have_the_path_of_a_url(serve: Serve) -> None:
    with scripted(answering()) as upstream:
        server = serve(metrics=True)
        server.relay("up.*", to=url(upstream, "/secret"))
        with Wire(server.port) as wire:
            wire.send(http(b"", target="/metrics", method="GET"))
            text = wire.reply()[2].decode()
        assert f'upstream="{url(upstream, "")}"' in text and "secret" not in text


FASTAPI = """
import sys

import fastapi
import uvicorn

app = fastapi.FastAPI()


@app.post("/rpc")
def rpc(call: dict) -> dict:
    if call["method"] == "up.fail":
        raise fastapi.HTTPException(503, "busy")
    return {"jsonrpc": "2.0", "id": call["id"], "result": call["params"]}


class Server(uvicorn.Server):
    async def startup(self, sockets=None):
        await super().startup(sockets)
        print("ready", flush=True)


Server(uvicorn.Config(app, port=int(sys.argv[1]), log_level="critical")).run()
"""


def test_a_fastapi_application_is_an_upstream(relay: Callable[..., Wire]) -> None:
    pytest.importorskip("fastapi")
    pytest.importorskip("uvicorn")
    port = str(free_port())
    with program(FASTAPI, port) as process:
        assert process.stdout.readline() == "ready\n"
        wire = relay(f"http://127.0.0.1:{port}/rpc")
        wire.send(b"".join(request("up.f", [n, "\u00e9"], id=n) for n in range(100)))
        replies = [json.loads(wire.line()) for _ in range(100)]
        assert {it["id"]: it["result"] for it in replies} == {n: [n, "\u00e9"] for n in range(100)}
        assert "HTTP status 503" in unavailable(wire, "up.fail")["reason"]
        assert wire.result("up.f", {"a": 1.5}) == {"a": 1.5}
