"""Compares calls over UDP with raw TCP and with datagram echoes: `make bench-udp`.

    python bench/udp/run.py [--rounds N] [--seconds S] [--write]

32 clients have one call of 64 bytes each under way (`load.c`), and every reply is compared byte for
byte. The figure is the CPU time of the server for a call, in nanoseconds from schedstat. Server and
load have a core each. Each round measures each server once, in a process of its own, every second
round in reverse order; ratios are those within a round.

`sum` runs without dedupe, which would keep the replies to millions of calls of one address; one row
has it. The call without sockets is the server in C with recvmmsg and sendmmsg replaced
(`no_sockets.c`), so an echo in C and this together are what a call over UDP has to cost.

Writes all samples to `.bench/udp.json`; with `--write` also to `bench/udp/results.json`, and the
tables of docs/udp.md from them.
"""

import argparse
import contextlib
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import pages

from harness import processes, usage
from harness.rows import OUTPUT, ROOT

CLIENTS = 32
WARM_UP_SECONDS = 0.2
REPLY_SECONDS_MAX = 10
SERVERS = ROOT / "bench/servers"

#: A run of # is the number of the call.
SUM = b'{"jsonrpc":"2.0","method":"sum","params":{"a":2,"b":3},"id":###}'
FIVE = b'{"jsonrpc":"2.0","id":###,"result":5}'
#: With more digits, because a call with the id of an earlier one is a repeat.
NEW_SUM, NEW_FIVE = (text.replace(b"###", b"########") for text in (SUM, FIVE))

Serving = Callable[[], AbstractContextManager[processes.Server]]
Sample = dict[str, float]


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
        texts = [self.request.hex(), self.reply.hex()]
        command = [OUTPUT / "udp-clients", self.kind, port, CLIENTS, seconds, *texts]
        _, core = processes.cores()
        process = processes.start_pinned(
            [str(word) for word in command], core, stdout=subprocess.PIPE, text=True
        )
        output, _ = process.communicate()
        if process.returncode:
            sys.exit(f"{self.name}: the load failed")
        return int(output)


class WithoutSockets(Contender):
    """Measures itself."""

    def measure(self, seconds: float) -> Sample:
        core, _ = processes.cores()
        command = [str(OUTPUT / "c-udp-no-sockets"), "127.0.0.1", "socket"]
        process = processes.start_pinned(command, core, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        port = int(process.stdout.readline().split()[-1])
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as wire:
            wire.sendto(b"begin", ("127.0.0.1", port))
        output, _ = process.communicate()
        if process.returncode:
            sys.exit(f"{self.name}: the server failed")
        return {"cpu_us": float(output) / 1e3, "rate": 0}


def started(*command: object) -> Serving:
    """A server that announces its port."""
    core, _ = processes.cores()
    words = [str(word) for word in command]
    return lambda: processes.serving(words, OUTPUT / "udp.log", core)


def in_python(name: str, *options: str) -> Serving:
    return started(sys.executable, SERVERS / name, *options)


def in_c(engine: str) -> Serving:
    return started(OUTPUT / "c-xdp", "127.0.0.1", engine)


@contextlib.contextmanager
def pinned(command: list[object], port: int) -> Iterator[processes.Server]:
    """Another project's server. Some choose the cores of their threads themselves."""
    core, _ = processes.cores()
    words = [str(word) for word in command]
    with processes.serving_on(words, port, OUTPUT / "udp-peer.log", core, {}) as server:
        for task in Path(f"/proc/{server.pid}/task").iterdir():
            os.sched_setaffinity(int(task.name), {core})
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
    found = [Contender(pages.ECHO, started(OUTPUT / "udp-echo"), **echo)]
    found.append(WithoutSockets(pages.WITHOUT_SOCKETS, contextlib.nullcontext))
    for engine, word in (("posix", "socket"), ("io_uring", "uring")):
        found.append(Contender(f"ucall C, {engine}, UDP", in_c(word)))
        found.append(Contender(f"ucall C, {engine}, raw TCP", in_c(word), **tcp))
    for engine, word in (("posix", "posix"), ("io_uring", "uring")):
        server = in_python("udp.py", "--engine", word)
        found.append(Contender(f"ucall Python, {engine}, UDP", server))
        found.append(Contender(f"ucall Python, {engine}, raw TCP", server, **tcp))
    server = in_python("udp.py", "--engine", "posix", "--dedupe")
    found.append(Contender("ucall Python, posix, UDP, with dedupe", server, NEW_SUM, NEW_FIVE))
    found.append(Contender("asyncio, datagram echo", in_python("udp_echo.py"), **echo))
    found.append(Contender("uvloop, datagram echo", in_python("udp_echo.py", "uvloop"), **echo))
    if shutil.which("memcached"):
        found.append(Contender("memcached, get", memcached, MEMCACHED_GET, MEMCACHED_VALUE))
    if shutil.which("knotd"):
        found.append(Contender("Knot DNS, query", knot, DNS_QUERY, DNS_ANSWER))
    return found


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compares UDP with TCP.")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=1, help="of each load (1)")
    parser.add_argument("--only", default="", help="servers with this in their name, and the echo")
    parser.add_argument("--write", action="store_true", help="write the tables of docs/udp.md")
    return parser.parse_args()


def main() -> None:
    given = arguments()
    assert len(SUM) == 64
    chosen = [one for one in contenders() if given.only in one.name or one.name == pages.ECHO]
    samples: dict[str, list[Sample]] = {contender.name: [] for contender in chosen}
    for number in range(given.rounds):
        print(f"round {number + 1} of {given.rounds}", file=sys.stderr, flush=True)
        for contender in chosen[:: -1 if number % 2 else 1]:
            samples[contender.name].append(contender.measure(given.seconds))
    results = {"machine": pages.machine(), "seconds": given.seconds, "samples": samples}
    text = json.dumps(results, indent=1) + "\n"
    (OUTPUT / "udp.json").write_text(text)
    print(pages.tables(results))
    if given.write:
        (ROOT / "bench/udp/results.json").write_text(text)
        pages.write(results)
    rates = [statistics.median(one["rate"] for one in of_one) for of_one in samples.values()]
    print(f"load average {os.getloadavg()[0]:.1f}; at most {max(rates):,.0f} calls/s")


if __name__ == "__main__":
    main()
