"""Hooks around native procedures: methods of a store, and relayed ones."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from functions import add
from hooking import NewServer, awaiting, new_server, plain

import ucall
from harness import Wire, eventually, http, request

__all__ = ["new_server"]


class Seen:
    """An async hook that notes what it sees."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any, Any]] = []

    async def __call__(self, ctx: ucall.Context, call: ucall.Call) -> Any:
        try:
            result = await call()
        except (Exception, asyncio.CancelledError) as error:
            self.calls.append((call.method, call.params, type(error).__name__))
            raise
        self.calls.append((call.method, call.params, result))
        return result


def relaying(new_server: NewServer, upstream: ucall.Server, **options: Any) -> ucall.Server:
    upstream.start()
    server = new_server(**options)
    server.relay("math.*", to=f"tcp://127.0.0.1:{upstream.port}")
    return server


def test_hooks_that_ask_for_it_are_around_stores(new_server: NewServer, tmp_path: Path) -> None:
    server, seen, others = new_server(), Seen(), Seen()
    server.middleware(others)
    server.store("before", tmp_path / "before")
    server.middleware(native=True)(seen)
    server.store("kv", tmp_path / "kv")
    server.add(add)
    server.start()
    with Wire(server.port) as wire:
        assert wire.result("kv.put", ["a", 7]) == 1
        assert wire.result("kv.get", ["a"]) == {"version": 1, "value": 7}
        assert wire.result("before.get", {"key": "b"}) is None
        assert wire.result("add", [2, 3]) == 5
        assert wire.error("kv.absent", [])["code"] == -32601
        assert wire.error("kv.get", [[]])["code"] == -32602
    assert [(method, params) for method, params, _ in seen.calls] == [
        ("kv.put", ["a", 7]),
        ("kv.get", ["a"]),
        ("before.get", {"key": "b"}),
        ("add", [2, 3]),
        ("kv.absent", []),
        ("kv.get", [[]]),
    ]
    assert seen.calls[1][2] == {"version": 1, "value": 7} and seen.calls[5][2] == "RPCError"
    assert [method for method, *_ in others.calls] == ["add", "kv.absent"]


def test_native_calls_do_not_wait_for_another_turn(new_server: NewServer, tmp_path: Path) -> None:
    server = new_server()
    server.middleware(native=True)(awaiting)
    server.store("kv", tmp_path / "kv")
    server.start()
    began = time.monotonic()
    with Wire(server.port) as wire:
        for version in range(1, 41):
            assert wire.result("kv.put", ["a", 7]) == version
    assert time.monotonic() - began < 30, "each would wait for a second"


def test_a_native_call_counts_once(new_server: NewServer, tmp_path: Path) -> None:
    server = new_server(limits=ucall.Limits(max_running_calls=1))
    server.middleware(native=True)(awaiting)
    server.store("kv", tmp_path / "kv")
    server.start()
    with Wire(server.port) as wire:
        assert wire.result("kv.put", ["a", 7]) == 1


def test_hooks_change_and_refuse_native_calls(new_server: NewServer, tmp_path: Path) -> None:
    server = new_server()

    @server.middleware(native=True)
    async def guard(ctx: ucall.Context, call: ucall.Call) -> Any:
        if call.method == "kv.put":
            raise ucall.RPCError(403, "read only")
        return {"got": await call(), "transport": ctx.transport}

    server.store("kv", tmp_path / "kv")
    server.start()
    with Wire(server.port) as wire:
        assert wire.error("kv.put", ["a", 7])["code"] == 403
        assert wire.result("kv.get", ["a"]) == {"got": None, "transport": "tcp"}
    with Wire(server.port) as wire:
        wire.send(http(request("kv.get", ["a"])))
        assert b'"transport":"http"' in wire.reply()[2]


def test_hooks_are_around_relayed_calls(new_server: NewServer) -> None:
    upstream, seen = new_server(), Seen()

    @upstream(name="math.trace")
    def trace(ctx: ucall.Context) -> list[str | None]:
        return [ctx.traceparent, ctx.tracestate]

    @upstream(name="math.count")
    def count(upto: int) -> Iterator[int]:
        yield from range(upto)

    upstream.add(add, "math.add")
    upstream.add(add, 'math."quoted"')
    server = relaying(new_server, upstream)
    server.middleware(native=True)(seen)
    server.start()
    with Wire(server.port) as wire:
        assert wire.result("math.add", [2, 3]) == 5
        assert wire.result('math."quoted"', [2, 3]) == 5
        assert wire.error("math.add", ["a", 3])["code"] == -32602
        assert wire.error("math.absent")["code"] == -32601
        assert wire.result("math.count", [3]) == [0, 1, 2]
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    with Wire(server.port) as wire:
        wire.send(http(request("math.trace"), f"traceparent: {parent}", "tracestate: a=b"))
        assert parent.encode() in wire.reply()[2]
    with Wire(server.port) as wire:
        wire.send(b'{"jsonrpc":"2.0","method":"math.add","params":[1,1]}\n')
        assert wire.result("math.add", [3, 4]) == 7
    assert [(method, result) for method, _, result in seen.calls] == [
        ("math.add", 5),
        ('math."quoted"', 5),
        ("math.add", "RPCError"),
        ("math.absent", "RPCError"),
        ("math.count", [0, 1, 2]),
        ("math.trace", [parent, "a=b"]),
        ("math.add", None),
        ("math.add", 7),
    ]


def test_relays_that_call_each_other_end(new_server: NewServer) -> None:
    server = new_server()
    server.middleware(native=True)(awaiting)
    other = new_server()
    other.middleware(native=True)(awaiting)
    other.start()
    server.relay("f", to=f"tcp://127.0.0.1:{other.port}")
    server.start()
    other.relay("f", to=f"tcp://127.0.0.1:{server.port}")
    with Wire(server.port) as wire:
        assert "which may be a loop" in wire.error("f")["data"]["reason"]


@pytest.mark.parametrize("end", ["reset", "cancel", "deadline"])
def test_a_cancelled_call_cancels_the_native_one(new_server: NewServer, end: str) -> None:
    upstream, seen, began, cancelled = new_server(), Seen(), threading.Event(), threading.Event()

    @upstream(name="math.wait")
    async def wait() -> None:
        began.set()
        try:
            await asyncio.sleep(600)
        finally:
            cancelled.set()

    timeout_ms = {"timeout_ms": 300} if end == "deadline" else {}
    server = relaying(new_server, upstream, **timeout_ms)
    server.middleware(native=True)(seen)
    server.start()
    with Wire(server.port) as wire:
        wire.send(request("math.wait", id=7) + b"\n")
        assert began.wait(60)
        if end == "reset":
            wire.reset()
        elif end == "cancel":
            wire.send(b'{"jsonrpc":"2.0","method":"$/cancelRequest","params":{"id":7}}\n')
        else:
            assert wire.message()["error"]["code"] == -32001
        assert eventually(lambda: seen.calls != [], 30)
    assert seen.calls[0][2] in ("CancelledError", "RPCError")
    if end != "deadline":
        assert cancelled.wait(60)


def test_a_native_call_that_is_shielded_ends_with_its_connection(new_server: NewServer) -> None:
    upstream, began, ended = new_server(), threading.Event(), []

    @upstream(name="math.wait")
    async def wait() -> None:
        began.set()
        await asyncio.sleep(600)

    server = relaying(new_server, upstream)

    @server.middleware(native=True)
    async def shielded(ctx: ucall.Context, call: ucall.Call) -> Any:
        async def inner() -> None:
            try:
                await call()
            except ucall.RPCError as error:
                ended.append(error.code)

        await asyncio.shield(asyncio.ensure_future(inner()))

    server.start()
    with Wire(server.port) as wire:
        wire.send(request("math.wait"))
        assert began.wait(60)
        wire.reset()
    assert eventually(lambda: ended == [-32007], 30)


def test_a_watch_needs_a_server_whose_hooks_leave_natives_alone(
    new_server: NewServer, tmp_path: Path
) -> None:
    server = new_server()
    server.middleware(native=True)(awaiting)
    server.store("kv", tmp_path / "kv")
    server.start()
    with Wire(server.port) as wire:
        call = {"jsonrpc": "2.0", "id": 1, "method": "kv.watch", "params": {"key": "a"}}
        wire.send(json.dumps(call | {"_meta": {"progressToken": 1}}).encode() + b"\n")
        assert "is a stream" in wire.message()["error"]["data"]


def test_a_plain_hook_around_natives_is_refused(new_server: NewServer) -> None:
    server = new_server()
    with pytest.raises(TypeError, match="native procedures: they are answered without Python, and"):
        server.middleware(native=True)(plain)
    server.middleware(plain)
    server.add(add)
    server.start()
    with Wire(server.port) as wire:
        assert wire.result("add", [2, 3]) == 5


def test_many_native_calls_at_once(new_server: NewServer, tmp_path: Path) -> None:
    server = new_server()
    server.middleware(native=True)(awaiting)
    server.store("kv", tmp_path / "kv")
    server.start()
    with Wire(server.port) as wire:
        wire.send(b"".join(request("kv.put", [f"k{id}", id], id=id) + b"\n" for id in range(200)))
        assert {wire.message()["id"] for _ in range(200)} == set(range(200))
        wire.send(b"".join(request("kv.get", [f"k{id}"], id=id) + b"\n" for id in range(200)))
        got = [wire.message() for _ in range(200)]
        assert {it["id"]: it["result"]["value"] for it in got} == {id: id for id in range(200)}
