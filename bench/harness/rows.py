"""The servers under measurement, and their loads."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness import request

ROOT = Path(__file__).resolve().parents[2]
OUTPUT = ROOT / ".bench"
FLOORS = ("floor-epoll", "floor-uring")


@dataclass(frozen=True)
class Row:
    """A load. `depth` requests at a time on each connection; `batch` calls in each, or 0."""

    name: str
    label: str
    connections: int
    batch: int = 0
    depth: int = 1
    pairs: int = 5
    # With pipelining wrk 4.1 reports wrong percentiles: it scales them by replies, not by turns.
    has_latency: bool = True

    @property
    def calls_a_request(self) -> int:
        return max(self.batch, 1)


ROWS = {
    row.name: row
    for row in (
        Row("headline", "32 connections, one call a request", 32, pairs=15),
        Row("single", "1 connection, one call a request", 1),
        Row("batch", "32 connections, batches of 100", 32, batch=100),
        Row("pipeline", "32 connections, 16 requests pipelined", 32, depth=16, has_latency=False),
    )
}


@dataclass(frozen=True)
class Contender:
    """A server, and the floors that it is compared with."""

    name: str
    label: str
    baselines: tuple[str, ...]
    command: tuple[str, ...]

    def command_for(self, row: Row) -> list[str]:
        """The command; a floor needs its reply and the length of a request as arguments."""
        if self.name not in FLOORS:
            return [*self.command, "--port", "0"]
        batch = ["--batch", str(row.batch)] if row.batch else []
        length = ["--pipeline", str(len(request.http_request(row.batch)))]
        return [*self.command, "--port", "0", *length, *batch]


def floor(engine: str, label: str, baselines: tuple[str, ...]) -> Contender:
    name = f"floor-{engine}"
    return Contender(name, label, baselines, (str(OUTPUT / name),))


def ours(engine: str, command: Sequence[str]) -> Contender:
    baselines = FLOORS if engine == "uring" else FLOORS[:1]
    label = {"posix": "ours, posix", "uring": "ours, io_uring"}[engine]
    return Contender(f"ours-{engine}", label, baselines, (*command, "--engine", engine))


def contenders(engines: Sequence[str], command: Sequence[str]) -> list[Contender]:
    """The servers in the order in which they run: neighbours in the list are neighbours in time."""
    both = {
        "posix": floor("epoll", "floor, epoll", ()),
        "uring": floor("uring", "floor, io_uring", FLOORS[:1]),
    }
    chosen = []
    for engine, its_floor in both.items():
        chosen.append(its_floor)
        if engine in engines:
            chosen.append(ours(engine, command))
    return chosen


def sum_server() -> list[str]:
    return [sys.executable, str(ROOT / "bench/servers/sum.py")]
