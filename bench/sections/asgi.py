"""Compares one FastAPI application mounted on ucall, and under uvicorn and Granian.

The same application (`peers/python/asgi_app.py`), one worker each: a GET and a POST with a model,
in JSON, on 32 connections; a body of 1 MiB on 4; and a response of 100 chunks, 32 of them at once.
uvicorn runs on uvloop with httptools, Granian on uvloop, ucall on its own event loop, and on uvloop
in a program that runs that. Prints requests a second, the server's CPU time a request, and their
ratios.
"""

import argparse
import json
import subprocess
from collections.abc import Mapping, Sequence
from functools import partial

from bench import OUTPUT
from bench.harness import figures, processes, request, usage
from bench.harness.figures import Column, Sample, interval
from bench.suite import drivers
from bench.suite.plan import SINGLE
from bench.suite.servers import Server, python_peer, served

ROUNDS, SECONDS = 7, 2
HAS_ENGINES = True

WARM_UP_SECONDS, WAIT_SECONDS_MAX = 0.5, 60
UVICORN, GRANIAN = "uvicorn", "Granian"
PEERS = [python_peer("asgi", label, "asgi", label) for label in (UVICORN, GRANIAN)]
BODY = bytes(1 << 20)
ITEM = json.dumps({"name": "lamp", "price": 9.5, "tags": ["a", "b"]}).encode()
#: Streams at once, and how often.
STREAMS, REPEATS, CHUNKS = 32, 10, 100
AGENT = {"Accept": "*/*", "User_Agent": "bench"}
OCTETS = "application/octet-stream"


def get(path: str) -> bytes:
    agent = "Accept: */*\r\nUser-Agent: bench"
    return f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{agent}\r\n\r\n".encode()


#: A request, what its reply contains, and the connections.
REQUESTS = {
    "get": (get("/items/7"), '"name":"lamp"', 32),
    "post": (request.post(ITEM, path="/items", **AGENT), '"price":9.5', 32),
    "body": (request.post(BODY, OCTETS, "/bytes", **AGENT), str(len(BODY)), 4),
}
PARTS = [*REQUESTS, "stream"]


def contenders(engines: Sequence[str]) -> list[Server]:
    def ours(engine: str, loop: str) -> Server:
        label = f"ucall {engine}{', uvloop' if loop == 'uvloop' else ''}"
        command = served("asgi", "--engine", engine, "--loop", loop)
        return Server("asgi", label, "ours", command)

    found = [ours(engine, loop) for engine in engines for loop in ("own", "uvloop")]
    return [server for server in [*PEERS, *found] if server.is_there]


def cpu_us(pid: int) -> float:
    return usage.cpu_nanoseconds(*usage.family(pid)) / 1e3


def read_streams(server: processes.Server) -> tuple[float, float]:
    """Reads streams at once: the seconds, and the microseconds of the server's CPU time."""
    path = OUTPUT / "stream.request"
    path.write_bytes(get("/stream"))
    command = [OUTPUT / "floor-streams", server.port, STREAMS, path, "piece", "\r\n0\r\n\r\n"]
    with processes.start_load(command, stdin=subprocess.PIPE, text=True) as reader:
        if reader.stdout.readline() != "ready\n":
            raise processes.LoadError("no connections")
        before = cpu_us(server.pid)
        output, _ = reader.communicate("go\n", timeout=WAIT_SECONDS_MAX)
        used = cpu_us(server.pid) - before
    items, seconds = map(float, output.split() or (0, 0))
    if items != STREAMS * CHUNKS:
        raise processes.LoadError(f"{items:.0f} chunks in {STREAMS} streams")
    return seconds, used


def load(server: processes.Server, part: str, seconds: float) -> Mapping[str, float]:
    sent, expected, connections = REQUESTS[part]
    found = drivers.repeat(server.port, [sent], connections, seconds)
    if expected not in found["reply"]:
        raise processes.LoadError(f"{part}: not the expected reply: {found['reply'][:200]!r}")
    return found


def sample_requests(contender: Server, part: str, seconds: float) -> Sample:
    with contender.running(SINGLE) as server:
        load(server, part, WARM_UP_SECONDS)
        before = cpu_us(server.pid)
        found = load(server, part, seconds)
        used = cpu_us(server.pid) - before
        return {
            "rate": found["requests"] / found["duration"],
            "cpu_us": used / found["requests"],
            "rss_mb": sum(map(usage.resident_mb, usage.family(server.pid))),
        }


def sample_streams(contender: Server) -> Sample:
    with contender.running(SINGLE) as server:
        read_streams(server)
        found = [read_streams(server) for _ in range(REPEATS)]
        seconds, used = map(sum, zip(*found, strict=True))
        count = STREAMS * REPEATS
        return {
            "rate": count / seconds,
            "cpu_us": used / count,
            "rss_mb": sum(map(usage.resident_mb, usage.family(server.pid))),
        }


def run(options: argparse.Namespace) -> None:
    processes.pin_to(processes.cores()[1])
    columns = [
        Column("requests/s", "rate", "{:,.0f}"),
        Column("of uvicorn's", "rate", base=UVICORN, kind=interval),
        Column("of Granian's", "rate", base=GRANIAN, kind=interval),
        Column("CPU µs", "cpu_us", "{:.1f}"),
        Column("of uvicorn's", "cpu_us", base=UVICORN, kind=interval),
        Column("of Granian's", "cpu_us", base=GRANIAN, kind=interval),
        Column("RSS MB", "rss_mb", "{:.0f}"),
    ]
    results = {}
    for part in options.only:
        turns = {
            it.label: partial(sample_streams, it)
            if part == "stream"
            else partial(sample_requests, it, part, options.seconds)
            for it in contenders(options.engines)
        }
        results[part] = figures.in_turns(turns, options.rounds, part)
        print(figures.table_of(results[part], columns, part), flush=True)
    figures.write(figures.part("asgi"), {"options": vars(options), "samples": results})
