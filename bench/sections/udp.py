"""Compares calls over UDP with raw TCP and with datagram echoes.

32 clients have one call of 64 bytes each in flight (`floor/calls.c`), and every reply is
compared byte for byte. The figure is the CPU time of the server for a call, from schedstat.
Server and load have a core each. Each sample has a server in a process of its own.

`sum` runs without dedupe, which would keep the replies to millions of calls of one address; one row
has it. The call without sockets is the server in C with recvmmsg and sendmmsg replaced
(`floor/no_sockets.c`), so an echo in C and this together are what a call over UDP has to cost.

"""

import argparse
import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bench import OUTPUT, ROOT
from bench.harness import figures, processes, usage
from bench.harness.figures import Column, Sample, interval, outcome
from bench.suite import machine
from bench.suite.servers import ENGINES, served

ROUNDS, SECONDS = 9, 1
OPTIONS = {"--only": {"default": "", "help": "servers with this in their name, and the echo"}}
PAGE = ROOT / "docs/benchmarks-udp.md"
ECHO = "C, recvmmsg echo"
WITHOUT_SOCKETS = "ucall C, the same call without sockets"
COLUMNS = [
    Column("CPU µs/call", "cpu_us", kind=interval),
    Column("of the echo", "cpu_us", base=ECHO, kind=interval),
    Column("calls/s", "rate", "{:,.0f}"),
]
CLIENTS = 32
WARM_UP_SECONDS = 0.2
REPLY_SECONDS_MAX = 10

#: A run of # is the number of the call.
SUM = b'{"jsonrpc":"2.0","method":"sum","params":{"a":2,"b":3},"id":###}'
FIVE = b'{"jsonrpc":"2.0","id":###,"result":5}'
#: With more digits, because a call with the id of an earlier one is a repeat.
NEW_SUM, NEW_FIVE = (text.replace(b"###", b"########") for text in (SUM, FIVE))

Serving = Callable[[], AbstractContextManager[processes.Server]]


@dataclass(frozen=True)
class Contender:
    name: str
    serving: Serving
    request: bytes = SUM
    reply: bytes = FIVE
    kind: str = "udp"

    def measure(self, seconds: float) -> Sample:
        with self.serving() as server:
            self.load(server.port, WARM_UP_SECONDS)
            before = usage.cpu_nanoseconds(server.pid)
            calls = self.load(server.port, seconds)
            used = usage.cpu_nanoseconds(server.pid) - before
        return {"cpu_us": used / calls / 1e3, "rate": calls / seconds}

    def load(self, port: int, seconds: float) -> int:
        files = OUTPUT / "udp.request", OUTPUT / "udp.reply"
        for file, content in zip(files, (self.request, self.reply), strict=True):
            file.write_bytes(content)
        command = [OUTPUT / "floor-calls", self.kind, port, CLIENTS, seconds, *files]
        return int(processes.run_load(command, seconds).split()[0])


class WithoutSockets(Contender):
    """Measures itself."""

    def measure(self, seconds: float) -> Sample:
        core, _ = processes.cores()
        command = [OUTPUT / "c-no-sockets", "--udp", "127.0.0.1", "--engine", "posix"]
        process = processes.start_pinned(command, core, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        port = int(process.stdout.readline().split()[-1])
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as wire:
            wire.sendto(b"begin", ("127.0.0.1", port))
        output, _ = process.communicate()
        if process.returncode:
            sys.exit(f"{self.name}: the server failed")
        return {"cpu_us": float(output) / 1e3, "rate": None}


def started(*command: object) -> Serving:
    """A server that announces its port."""
    return lambda: processes.serving(command, "udp")


def in_python(engine: str, *options: str) -> Serving:
    return started(*served("udp", "--engine", engine, *options))


def echo_in_python(*loop: str) -> Serving:
    return started(sys.executable, ROOT / "bench/servers/udp_echo.py", *loop)


def in_c(engine: str) -> Serving:
    return started(OUTPUT / "c-server", "--udp", "127.0.0.1", "--engine", engine)


@contextlib.contextmanager
def pinned(command: list[object], port: int) -> Iterator[processes.Server]:
    """Another project's server. Some choose the cores of their threads themselves."""
    with processes.serving_on(command, port, "udp-peer") as server:
        for task in Path(f"/proc/{server.pid}/task").iterdir():
            os.sched_setaffinity(int(task.name), {processes.cores()[0]})
        yield server


KEY = b"k" * 50
MEMCACHED_HEAD = b"##\0\0\0\1\0\0"
MEMCACHED_GET = MEMCACHED_HEAD + b"get " + KEY + b"\r\n"
MEMCACHED_VALUE = MEMCACHED_HEAD + b"VALUE " + KEY + b" 0 5\r\n12345\r\nEND\r\n"


@contextlib.contextmanager
def memcached() -> Iterator[processes.Server]:
    port = processes.free_port()
    words = ["memcached", "-l", "127.0.0.1", "-p", port, "-U", port, "-t", 1, "-u", "nobody"]
    with pinned(words, port) as server:
        with socket.create_connection(("127.0.0.1", port), REPLY_SECONDS_MAX) as wire:
            wire.sendall(b"set " + KEY + b" 0 0 5\r\n12345\r\n")
            assert wire.recv(100) == b"STORED\r\n"
        yield server


#: A query for the address of `host.example.`, and the answer.
DNS_QUESTION = b"\4host\7example\0\0\1\0\1"
DNS_QUERY = b"##\0\0\0\1\0\0\0\0\0\0" + DNS_QUESTION
DNS_ANSWER = (
    b"##\x84\0\0\1\0\1\0\0\0\0" + DNS_QUESTION + b"\xc0\x0c\0\1\0\1\0\0\x0e\x10\0\4\xc0\0\2\1"
)
KNOT = """
server:
    rundir: {folder}
    listen: 127.0.0.1@{port}
    udp-workers: 1
    tcp-workers: 1
    background-workers: 1
database:
    storage: {folder}
zone:
  - domain: example
    file: {folder}/zone
"""
ZONE = """$ORIGIN example.
@ 3600 SOA ns admin 1 3600 600 86400 3600
@ 3600 NS ns
ns 3600 A 192.0.2.2
host 3600 A 192.0.2.1
"""


@contextlib.contextmanager
def knot() -> Iterator[processes.Server]:
    port, folder = processes.free_port(), OUTPUT / "knot"
    folder.mkdir(exist_ok=True)
    (folder / "zone").write_text(ZONE)
    (folder / "knot.conf").write_text(KNOT.format(folder=folder, port=port))
    with pinned([shutil.which("knotd"), "-c", folder / "knot.conf"], port) as server:
        yield server


def contenders() -> list[Contender]:
    """Neighbours in the list are neighbours in time."""
    tcp = {"request": SUM + b"\n", "reply": FIVE + b"\n", "kind": "tcp"}
    echo = {"request": SUM, "reply": SUM}
    found = [Contender(ECHO, started(OUTPUT / "floor-udp_echo"), **echo)]
    found.append(WithoutSockets(WITHOUT_SOCKETS, contextlib.nullcontext))
    for language, serving in (("C", in_c), ("Python", in_python)):
        for engine, label in ENGINES.items():
            server = f"ucall {language}, {label}"
            found.append(Contender(f"{server}, UDP", serving(engine)))
            found.append(Contender(f"{server}, raw TCP", serving(engine), **tcp))
    server = in_python("posix", "--dedupe")
    found.append(Contender("ucall Python, posix, UDP, with dedupe", server, NEW_SUM, NEW_FIVE))
    found.append(Contender("asyncio, datagram echo", echo_in_python(), **echo))
    found.append(Contender("uvloop, datagram echo", echo_in_python("uvloop"), **echo))
    if shutil.which("memcached"):
        found.append(Contender("memcached, get", memcached, MEMCACHED_GET, MEMCACHED_VALUE))
    if shutil.which("knotd"):
        found.append(Contender("Knot DNS, query", knot, DNS_QUERY, DNS_ANSWER))
    return found


#: A claim, the rows of its two sides, of which the times are added, and the most of the ratio.
Goal = tuple[str, list[str], list[str], float]


def goals() -> list[Goal]:
    found: list[Goal] = []
    for language in ("Python", "C"):
        for engine in ("posix", "io_uring"):
            server = f"ucall {language}, {engine}"
            sides = [f"{server}, UDP"], [f"{server}, raw TCP"]
            found.append((f"{language}, {engine}: UDP of raw TCP", *sides, 0.75))
    posix, uring = (["ucall C, posix, UDP"], ["ucall C, io_uring, UDP"])
    floor = [ECHO, WITHOUT_SOCKETS]
    found.append(("C, posix: of an echo and the same call without sockets", posix, floor, 1.15))
    found.append(("C: io_uring of posix", uring, posix, 1.15))
    uring, posix = (["ucall Python, io_uring, UDP"], ["ucall Python, posix, UDP"])
    found.append(("Python: io_uring of posix", uring, posix, 1.15))
    return found


def sums(runs: figures.Runs, names: list[str]) -> list[float]:
    """The times of these rows together, in each round; none if a row was not measured."""
    rows = (figures.values(runs, name, "cpu_us") for name in names)
    return [sum(times) for times in zip(*rows, strict=False)]


def tables(runs: figures.Runs) -> str:
    text = figures.table_of(runs, COLUMNS)
    text = re.sub(r"^\| (ucall[^|]*) \|", r"| **\1** |", text, flags=re.MULTILINE)
    rows = []
    for claim, ours, theirs, most in goals():
        both = zip(sums(runs, ours), sums(runs, theirs), strict=False)
        if found := interval([own / other for own, other in both]):
            verdict = outcome(found, most=most)
            rows.append([claim, f"{most}", found.text("{:.2f}"), verdict])
    header = ["CPU time of a call, ratio", "at most", "measured", ""]
    return f"{text}\n\n{figures.table(header, rows)}"


def report(results: dict[str, Any]) -> str:
    runs, seconds = results["samples"], results["seconds"]
    how = f"medians of {len(runs[ECHO])} rounds of {seconds:g} s, with their 95% intervals"
    return f"{results['machine']}; {how}.\n\n{tables(runs)}"


def run(options: argparse.Namespace) -> dict[str, Any]:
    assert len(SUM) == 64
    chosen = [it for it in contenders() if options.only in it.name or it.name == ECHO]
    turns = {it.name: partial(it.measure, options.seconds) for it in chosen}
    runs = figures.in_turns(turns, options.rounds)
    print(tables(runs))
    return {
        "machine": machine.text(machine.describe()),
        "seconds": options.seconds,
        "samples": runs,
    }
