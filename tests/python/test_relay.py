"""Relayed calls: they go to other servers and come back, without Python."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from functions import add
from relaying import address, echo, read_call, relay, reply, silent, unavailable
from scripted import Peer, Script, scripted
from serving import Serve

import ucall
from harness import Wire, eventually, free_port, http, request

__all__ = ["relay"]


@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_calls_reach_another_server(serve: Serve, tmp_path: Path, kind: str) -> None:
    if kind == "unix":
        path = str(tmp_path / "upstream.sock")
        upstream, name = serve(uds=path), f"unix://{path}"
    else:
        upstream = serve()
        name = f"tcp://127.0.0.1:{upstream.port}"
    upstream.add(add, name="math.add")
    upstream.add(add, name="plus")
    server = serve()
    server.add(lambda: "here", name="math.here")
    server.relay(["math.*", "plus"], to=name)
    with Wire(server.port) as wire:
        assert wire.result("math.add", [1, 2]) == 3
        assert wire.result("plus", {"a": 1, "b": 2}) == 3
        assert wire.result("math.here") == "here"
        assert wire.error("plus.x")["code"] == -32601
        assert wire.error("math.none")["data"] == 'there is no method "math.none"'
        assert wire.error("math.add", [1])["code"] == -32602
        batch = [json.loads(request("math.add", [n, n], id=n)) for n in range(50)]
        wire.send(http(json.dumps(batch).encode()))
    with Wire(server.port) as wire:
        wire.send(http(json.dumps(batch).encode()))
        replies = json.loads(wire.reply()[2])
        assert {it["id"]: it["result"] for it in replies} == {n: 2 * n for n in range(50)}


def test_a_call_has_the_remaining_time_and_the_hops(relay: Callable[..., Wire]) -> None:
    def meta(peer: Peer) -> None:
        while True:
            call = read_call(peer)
            peer.send(reply(call, call["meta"]))

    with scripted(meta) as upstream:
        wire = relay(upstream, timeout_ms=5000)
        found = wire.result("up.f")
        assert found["hops"] == 1 and 0 < found["timeout_ms"] <= 5000
        call = b'{"jsonrpc":"2.0","method":"up.f","id":1,"_meta":{"hops":3,"timeout_ms":900}}'
        wire.send(call)
        found = json.loads(wire.line())["result"]
        assert found["hops"] == 4 and 0 < found["timeout_ms"] <= 900


def test_the_caller_s_trace_is_passed_on(relay: Callable[..., Wire]) -> None:
    def meta(peer: Peer) -> None:
        while True:
            call = read_call(peer)
            peer.send(reply(call, call["meta"]))

    trace = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}
    state = {"tracestate": 'a=1,b="'}
    with scripted(meta) as upstream:
        wire = relay(upstream)
        for sent in (trace, trace | state):
            call = {"jsonrpc": "2.0", "method": "up.f", "id": 1, "_meta": sent | {"other": 1}}
            wire.send(json.dumps(call).encode())
            found = json.loads(wire.line())["result"]
            assert {key: found.get(key) for key in sent} == sent
            assert found.keys() == sent.keys() | {"hops", "timeout_ms"}
    with scripted(meta) as upstream:
        port = relay(upstream).socket.getpeername()[1]
        with Wire(port) as wire:
            headers = (f"{name}: {value}" for name, value in (trace | state).items())
            wire.send(http(request("up.f"), *headers))
            found = json.loads(wire.reply()[2])["result"]
            assert {key: found[key] for key in trace | state} == trace | state


def test_calls_with_equal_ids_get_their_own_replies(relay: Callable[..., Wire]) -> None:
    def reversed_pairs(peer: Peer) -> None:
        while True:
            calls = [read_call(peer), read_call(peer)]
            peer.send(*(reply(call) for call in reversed(calls)))

    with scripted(reversed_pairs) as upstream:
        wire = relay(upstream)
        with Wire(wire.socket.getpeername()[1]) as other:
            wire.send(request("up.f", ["first"], id="same"))
            other.send(request("up.f", ["second"], id="same"))
            assert json.loads(wire.line()) == {"jsonrpc": "2.0", "id": "same", "result": ["first"]}
            assert json.loads(other.line())["result"] == ["second"]


def test_an_error_of_the_upstream_reaches_the_caller(relay: Callable[..., Wire]) -> None:
    error = b'{"code":-7,"message":"n\\u00f6","data":{"x":[1.0]}}'

    def failing(peer: Peer) -> None:
        peer.send(b'{"jsonrpc":"2.0","error":%s,"id":%s}' % (error, read_call(peer)["id"]))

    with scripted(failing) as upstream:
        assert relay(upstream).error("up.f") == json.loads(error)


def test_a_notification_is_passed_on(relay: Callable[..., Wire]) -> None:
    seen: list[bytes] = []

    def script(peer: Peer) -> None:
        while True:
            call = read_call(peer)
            seen.append(call["params"])
            if call["id"]:
                peer.send(reply(call))

    with scripted(script) as upstream:
        wire = relay(upstream)
        wire.send(request("up.f", ["quiet"], id=...))
        assert wire.result("up.f", [1]) == [1]
        assert seen == [b'["quiet"]', b"[1]"]


def test_a_late_call_is_answered_and_its_silent_connection_closed(
    relay: Callable[..., Wire],
) -> None:
    with scripted(silent, echo) as upstream:
        wire = relay(upstream, timeout_ms=50)
        assert wire.error("up.f", [1])["code"] == -32001
        assert eventually(lambda: upstream.ended == 1)
        assert eventually(lambda: wire.call("up.f", [2]).get("result") == [2])


def test_a_long_trace_is_not_passed_on(serve: Serve) -> None:
    upstream, server = serve(), serve()
    upstream.add(add, name="up.add")
    server.relay("up.*", to=f"tcp://127.0.0.1:{upstream.port}")
    with Wire(server.port) as wire:
        headers = ("traceparent: 00-1-2-01", "tracestate: " + "a" * 8000)
        wire.send(http(request("up.add", [1, 2]), *headers))
        assert json.loads(wire.reply()[2])["result"] == 3


def test_a_cancelled_call_is_cancelled_upstream(relay: Callable[..., Wire]) -> None:
    seen: list[bytes] = []
    has_call = threading.Event()

    def script(peer: Peer) -> None:
        call = read_call(peer)
        has_call.set()
        seen.append(peer.raw_request())
        next_call = read_call(peer)
        peer.send(reply(call), reply(next_call))

    with scripted(script) as upstream:
        wire = relay(upstream)
        wire.send(request("up.f", ["cancelled"], id=5))
        assert has_call.wait(60)
        wire.send(request("$/cancelRequest", {"id": 5}, id=...))
        assert json.loads(wire.line())["error"]["code"] == -32800
        assert wire.result("up.f", ["next"]) == ["next"]
        assert seen == [b'{"jsonrpc":"2.0","method":"$/cancelRequest","params":{"id":0}}']


HOSTILE: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "an unknown id": (lambda id: b'{"id":99,"result":1}', "the id 99"),
    "an id in another form": (lambda id: b'{"id":"%s","result":1}' % id, "of no call"),
    "half a reply": (lambda id: b'{"id":%s,"resu' % id, "closed the connection"),
    "no reply": (lambda id: b"", "closed the connection"),
    "no JSON": (lambda id: b"HTTP/1.1 400 Bad Request\r\n\r\n", "no JSON"),
    "an invalid result": (lambda id: b'{"id":%s,"result":01}' % id, "no JSON"),
    "a batch": (lambda id: b'[{"id":%s,"result":1}]' % id, "no JSON"),
    "no outcome": (lambda id: b'{"id":%s}' % id, "no result"),
    "an item of no stream": (
        lambda id: b'{"method":"$/progress","params":{"token":%s,"value":1}}' % id,
        "the token 0",
    ),
    "half a long reply": (
        lambda id: b'{"id":%s,"result":"%s' % (id, b"x" * 9000),
        "closed the connection",
    ),
    "an error of no call": (
        lambda id: b'{"id":null,"error":{"code":-32004,"message":"Unauthorized"}}',
        "error -32004",
    ),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_bad_reply_ends_its_connection(serve: Serve, case: str) -> None:
    answer, reason = HOSTILE[case]

    def bad(peer: Peer) -> None:
        peer.send(answer(read_call(peer)["id"]))

    with scripted(bad, echo) as upstream:
        server = serve(max_reply_bytes=8192)
        server.relay("up.*", to=address(upstream))
        with Wire(server.port) as wire:
            data = unavailable(wire)
            assert data["sent"] is True and reason in data["reason"]
            assert wire.result("up.f", [2]) == [2]
            assert upstream.accepted == 2


def test_a_call_that_its_upstream_cannot_read_gets_its_error(serve: Serve) -> None:
    def bad(peer: Peer) -> None:
        read_call(peer)
        peer.send(b'{"id":null,"error":{"code":-32600,"message":"Invalid Request"}}\n')

    with scripted(*[bad] * 6, echo) as upstream:
        server = serve()
        server.relay("up.*", to=address(upstream))
        with Wire(server.port) as wire:
            for _ in range(6):
                assert wire.error("up.f")["code"] == -32600
            assert wire.result("up.f", [2]) == [2]


def test_a_second_reply_reaches_nobody(relay: Callable[..., Wire]) -> None:
    def twice(peer: Peer) -> None:
        call = read_call(peer)
        peer.send(2 * reply(call))

    with scripted(twice, echo) as upstream:
        wire = relay(upstream)
        assert wire.result("up.f", [1]) == [1]
        assert wire.result("up.f", [2]) == [2]
        assert upstream.accepted == 2


def test_methods_are_renamed(relay: Callable[..., Wire]) -> None:
    def script(peer: Peer) -> None:
        while True:
            call = read_call(peer)
            peer.send(reply(call, b'"%s"' % call["method"]))

    rename = {"up.sum": "add", "up.a.*": "b.*", "up.*": "*"}
    with scripted(script) as upstream:
        wire = relay(upstream, rename=rename)
        for name, expected in [("sum", "add"), ("a.f", "b.f"), ("g", "g")]:
            assert wire.result(f"up.{name}") == expected
        for name in ["rpc.discover", "$/cancelRequest", ""]:
            assert wire.error(f"up.{name}")["code"] == -32601


def test_params_are_added(relay: Callable[..., Wire]) -> None:
    fixed = {"tenant": "a", "limits": {"rows": [1, 2.5]}}
    with scripted(echo) as upstream:
        wire = relay(upstream, params=fixed)
        assert wire.result("up.f", {"x": 1}) == {"x": 1} | fixed
        assert wire.result("up.f", {}) == wire.result("up.f") == fixed
        assert wire.error("up.f", {"tenant": "b"})["code"] == -32602
        assert wire.error("up.f", [1])["data"] == "expected params by name"


def test_a_large_call_makes_no_other_wait(relay: Callable[..., Wire]) -> None:
    go = threading.Event()

    def slow_to_read(peer: Peer) -> None:
        assert go.wait(60)
        echo(peer)

    with scripted(slow_to_read, echo) as upstream:
        wire = relay(upstream)
        large = "x" * 2_000_000
        wire.send(request("up.f", [large], id="large"))
        assert eventually(lambda: upstream.accepted == 1)
        with Wire(wire.socket.getpeername()[1]) as other:
            assert other.result("up.f", ["small"]) == ["small"]
        go.set()
        assert json.loads(wire.line())["result"] == [large]
        assert upstream.accepted == 2


def test_an_incomplete_reply_counts_as_held_memory(serve: Serve) -> None:
    def large(peer: Peer) -> None:
        peer.send(b'{"id":%s,"result":"' % read_call(peer)["id"])
        for _ in range(64):
            peer.send(b"x" * 65536)
        silent(peer)

    with scripted(large, echo) as upstream:
        server = serve(max_held_bytes=1_000_000)
        server.relay("up.*", to=address(upstream), timeout_ms=60_000)
        with Wire(server.port) as wire:
            data = unavailable(wire)
            assert data["sent"] is True and "max_held_bytes" in data["reason"]
            assert wire.result("up.f", [1]) == [1]


def test_more_calls_open_more_connections(relay: Callable[..., Wire]) -> None:
    go = threading.Event()

    def waiting(peer: Peer) -> None:
        go.wait(60)
        echo(peer)

    with scripted(waiting) as upstream:
        wires = [relay(upstream)]
        port = wires[0].socket.getpeername()[1]
        wires += [Wire(port), Wire(port)]
        for index, wire in enumerate(wires):
            wire.send(b"".join(request("up.f", [n], id=n) for n in range(90)))
            assert eventually(lambda n=index: upstream.accepted >= min(n + 1, 2))
        assert eventually(lambda: upstream.accepted == 3)
        go.set()
        for wire in wires:
            replies = [json.loads(wire.line()) for _ in range(90)]
            assert {it["id"]: it["result"] for it in replies} == {n: [n] for n in range(90)}
            wire.socket.close()


def test_calls_past_the_limit_are_refused(relay: Callable[..., Wire]) -> None:
    with scripted(silent) as upstream:
        wire = relay(upstream, max_outstanding=3, timeout_ms=60_000)
        wire.send(b"".join(request("up.f", id=number) for number in range(4)))
        error = json.loads(wire.line())
        assert error["id"] == 3 and error["error"]["code"] == -32003
        assert error["error"]["data"]["max_outstanding"] == 3


def test_an_upstream_that_does_not_listen_is_unavailable(relay: Callable[..., Wire]) -> None:
    wire = relay(f"tcp://127.0.0.1:{free_port()}")
    data = unavailable(wire)
    assert data["sent"] is False and "refused" in data["reason"]


def test_a_call_that_was_not_sent_goes_to_another_upstream(relay: Callable[..., Wire]) -> None:
    with scripted(echo) as upstream:
        wire = relay(f"tcp://127.0.0.1:{free_port()}", upstream)
        assert [wire.result("up.f", [n]) for n in range(20)] == [[n] for n in range(20)]


@pytest.mark.parametrize("is_idempotent", [False, True])
def test_only_idempotent_calls_are_sent_twice(
    relay: Callable[..., Wire], is_idempotent: bool
) -> None:
    seen: list[bytes] = []

    def dying(peer: Peer) -> None:
        seen.append(read_call(peer)["params"])

    with scripted(dying, echo) as upstream:
        wire = relay(upstream, idempotent=["up.g*"])
        if is_idempotent:
            assert wire.result("up.get", [1]) == [1]
        else:
            assert unavailable(wire, "up.f")["sent"] is True
        assert len(seen) == 1
        assert upstream.accepted == 1 + is_idempotent


def test_a_failing_upstream_gets_no_calls_until_it_answers_again(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    def dying(peer: Peer) -> None:
        read_call(peer)

    scripts: list[Script] = [dying, dying, echo]
    with scripted(*scripts) as upstream:
        server = serve(metrics=True)
        server.relay("up.*", to=address(upstream), max_failures=2)
        wire = Wire(server.port)

        def shows(*metrics: str) -> bool:
            text = urlopen(f"http://127.0.0.1:{server.port}/metrics").read().decode()
            text = text.replace(f'{{upstream="{address(upstream)}"}}', "")
            text = text.replace(f'upstream="{address(upstream)}",', "")
            return all(metric in text.splitlines() for metric in metrics)

        assert unavailable(wire)["sent"] is True
        assert unavailable(wire)["sent"] is True
        assert unavailable(wire)["sent"] is False
        assert upstream.accepted == 2
        assert shows('ucall_upstream_circuits{state="open"} 1', "ucall_upstream_failures_total 2")
        assert eventually(lambda: wire.call("up.f", [1]).get("result") == [1])
        assert upstream.accepted == 3
        assert shows('ucall_upstream_circuits{state="closed"} 1', "ucall_upstream_calls 0")
        wire.socket.close()
        lines = "\n".join(caplog.messages)
        assert f"relay: {address(upstream)} has failed, no calls for 500 ms: it has closed" in lines
        assert f"relay: {address(upstream)} answers again" in lines


def test_a_param_picks_the_upstream(relay: Callable[..., Wire]) -> None:
    def named(name: bytes) -> Script:
        def script(peer: Peer) -> None:
            while True:
                peer.send(reply(read_call(peer), name))

        return script

    with scripted(named(b"1")) as one, scripted(named(b"2")) as two:
        wire = relay(one, two, hash_param="user")
        picked = [[wire.result("up.f", {"x": x, "user": n}) for x in range(4)] for n in range(40)]
        assert all(len(set(results)) == 1 for results in picked)
        assert {results[0] for results in picked} == {1, 2}


def test_a_loop_ends(serve: Serve) -> None:
    server = serve()
    server.relay("up.*", to=f"tcp://127.0.0.1:{server.port}")
    with Wire(server.port) as wire:
        reason = "the call has passed 8 relays, which may be a loop"
        assert unavailable(wire) == {"sent": False, "reason": reason}


def test_the_protocol_s_own_methods_are_not_relayed(serve: Serve) -> None:
    with scripted(echo) as upstream:
        server = serve()
        server.relay("*", to=address(upstream))
        with Wire(server.port) as wire:
            assert wire.result("anything", [1]) == [1]
            assert wire.error("rpc.none")["code"] == -32601


def test_wrong_options_are_refused() -> None:
    server = ucall.Server(port=0)
    server.add(add)
    upstream = "tcp://127.0.0.1:1"
    wrong: list[tuple[Any, dict[str, Any], str]] = [
        ("", {}, "methods: expected names"),
        ("a*b", {}, "methods: expected names"),
        ("rpc.x", {}, "methods: expected names"),
        ([], {}, "methods: expected at least one"),
        ("add", {}, "'add' is already the name of"),
        ("up.*", {"to": []}, "to: expected at least one"),
        ("up.*", {"to": 65 * [upstream]}, "to: expected at most 64 upstreams"),
        ("up.*", {"to": "127.0.0.1:1"}, "to: expected an upstream such as"),
        ("up.*", {"to": "http://a:1@127.0.0.1:1"}, "to: expected an upstream such as"),
        ("up.*", {"headers": {"A": "1"}}, "headers: expected an upstream over HTTP"),
        ("up.*", {"rename": {"a": "b.*"}}, "rename: expected names such as"),
        ("up.*", {"params": {"a": {1}}}, "params: expected values of JSON"),
        ("up.*", {"meta": True}, "meta: expected an upstream over HTTP"),
        ("up.*", {"headers": {"Host": "a"}}, "headers: expected other headers than Host"),
        ("up.*", {"headers": {"A": "1\r\nB: 2"}}, "headers: expected a value of visible ASCII"),
        ("up.*", {"timeout_ms": 0}, "timeout_ms: expected"),
        ("up.*", {"max_outstanding": 0}, "max_outstanding: expected"),
        ("up.*", {"max_failures": 0}, "max_failures: expected"),
        ("up.*", {"idempotent": ["*a"]}, "idempotent: expected"),
    ]
    for methods, options, message in wrong:
        with pytest.raises(ValueError, match=re.escape(message)):
            server.relay(methods, **{"to": upstream, **options})
    server.relay("up.*", to=64 * [upstream])
