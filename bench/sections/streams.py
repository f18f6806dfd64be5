"""Compares streams with other projects', and publishing with C.

`tokens`: 64 connections, each with a stream of 1,000 short texts, from an async generator that
awaits `asyncio.sleep(0)` after each, and from a plain generator. Prints tokens a second, the
server's CPU time a token, and the first token's latency, with one stream and with 64 at once.

`publish`: messages to 1,000 subscribers over WebSocket, beside a C program that writes the same
bytes to 1,000 sockets (`floor/publish.c`). Prints the CPU time of a delivery, and the growth of the
server's memory while 100 of the subscribers read nothing.
"""

import argparse
import socket
import statistics
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

from bench import OUTPUT
from bench.harness import figures, processes, request, usage
from bench.harness.figures import Column, Sample, spread
from bench.harness.processes import LoadError
from bench.suite.plan import SINGLE
from bench.suite.servers import Server, python_peer, served

ROUNDS = 5
HAS_ENGINES = True

CONNECTIONS, TOKENS = 64, 1_000
EVENTS = {"Accept": "text/event-stream"}
SUBSCRIBERS, MESSAGES = 1_000, 50
FLOOR = "floor: C"
SLOW_SHARE, SLOW_MESSAGES = 10, 1_000
NOTIFICATION = b'{"jsonrpc":"2.0","method":"news","params":{"text":"%s"}}' % (b"x" * 64)
FRAME_BYTES = 2 + len(NOTIFICATION)
PEERS = {
    "FastAPI": ("fastapi_stream",),
    "Granian": ("granian", "granian_stream"),
    "Litestar": ("litestar_stream",),
}


READER = OUTPUT / "floor-streams"
READ_BYTES = 1 << 18
WAIT_SECONDS_MAX = 60
KEY = "dGhlIHNhbXBsZSBub25jZQ=="
UPGRADE = (
    "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {KEY}\r\n\r\n"
).encode()


@dataclass(frozen=True)
class Wire:
    """The bytes of a request, and texts that occur once in each item and at a stream's end."""

    request: bytes
    item: str
    end: str
    is_websocket: bool = False


def read_streams(
    wire: Wire, server: processes.Server, count: int, items_each: int = TOKENS
) -> tuple[float, float, list[float]]:
    """Reads `count` streams at once. Returns the seconds, the microseconds of the server's CPU time
    meanwhile, and the milliseconds until each stream's first item."""
    path = OUTPUT / "stream.request"
    path.write_bytes(wire.request)
    command = [READER, server.port, count, int(wire.is_websocket), path, wire.item, wire.end]
    with processes.start_load(command, stdin=subprocess.PIPE, text=True) as reader:
        if reader.stdout.readline() != "ready\n":
            raise LoadError("no connections")
        before = cpu_us(server.pid)
        output, _ = reader.communicate("go\n", timeout=WAIT_SECONDS_MAX)
        used = cpu_us(server.pid) - before
    items, seconds, *first = map(float, output.split() or (0, 0))
    if items != count * items_each:
        raise LoadError(f"{items:.0f} items in {count} streams")
    return seconds, used, first


def masked(text: bytes) -> bytes:
    """A client's text frame, whose mask changes nothing."""
    length = len(text)
    head = bytes([0x80 | length]) if length < 126 else b"\xfe" + length.to_bytes(2, "big")
    return b"\x81" + head + bytes(4) + text


def connected(port: int, is_websocket: bool) -> socket.socket:
    connection = request.connect(port, WAIT_SECONDS_MAX)
    if is_websocket:
        connection.sendall(UPGRADE)
        if b" 101 " not in connection.recv(READ_BYTES):
            raise LoadError("no upgrade")
    return connection


@contextmanager
def connections(port: int, count: int, is_websocket: bool) -> Iterator[list[socket.socket]]:
    with ExitStack() as opened:
        yield [opened.enter_context(connected(port, is_websocket)) for _ in range(count)]


def receive_from_all(sockets: Iterable[socket.socket], length: int) -> None:
    """Receives exactly `length` bytes on each connection."""
    for connection in sockets:
        left = length
        while left > 0:
            received = len(connection.recv(left))
            if not received:
                raise LoadError("a subscriber's connection closed")
            left -= received


def our_wires(method: str) -> dict[str, Wire]:
    text = request.call(method, TOKENS)
    with_token = request.call(method, TOKENS, _meta={"progressToken": 1})
    item = '"$/progress"'
    return {
        "SSE": Wire(request.post(text, **EVENTS), item, "\r\n0\r\n\r\n"),
        "WebSocket": Wire(masked(with_token), item, '"result":', is_websocket=True),
    }


def contenders(engines: Sequence[str]) -> list[tuple[Server, Wire]]:
    ours = [
        (Server("streams", f"ucall {engine}, {kind}, {over}", "ours", streams_of(engine)), wire)
        for engine in engines
        for kind, method in (("async", "tokens"), ("sync", "sync_tokens"))
        for over, wire in our_wires(method).items()
    ]
    asked = request.post(b"", path=f"/?count={TOKENS}", **EVENTS)
    wire = Wire(asked, '"token":', "\r\n0\r\n\r\n")
    peers = [
        (python_peer("streams", f"{name}, async, SSE", *words), wire)
        for name, words in PEERS.items()
    ]
    return [(server, wire) for server, wire in ours + peers if server.is_there]


def streams_of(engine: str) -> tuple[str, ...]:
    return served("streams", "--engine", engine)


def cpu_us(pid: int) -> float:
    return usage.cpu_nanoseconds(*usage.family(pid)) / 1e3


def sample_tokens(contender: Server, wire: Wire) -> Sample:
    with contender.running(SINGLE) as server:
        read_streams(wire, server, CONNECTIONS)
        alone = [read_streams(wire, server, 1)[2] for _ in range(5)]
        seconds, used, first = read_streams(wire, server, CONNECTIONS)
    items = CONNECTIONS * TOKENS
    return {
        "rate": items / seconds,
        "cpu_us": used / items,
        "first_ms": min(alone)[0],
        "first_p99_ms": statistics.quantiles(first, n=100, method="inclusive")[98],
    }


def tokens(options: argparse.Namespace) -> None:
    everyone = contenders(options.engines)
    turns = {server.label: partial(sample_tokens, server, wire) for server, wire in everyone}
    runs = figures.in_turns(turns, options.rounds, "tokens")
    peers = [server.label for server, _ in everyone if server.family == "python"]
    best = [
        max(rates)
        for rates in zip(*(figures.values(runs, it, "rate") for it in peers), strict=True)
    ]
    for label in runs:
        for sample, rate in zip(runs[label], best, strict=False):
            sample["of_best"] = sample["rate"] / rate
    columns = [
        Column("tokens/s", "rate", "{:,.0f}"),
        Column("times the best peer", "of_best", "{:.1f}", kind=spread),
        Column("CPU µs/token", "cpu_us"),
        Column("first alone ms", "first_ms"),
        Column("first of 64 p99 ms", "first_p99_ms"),
    ]
    print(figures.table_of(runs, columns, f"{CONNECTIONS} streams of {TOKENS:,}"), flush=True)


def publish_once(command: socket.socket, subscribers: Sequence[socket.socket], is_ours: bool):
    """Publishes one message, and waits until all subscribers have it."""
    command.sendall(request.call("publish") + b"\n" if is_ours else b"p")
    receive_from_all(subscribers, FRAME_BYTES)
    command.recv(1 << 16)


def subscribed(opened: Sequence[socket.socket]) -> None:
    """Subscribes all connections, and reads the replies."""
    reply_bytes = 2 + len('{"jsonrpc":"2.0","id":1,"result":null}')
    for connection in opened:
        connection.sendall(masked(request.call("subscribe")))
        receive_from_all([connection], reply_bytes)


def delivery(command: Sequence[str], is_ours: bool) -> Sample:
    """The CPU time of a delivery to one subscriber."""
    with (
        processes.serving(command, "publish") as server,
        socket.create_connection(("127.0.0.1", server.port)) as control,
        connections(server.port, SUBSCRIBERS, is_ours) as opened,
    ):
        if is_ours:
            subscribed(opened)
        publish_once(control, opened, is_ours)
        before = cpu_us(server.pid)
        for _ in range(MESSAGES):
            publish_once(control, opened, is_ours)
        return {"cpu_us": (cpu_us(server.pid) - before) / (MESSAGES * SUBSCRIBERS)}


def slow_growth_mb(engine: str) -> tuple[float, float]:
    """The growth of the memory by the first and by the last messages, with slow subscribers."""
    slow = SUBSCRIBERS // SLOW_SHARE
    with (
        processes.serving(streams_of(engine), "publish") as server,
        socket.create_connection(("127.0.0.1", server.port)) as control,
        connections(server.port, SUBSCRIBERS, True) as opened,
    ):
        subscribed(opened)
        resident = [usage.resident_mb(server.pid)]
        for _ in range(2):
            for _ in range(SLOW_MESSAGES // 2):
                publish_once(control, opened[slow:], True)
            resident.append(usage.resident_mb(server.pid))
        start, middle, end = resident
        return middle - start, end - middle


def publish(options: argparse.Namespace) -> None:
    floor = [str(OUTPUT / "floor-publish"), str(FRAME_BYTES), str(SUBSCRIBERS)]
    turns = {FLOOR: partial(delivery, floor, is_ours=False)}
    for engine in options.engines:
        turns[engine] = partial(delivery, streams_of(engine), is_ours=True)
    runs = figures.in_turns(turns, options.rounds, "publish")
    for engine in options.engines:
        first, more = slow_growth_mb(engine)
        runs[engine][0] |= {"first_mb": first, "more_mb": more}
    columns = [
        Column("CPU µs/delivery", "cpu_us"),
        Column("ratio to C", "cpu_us", base=FLOOR, kind=spread),
        Column(f"MB by {SLOW_MESSAGES // 2} messages, 10% slow", "first_mb", "{:.1f}"),
        Column("MB by as many more", "more_mb", "{:.1f}"),
    ]
    print(figures.table_of(runs, columns, f"{SUBSCRIBERS:,} subscribers"))


PARTS = {it.__name__: it for it in (tokens, publish)}


def run(options: argparse.Namespace) -> None:
    processes.pin_to(processes.cores()[1])
    for name in options.only:
        PARTS[name](options)
