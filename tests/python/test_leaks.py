"""Leaks: after many calls of every kind the server holds no more than before.

The test counts, in the server's own process, blocks of Python's memory, bytes of the allocator that
Rust and C share, descriptors, threads, and references to functions and values. It detects a leak of
one block in a hundred calls. ``UCALL_LEAK_CALLS=1000000`` (`make leaks`) makes that many calls on
each engine; by default there are fewer.

An idle WebSocket needs at most 1 KiB more than an idle connection of HTTP: the same counts with
1,000 connections of each kind, or 10,000 with `make leaks`.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from limits import UPGRADE, frame, message

from harness import Wire, eventually, http, program, request

CALLS = int(os.environ.get("UCALL_LEAK_CALLS", "20000"))
IDLE = 10_000 if CALLS >= 1_000_000 else 1_000
#: Descriptors of a process beside those of its idle connections.
DESCRIPTORS_RESERVED = 500
WEBSOCKET_BYTES_MAX = 1024
#: Few enough that all exist before the first count, also on a busy machine.
THREADS = 4
#: Of `yields_in_slots`.
SLOTS = 16
#: Calls sent at once; their replies are read before the next ones.
ROUND = 500

SERVER = """
import asyncio, ctypes, gc, logging, os, sys, threading
import numpy, ucall, ucall.posix, ucall.uring
from dataclasses import dataclass
logging.disable(logging.CRITICAL)
server = getattr(ucall, sys.argv[1]).Server(
    port=0, limits=ucall.Limits(max_threads=int(sys.argv[2]))
)
DEFAULT = ["a default", {"that": 1.5}]

@dataclass
class Point:
    x: float
    tags: list[str]

@server
def sum(a: int, b: int = 2) -> int: return a + b
@server
def echo(value=DEFAULT): return value
@server
def data(value: bytes) -> bytes: return value
@server
def array(value: numpy.ndarray) -> numpy.ndarray: return value
@server
def point(value: Point) -> Point: return value
@server
def context(ctx: ucall.Context) -> object: return str(ctx.peer)
@server
def fail(): raise ValueError("x")
@server
def refuse(): raise ucall.RPCError(1, "no", DEFAULT)
@server
def unwritable(): return object()
@server
async def at_once(a: int) -> int: return a
@server
async def later(a: int) -> int:
    await asyncio.sleep(0)
    return a
@server
async def fail_later():
    await asyncio.sleep(0)
    raise ValueError("x")
@server(threads=True)
def threaded(a: int) -> int: return a
@server.batch
def batched(a: list[int]) -> list[int]: return a
@server
def yields(n: int):
    for i in range(n): yield DEFAULT
@server
async def yields_later(n: int):
    for i in range(n):
        await asyncio.sleep(0)
        yield DEFAULT
@server(threads=True)
def yields_in_thread(n: int):
    for i in range(n): yield DEFAULT
@server.batch
def yields_for_all(n: list[int]):
    for i in range(max(n)): yield [ucall.END if end <= i else DEFAULT for end in n]
@dataclass
class Count:
    n: int
@server.batch(slots=16, threads=True)
def yields_in_slots(slots: ucall.Slots[Count]):
    rest = {}
    while True:
        rest |= {slot: slot.params.n for slot in slots.joined}
        for slot in slots.left: del rest[slot]
        for slot in slots.active: rest[slot] -= 1
        yield [(slot, ucall.END if rest[slot] < 0 else DEFAULT) for slot in slots.active]
@server
def yields_and_fails():
    yield DEFAULT
    yield object()
@server(stream="only")
async def endless():
    while True:
        await asyncio.sleep(0)
        yield DEFAULT
@server
def follow(ctx: ucall.Context) -> None:
    ctx.connection.data["a cycle"] = ctx.connection
    ctx.connection.on_close(lambda: ctx)
    ctx.subscribe("topic")
    ctx.notify("m", [DEFAULT])
    server.publish("topic", "m", [DEFAULT])
store = server.store("kv", ucall.store.open(sys.argv[3], durability="none"))
@server
def stored(value):
    store.put("python", value)
    return dict(store.scan("python")), store.get("nobody"), store.delete("python")

class Usage(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in
        ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks",
         "fordblks", "keepcost")]
mallinfo = ctypes.CDLL(None).mallinfo2
mallinfo.restype = Usage
HELD = [DEFAULT, sum, echo, data, array, point, context, fail, refuse, unwritable, at_once, later,
    fail_later, threaded, batched, yields, yields_later, yields_in_thread, yields_for_all,
    yields_in_slots, Count, yields_and_fails, endless, follow, Point, ValueError, ucall.RPCError]

@server
def counts() -> dict:
    gc.collect()
    usage = mallinfo()
    return {
        "blocks": sys.getallocatedblocks(),
        "bytes": usage.uordblks + usage.hblkhd,
        "references": [sys.getrefcount(held) for held in HELD],
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
    }

server.on_startup(lambda: print(server.port))
server.run()
"""

ARRAY = (
    "k05VTVBZAQB2AHsnZGVzY3InOiAnPGk4JywgJ2ZvcnRyYW5fb3JkZXInOiBGYWxzZSwgJ3NoYXBlJzogKDEsKSwgfSAg"
    "ICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgCgEA"
    "AAAAAAAA"
)

#: A round makes one call of each.
KINDS: list[tuple[str, Any]] = [
    ("sum", [1, 2]),
    ("sum", {"a": 2**70}),
    ("sum", ["x"]),
    ("sum", {"nobody": 1}),
    ("echo", [{"k": [1, 2.5, "é\n", None, True, {"a": {}}]}]),
    ("echo", None),
    ("data", ["aGVsbG8="]),
    ("data", ["no base64"]),
    ("array", [ARRAY]),
    ("array", [ARRAY[:40]]),
    ("point", [{"x": 1, "tags": ["a"]}]),
    ("point", [{"x": "y"}]),
    ("context", None),
    ("fail", None),
    ("refuse", None),
    ("unwritable", None),
    ("nobody", None),
    ("at_once", [1]),
    ("later", [1]),
    ("fail_later", None),
    ("threaded", [1]),
    ("batched", [1]),
    ("yields", [3]),
    ("yields_later", [3]),
    ("yields_in_thread", [3]),
    ("yields_for_all", [3]),
    ("yields_in_slots", [3]),
    ("yields_in_slots", ["x"]),
    ("yields_and_fails", None),
    ("endless", None),
    ("stored", [{"k": [1, "é"]}]),
    ("kv.put", ["key", {"k": [1, 2.5, "é"]}]),
    ("kv.put", {"key": "short", "value": 1, "ttl_ms": 1}),
    ("kv.put", {"key": "bytes", "bytes": "aGVsbG8="}),
    ("kv.get", ["key"]),
    ("kv.get", [{"bytes": "/w=="}]),
    ("kv.cas", ["key", 1, 1]),
    ("kv.increment", ["count"]),
    ("kv.increment", ["bytes"]),
    ("kv.scan", {"prefix": "k", "limit": 10}),
    ("kv.batch", [[{"method": "put", "params": ["a", 1]}, {"method": "delete", "params": ["a"]}]]),
    ("kv.batch", [[{"method": "cas", "params": ["a", 1, 1]}]]),
    ("kv.delete", ["key"]),
    ("kv.put", ["key"]),
]

STREAMS = ["yields", "yields_later", "yields_in_thread", "yields_for_all", "yields_in_slots"]


def streamed(method: str, params: Any, id: int) -> bytes:
    call = json.loads(request(method, params, id))
    return json.dumps(call | {"_meta": {"progressToken": id}}).encode()


def stream_all(port: int) -> None:
    """Reads some streams to their end, cancels one, and leaves others."""
    with Wire(port) as wire:
        wire.send(b"".join(streamed(method, [5], id) for id, method in enumerate(STREAMS)))
        wire.send(streamed("yields_and_fails", None, 8) + streamed("endless", None, 9))
        wire.send(request("$/cancelRequest", {"id": 9}, id=...))
        replies = 0
        while replies < len(STREAMS) + 2:
            replies += b'"id":' in wire.line()
    with Wire(port) as leaving:
        calls = [streamed(method, [10**9], id) for id, method in enumerate(STREAMS)]
        watch = streamed("kv.watch", {"prefix": "k"}, 10)
        leaving.send(b"".join(calls) + streamed("endless", None, 9) + watch)
        assert leaving.line()


def mixed(count: int) -> list[bytes]:
    return [request(*KINDS[id % len(KINDS)], id=id) for id in range(count)]


def call_all(port: int, wire: Wire, times: int) -> None:
    """Makes about this many calls: one by one, in batches, over HTTP and WebSocket."""
    calls = mixed(ROUND // 2)
    raw, batch = b"".join(calls), b"[" + b",".join(calls) + b"]"
    for round in range(max(1, times // ROUND)):
        wire.send(raw)
        for _ in calls:
            assert wire.line()
        wire.send(batch)
        assert wire.line().count(b'"jsonrpc"') == len(calls)
        with Wire(port) as other:
            other.send(http(calls[round % len(calls)]) + http(b"{") + b"GARBAGE\r\n\r\n")
            assert [other.reply()[0] for _ in range(3)] == [200, 200, 400]
        with Wire(port) as socket:
            messages = [message(call) for call in calls[: len(KINDS)]]
            begun = frame(0x01, b"{")
            socket.send(b"".join([UPGRADE, *messages, frame(0x89, b""), begun, frame(0x88, b"")]))
            assert socket.rest().startswith(b"HTTP/1.1 101 ")
        stream_all(port)
        with Wire(port) as follower:
            follower.send(request("follow") * 2)
            # Each call has a reply, a notification and a publication.
            assert all(follower.line() for _ in range(6))
        with Wire(port) as leaving:  # Its calls are cancelled.
            leaving.send(request("later", [1]) + request("threaded", [1]) + b'{"cut')


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and mallinfo2")
def test_calls_of_every_kind_leak_nothing(engine: str, tmp_path: Path) -> None:
    with program(SERVER, engine, str(THREADS), str(tmp_path)) as process:
        port = int(process.stdout.readline())
        with Wire(port, timeout_s=60) as wire:

            def counted(times: int) -> dict[str, Any]:
                call_all(port, wire, times)
                # The server has closed the connections of clients that disconnected.
                counts: dict[str, Any] = json.loads(json.dumps(wire.result("counts")))
                return counts

            counted(5000)
            before = counted(5000)
            after = counted(CALLS)
            # The server may not have closed the last connections yet.
            few = before["descriptors"] + 2
            assert eventually(lambda: wire.result("counts")["descriptors"] <= few)
        more = {name: after[name] - before[name] for name in ("blocks", "bytes")}
        print(f"{engine}: {CALLS} calls, {more} more; {after}")
        assert more["blocks"] < 500 + CALLS / 1000
        assert more["bytes"] < (256 << 10) + CALLS
        assert after["threads"] <= max(before["threads"], 2 + THREADS)
        for was, now in zip(before["references"], after["references"], strict=True):
            assert now - was < 20 + CALLS / 1000


def use_slots(port: int) -> None:
    """A thousand callers come to slots: a part reads to the end, a part cancels, a part leaves."""
    with Wire(port) as wire:
        calls = [streamed("yields_in_slots", [id % 5], id) for id in range(600)]
        calls += [request("yields_in_slots", [id % 5], id) for id in range(600, 700)]
        calls += [streamed("yields_in_slots", [10**9], id) for id in range(700, 800)]
        cancels = [request("$/cancelRequest", {"id": id}, id=...) for id in range(700, 800)]
        # A connection may have 128 calls at once.
        for start in range(0, 800, 100):
            wire.send(b"".join(calls[start : start + 100]))
            if start == 700:
                wire.send(b"".join(cancels))
            replies = 0
            while replies < 100:
                replies += b'"id":' in wire.line()
    for _ in range(2):
        with Wire(port) as leaving:
            leaving.send(b"".join(streamed("yields_in_slots", [10**9], id) for id in range(100)))
            assert leaving.line()
            leaving.reset()


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and mallinfo2")
def test_callers_of_slots_leave_nothing(engine: str, tmp_path: Path) -> None:
    with program(SERVER, engine, str(THREADS), str(tmp_path)) as process:
        port = int(process.stdout.readline())
        with Wire(port) as wire:

            def counted(rounds: int) -> dict[str, Any]:
                for _ in range(rounds):
                    use_slots(port)
                assert wire.call("yields_in_slots", [1])["result"]
                counts: dict[str, Any] = wire.result("counts")
                return counts

            before, after = counted(3), counted(10)
            # Unread items of the callers who have just left, and kept memory, go a little later.
            assert eventually(lambda: counted(0)["bytes"] - before["bytes"] < 256 << 10)
            # All slots are free: as many calls have items at once.
            wire.send(b"".join(streamed("yields_in_slots", [10**9], id) for id in range(SLOTS)))
            tokens: set[int] = set()
            while len(tokens) < SLOTS:
                tokens.add(json.loads(wire.line())["params"]["token"])
            print(f"{engine}: 10,000 callers of slots, {before} before, {after} after")
    assert after["blocks"] - before["blocks"] < 500
    assert after["threads"] == before["threads"]
    for was, now in zip(before["references"], after["references"], strict=True):
        assert now - was < 30


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """Raises the limit for this process and the server that it starts."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = IDLE + DESCRIPTORS_RESERVED
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"a process may have {hard} descriptors, and {wanted} are needed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def idle_bytes(engine: str, is_websocket: bool, store: Path) -> float:
    """The bytes of a server for each connection that has made one call and is idle."""
    call = request("sum", [1, 2])
    with program(SERVER, engine, str(THREADS), str(store)) as process, ExitStack() as opened:
        port = int(process.stdout.readline())
        wire = opened.enter_context(Wire(port))
        before = wire.result("counts")
        for _ in range(IDLE):
            idle = opened.enter_context(Wire(port))
            idle.send(UPGRADE if is_websocket else http(call))
            assert idle.reply()[0] == (101 if is_websocket else 200)
            if is_websocket:
                idle.send(message(call))
                assert idle.socket.recv(1024).startswith(b"\x81")
        return float(wire.result("counts")["bytes"] - before["bytes"]) / IDLE


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and mallinfo2")
@pytest.mark.usefixtures("many_descriptors")
def test_an_idle_websocket_needs_little_more_than_a_connection(engine: str, tmp_path: Path) -> None:
    plain, websocket = (idle_bytes(engine, is_ws, tmp_path) for is_ws in (False, True))
    print(f"{engine}: {IDLE} idle connections: {plain:.0f} bytes each, WebSockets {websocket:.0f}")
    assert plain > 0 and websocket - plain <= WEBSOCKET_BYTES_MAX
