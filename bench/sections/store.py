"""Compares the key-value store with Redis.

Both stores have the same 1,000 entries of 100 bytes, and sync each write to the disk before they
answer it (Redis with `appendfsync always`). The servers have one core, the load the other one. Each
round runs each load against both, one right after the other, every second round in reverse order.
A load sends a block of requests on each connection, and the next block after all replies
(`floor/calls.c`); ucall is called over raw TCP. Prints the servers' CPU time an operation,
operations a second, the median ratio of the CPU times within a round with its 95% interval, and
whether it meets its target.
"""

import argparse
import contextlib
import random
import re
import shutil
import socket
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from bench import OUTPUT, ROOT
from bench.harness import figures, processes, request, usage
from bench.harness.figures import Sample, interval, outcome
from bench.suite import machine
from bench.suite.servers import served

ROUNDS, SECONDS = 9, 1
OPTIONS = {"--engine": {"choices": ["posix", "uring"], "default": "posix"}}
PAGE = ROOT / "docs/benchmarks-store.md"
KEYS = [f"user:{number:04}" for number in range(1000)]
VALUE = "x" * 100
DEPTH = 16
REPLY_SECONDS_MAX = 60


def command(*words: str) -> bytes:
    parts = [f"${len(word)}\r\n{word}\r\n" for word in words]
    return f"*{len(words)}\r\n{''.join(parts)}".encode()


#: The last command of a block whose replies are counted.
END = command("ECHO", "end of block")

FIGURES = ("cpu_us", "reads", "writes")

GETS = [request.call("kv.get", key) for key in random.Random(1).sample(KEYS, DEPTH)]
PUTS = [request.call("kv.put", key, VALUE) for key in random.Random(1).sample(KEYS, DEPTH)]
REDIS_GETS = [command("GET", key) for key in random.Random(1).sample(KEYS, DEPTH)]
REDIS_SETS = [command("SET", key, VALUE) for key in random.Random(1).sample(KEYS, DEPTH)]
SCAN = [request.call("kv.scan", params={"prefix": "user:", "limit": len(KEYS)})]


@dataclass
class Load:
    """A block of requests that each connection repeats."""

    requests: Sequence[bytes]
    connections: int = 32
    #: The index of the server, if there are several.
    server: int = 0
    #: Values in the replies to a block; none of writes.
    values: int = 0
    #: Operations of a block, unless each request is one.
    operations: int = 0
    #: Lines in the replies to a block, by the server's port.
    lines: dict[int, int] = field(default_factory=dict)

    def start(self, servers: list[processes.Server], seconds: float) -> subprocess.Popen:
        port = servers[self.server].port
        if port not in self.lines:
            self.lines[port] = reply_lines(port, self.requests, self.values)
        # Reads and writes of one server run at the same time.
        file = OUTPUT / f"store-{port}-{self.values}.request"
        file.write_bytes(b"".join(self.requests))
        words = "lines", port, self.connections, seconds, file, self.lines[port]
        return processes.start_load([OUTPUT / "floor-calls", *words])


@dataclass(frozen=True)
class Row:
    """Loads that run at the same time against ucall, and the same against Redis."""

    name: str
    #: The most that the CPU time of ucall may be, of that of Redis: the target.
    most: float | None
    ours: list[Load]
    theirs: list[Load]


ZRANGE = [command("ZRANGE", "sorted", "0", "-1")]
SCAN_MGET = [command("SCAN", "0", "COUNT", "1000"), command("MGET", *KEYS)]
ROWS = [
    Row("GET, 16 deep", 1.0, [Load(GETS, values=16)], [Load(REDIS_GETS, values=16)]),
    Row("GET, depth 1", 0.7, [Load(GETS[:1], values=1)], [Load(REDIS_GETS[:1], values=1)]),
    Row("durable SET, 16 deep", 2.0, [Load(PUTS)], [Load(REDIS_SETS)]),
    Row(
        "scan of 1,000, SCAN and MGET",
        1 / 3,
        [Load(SCAN, 4, values=1000)],
        [Load(SCAN_MGET, 4, values=1000, operations=1)],
    ),
    Row(
        "scan of 1,000, ZRANGE",
        1 / 3,
        [Load(SCAN, 4, values=1000)],
        [Load(ZRANGE, 4, values=1000)],
    ),
    Row(
        "GET, 16 deep, in 3 processes, beside a writer",
        None,
        [Load(PUTS[:1], 1), *(Load(GETS, 8, server, values=16) for server in range(1, 4))],
        [Load(REDIS_SETS[:1], 1), Load(REDIS_GETS, 24, values=16)],
    ),
]


def ask(port: int, requests: Sequence[bytes]) -> bytes:
    """The replies to all requests."""
    is_redis = requests[0].startswith(b"*")
    with socket.create_connection(("127.0.0.1", port), REPLY_SECONDS_MAX) as connected:
        connected.sendall(b"".join([*requests, END] if is_redis else requests))
        replies = b""
        while data := connected.recv(1 << 20):
            replies += data
            if is_redis and replies.endswith(b"$12\r\nend of block\r\n"):
                return replies[: -len(b"$12\r\nend of block\r\n")]
            if not is_redis and replies.count(b"\n") == len(requests):
                return replies
    sys.exit("the server has closed the connection")


def reply_lines(port: int, requests: Sequence[bytes], values: int) -> int:
    replies = ask(port, requests)
    failed = b'"error"' in replies or replies.startswith(b"-") or b"\n-" in replies
    if failed or replies.count(VALUE.encode()) != values:
        sys.exit(f"wrong replies: {replies[:200]!r}")
    return replies.count(b"\n")


@contextlib.contextmanager
def ours(engine: str, folder: Path) -> Iterator[list[processes.Server]]:
    """Four processes that serve one store: a writer, and three with readers."""
    words = served("store", "--engine", engine, "--path", str(folder / "kv"))
    with contextlib.ExitStack() as stack:
        servers = [
            stack.enter_context(processes.serving(words, f"store-{number}")) for number in range(4)
        ]
        ask(servers[0].port, [request.call("kv.put", key, VALUE) for key in KEYS])
        yield servers


@contextlib.contextmanager
def redis(folder: Path) -> Iterator[list[processes.Server]]:
    port = processes.free_port()
    words = [processes.required("redis-server"), "--port", port, "--bind", "127.0.0.1"]
    words += ["--dir", folder, "--save", "", "--appendonly", "yes", "--appendfsync", "always"]
    with processes.serving_on(words, port, "redis") as server:
        ask(port, [command("SET", key, VALUE) for key in KEYS])
        ask(port, [command("ZADD", "sorted", "0", f"{key}:{VALUE}") for key in KEYS])
        yield [server]


def sample(servers: list[processes.Server], loads: list[Load], seconds: float) -> Sample:
    for one in loads:
        one.start(servers, 0.1).communicate()
    pids = [server.pid for server in servers]
    before = usage.cpu_nanoseconds(*pids)
    running = [one.start(servers, seconds) for one in loads]
    found, operations = {"reads": 0.0, "writes": 0.0}, 0
    for one, process in zip(loads, running, strict=True):
        text, _ = process.communicate()
        if process.returncode:
            sys.exit("a load failed")
        done = int(text.split()[0]) * (one.operations or len(one.requests))
        operations += done
        found["reads" if one.values else "writes"] += done / float(text.split()[1])
    used = usage.cpu_nanoseconds(*pids) - before
    return {"cpu_us": used / operations / 1e3, **found}


def sides(row: Row) -> tuple[str, str]:
    """The names of its samples."""
    return f"{row.name}, ucall", f"{row.name}, Redis"


def cell(runs: figures.Runs, name: str) -> str:
    cpu, *rates = (statistics.median(figures.values(runs, name, field)) for field in FIGURES)
    of_kinds = zip(rates, FIGURES[1:], strict=True)
    return ", ".join(
        [f"{cpu:.2f} µs", *(f"{rate:,.0f} {kind}/s" for rate, kind in of_kinds if rate)]
    )


def table(runs: figures.Runs) -> str:
    rows = []
    for row in ROWS:
        ratios = interval(figures.ratios(runs, *sides(row), "cpu_us"))
        assert ratios is not None
        cells = [*(cell(runs, side) for side in sides(row)), ratios.text("{:.2f}")]
        if row.most is not None:
            cells += [f"at most {row.most:.2f}", outcome(ratios, most=row.most)]
        rows.append([row.name, *[*cells, "", ""][:5]])
    return figures.table(["", "ucall", "Redis", "CPU, ratio", "target", ""], rows)


def report(results: dict) -> str:
    rounds = len(next(iter(results["samples"].values())))
    note = (
        f"CPU time of the server for an operation, on {results['engine']}, beside Redis "
        f"{results['redis']} with `appendfsync always` in the same {rounds} rounds: 1,000 entries "
        "of 100 bytes, 32 connections (4 for scans). A ratio is the median of the rounds, with its "
        f"95% interval. {machine.text(results['machine'])}."
    )
    return f"{table(results['samples'])}\n\n{note}"


def redis_version() -> str:
    [found] = re.findall(r"v=([\d.]+)", machine.output_of(["redis-server", "--version"]))
    return found


def measured(options: argparse.Namespace) -> figures.Runs:
    folder = OUTPUT / "store"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    turns = {}
    with ours(options.engine, folder) as store, redis(folder) as other:
        for row in ROWS:
            both = (store, row.ours), (other, row.theirs)
            for side, (servers, loads) in zip(sides(row), both, strict=True):
                turns[side] = partial(sample, servers, loads, options.seconds)
        return figures.in_turns(turns, options.rounds)


def run(options: argparse.Namespace) -> dict:
    samples = measured(options)
    print(f"{options.engine}\n\n{table(samples)}")
    about = {"engine": options.engine, "redis": redis_version(), "machine": machine.describe()}
    return about | {"samples": samples}
