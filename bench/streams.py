"""Compares streams with other projects', and publishing with C: `make bench-streams`.

    python bench/streams.py [--rounds N] [--engines posix,uring] [--only tokens,publish]

`tokens`: 64 connections, each with a stream of 1,000 short texts, from an async generator that
awaits `asyncio.sleep(0)` after each, and from a plain generator. Prints tokens a second, the
server's CPU time a token, and the first token's latency, with one stream and with 64 at once.

`publish`: messages to 1,000 subscribers over WebSocket, beside a C program that writes the same
bytes to 1,000 sockets (`floor/publish.c`). Prints the CPU time of a delivery, and the growth of the
server's memory while 100 of the subscribers read nothing.

A round runs all servers in turn, and a ratio is computed within its round.
"""

import argparse
import json
import os
import resource
import socket
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from harness import processes, usage
from harness.report import spread
from harness.rows import OUTPUT, ROOT
from harness.streams import (
    Reading,
    StreamError,
    Wire,
    connections,
    masked,
    read_streams,
    receive_from_all,
)

CONNECTIONS, TOKENS = 64, 1_000
SUBSCRIBERS, MESSAGES = 1_000, 50
SLOW_SHARE, SLOW_MESSAGES = 10, 1_000
NOTIFICATION = b'{"jsonrpc":"2.0","method":"news","params":{"text":"%s"}}' % (b"x" * 64)
FRAME_BYTES = 2 + len(NOTIFICATION)
PEERS = ROOT / "bench/peers/python/streams.py"
PEER_NAMES = {"fastapi": "FastAPI", "granian": "Granian", "litestar": "Litestar"}
PYTHON = OUTPUT / "peers/bin/python"


@dataclass(frozen=True)
class Contender:
    """A server with a wire, and a label for the table."""

    label: str
    command: tuple[str, ...]
    wire: Wire
    is_peer: bool = False

    def serving(self):
        core, _ = processes.cores()
        log = OUTPUT / "streams.log"
        if not self.is_peer:
            return processes.serving(self.command, log, core)
        port = processes.free_port()
        return processes.serving_on([*self.command, str(port)], port, log, core, {})


@dataclass
class Samples:
    """One figure a round of each kind."""

    rates: list[float] = field(default_factory=list)
    cpu_us: list[float] = field(default_factory=list)
    first_ms: list[float] = field(default_factory=list)
    first_p99_ms: list[float] = field(default_factory=list)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measures streams and publishing.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--engines", type=lambda text: text.split(","), default=["posix", "uring"])
    parser.add_argument("--only", type=lambda text: text.split(","), default=["tokens", "publish"])
    return parser.parse_args()


def call(method: str, **members: object) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "method": method, "id": 1, **members}).encode()


def post(target: str, body: bytes, accept: str) -> bytes:
    head = f"POST {target} HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: {accept}\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def our_wires(method: str) -> dict[str, Wire]:
    text = call(method, params=[TOKENS])
    with_token = call(method, params=[TOKENS], _meta={"progressToken": 1})
    item = '"$/progress"'
    return {
        "SSE": Wire(post("/", text, "text/event-stream"), item, "\r\n0\r\n\r\n"),
        "WebSocket": Wire(masked(with_token), item, '"result":', is_websocket=True),
    }


def our_command(engine: str) -> tuple[str, ...]:
    return (sys.executable, str(ROOT / "bench/servers/streams.py"), "--engine", engine)


def contenders(engines: Sequence[str]) -> list[Contender]:
    ours = [
        Contender(f"ucall {engine}, {kind}, {over}", our_command(engine), wire)
        for engine in engines
        for kind, method in (("async", "tokens"), ("sync", "sync_tokens"))
        for over, wire in our_wires(method).items()
    ]
    request = post(f"/?count={TOKENS}", b"", "text/event-stream")
    wire = Wire(request, '"token":', "\r\n0\r\n\r\n")
    peers = [
        Contender(f"{label}, async, SSE", (str(PYTHON), str(PEERS), name), wire, is_peer=True)
        for name, label in (
            ("fastapi", "FastAPI"),
            ("granian", "Granian"),
            ("litestar", "Litestar"),
        )
    ]
    return ours + (peers if PYTHON.exists() else [])


def cpu_us(pid: int) -> float:
    return sum(usage.cpu_nanoseconds(each) for each in usage.family(pid)) / 1e3


def sample_tokens(contender: Contender, samples: Samples) -> None:
    with contender.serving() as server:

        def read(count: int) -> Reading:
            reading = read_streams(contender.wire, server.port, count, lambda: cpu_us(server.pid))
            if reading.items != count * TOKENS:
                raise StreamError(f"{contender.label}: {reading.items} tokens")
            return reading

        read(CONNECTIONS)
        alone, together = [read(1) for _ in range(5)], read(CONNECTIONS)
    samples.rates.append(together.items / together.seconds)
    samples.cpu_us.append(together.cost / together.items)
    samples.first_ms.append(min(each.first_ms[0] for each in alone))
    p99 = statistics.quantiles(together.first_ms, n=100, method="inclusive")[98]
    samples.first_p99_ms.append(p99)


def tokens_table(engines: Sequence[str], rounds: int) -> str:
    everyone = contenders(engines)
    found = {contender.label: Samples() for contender in everyone}
    for _ in range(rounds):
        for contender in everyone:
            sample_tokens(contender, found[contender.label])
    peers = [found[contender.label] for contender in everyone if contender.is_peer]
    header = "tokens/s | times the best peer | CPU µs/token | first alone ms | first of 64 p99 ms"
    lines = [
        f"| {CONNECTIONS} streams of {TOKENS:,} | {header} |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for label, own in found.items():
        best = [max(peer.rates[at] for peer in peers) for at in range(rounds)] if peers else []
        ratios = spread([rate / other for rate, other in zip(own.rates, best, strict=False)])
        lines.append(
            f"| {label} | {statistics.median(own.rates):,.0f} | "
            f"{ratios.text('{:.1f}') if ratios else '-'} | {statistics.median(own.cpu_us):.2f} | "
            f"{statistics.median(own.first_ms):.2f} | {statistics.median(own.first_p99_ms):.2f} |"
        )
    return "\n".join(lines)


def publish_once(command: socket.socket, subscribers: Sequence[socket.socket], is_ours: bool):
    """Publishes one message, and waits until all subscribers have it."""
    command.sendall(call("publish") + b"\n" if is_ours else b"p")
    receive_from_all(subscribers, FRAME_BYTES)
    command.recv(1 << 16)


def subscribed(opened: Sequence[socket.socket]) -> None:
    """Subscribes all connections, and reads the replies."""
    reply_bytes = 2 + len('{"jsonrpc":"2.0","id":1,"result":null}')
    for connection in opened:
        connection.sendall(masked(call("subscribe")))
        receive_from_all([connection], reply_bytes)


def delivery_us(command: Sequence[str], is_ours: bool) -> float:
    """The CPU time of a delivery to one subscriber."""
    core, _ = processes.cores()
    with (
        processes.serving(command, OUTPUT / "publish.log", core) as server,
        socket.create_connection(("127.0.0.1", server.port)) as control,
        connections(server.port, SUBSCRIBERS, is_ours) as opened,
    ):
        if is_ours:
            subscribed(opened)
        publish_once(control, opened, is_ours)
        before = cpu_us(server.pid)
        for _ in range(MESSAGES):
            publish_once(control, opened, is_ours)
        return (cpu_us(server.pid) - before) / (MESSAGES * SUBSCRIBERS)


def slow_growth_mb(engine: str) -> tuple[float, float]:
    """The growth of the memory by the first and by the last messages, with slow subscribers."""
    core, _ = processes.cores()
    slow = SUBSCRIBERS // SLOW_SHARE
    with (
        processes.serving(our_command(engine), OUTPUT / "publish.log", core) as server,
        socket.create_connection(("127.0.0.1", server.port)) as control,
        connections(server.port, SUBSCRIBERS, True) as opened,
    ):
        subscribed(opened)
        resident = [usage.memory(server.pid).now_mb]
        for _ in range(2):
            for _ in range(SLOW_MESSAGES // 2):
                publish_once(control, opened[slow:], True)
            resident.append(usage.memory(server.pid).now_mb)
        start, middle, end = resident
        return middle - start, end - middle


def publish_table(engines: Sequence[str], rounds: int) -> str:
    floor = [str(OUTPUT / "floor-publish"), str(FRAME_BYTES), str(SUBSCRIBERS)]
    found: dict[str, list[float]] = {name: [] for name in ("floor: C", *engines)}
    for _ in range(rounds):
        found["floor: C"].append(delivery_us(floor, is_ours=False))
        for engine in engines:
            found[engine].append(delivery_us(our_command(engine), is_ours=True))
    lines = [
        f"| {SUBSCRIBERS:,} subscribers | CPU µs/delivery | ratio to C | "
        f"MB by {SLOW_MESSAGES // 2} messages, 10% slow | MB by as many more |",
        "|---|---:|---:|---:|---:|",
    ]
    for name, figures in found.items():
        ratios = [own / c for own, c in zip(figures, found["floor: C"], strict=True)]
        grown = ("-", "-")
        if name in engines:
            grown = tuple(f"{each:.1f}" for each in slow_growth_mb(name))
        ratio = spread(ratios)
        lines.append(
            f"| {name} | {statistics.median(figures):.2f} | {ratio.text('{:.2f}')} | "
            f"{grown[0]} | {grown[1]} |"
        )
    return "\n".join(lines)


def build_programs() -> None:
    OUTPUT.mkdir(exist_ok=True)
    for name in ("publish", "streams"):
        command = [os.environ.get("CC", "cc"), "-O2", "-Wall", "-Wextra", "-o"]
        command += [str(OUTPUT / f"floor-{name}"), str(ROOT / f"bench/floor/{name}.c")]
        subprocess.run(command, check=True)


def main() -> None:
    options = arguments()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    build_programs()
    processes.pin_to(processes.cores()[1])
    if "tokens" in options.only:
        print(tokens_table(options.engines, options.rounds), flush=True)
    if "publish" in options.only:
        print(publish_table(options.engines, options.rounds))


if __name__ == "__main__":
    main()
