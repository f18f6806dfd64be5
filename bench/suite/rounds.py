"""Interleaved rounds: each server of a group runs once a round, including the floors.

A machine's speed drifts, so the servers of a group run in turns, and a ratio is computed within a
round. Every second round runs in reverse order.
"""

import contextlib
import itertools
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from suite import drivers
from suite.servers import Load, Server

#: The time to start and check a server, for the estimate of the time left.
START_SECONDS = 0.35
RUN_SECONDS = 0.1


@dataclass(frozen=True)
class Group:
    """Servers that run in turns under the same loads."""

    section: str
    servers: tuple[Server, ...]
    loads: tuple[Load, ...]
    rounds: int
    seconds: int
    # Whether each round and load gets a new server, because starts differ by chance.
    fresh: bool = True

    @property
    def estimate(self) -> float:
        """The duration of the group in seconds."""
        runs = self.rounds * len(self.servers) * len(self.loads)
        starts = runs if self.fresh else len(self.servers) * 3
        return runs * (self.seconds + RUN_SECONDS) + starts * START_SECONDS


class Progress:
    """One line on the terminal with the current load and the time left."""

    def __init__(self, total_seconds: float) -> None:
        self.total = total_seconds
        self.done = 0.0
        self.start = time.monotonic()

    def print_line(self, text: str) -> None:
        share = min(self.done / self.total, 1.0) if self.total else 1.0
        pace = (time.monotonic() - self.start) / self.done if self.done > 20 else 1.0
        left = max(self.total - self.done, 0.0) * pace
        print(f"{share:5.0%}  {left / 60:4.1f} min left  {text}", file=sys.stderr, flush=True)

    def advance(self, seconds: float) -> None:
        self.done += seconds


@dataclass
class Records:
    """All samples, in order, and all problems."""

    samples: list[dict] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def problem(self, text: str) -> None:
        print(f"       PROBLEM: {text}", file=sys.stderr, flush=True)
        self.problems.append(text)


def run_group(group: Group, number: int, records: Records, progress: Progress) -> None:
    """Runs the rounds of a group. `number` distinguishes groups of the same section."""
    progress_at_start = progress.done
    there = [server for server in group.servers if server.is_there]
    for server in (server for server in group.servers if not server.is_there):
        records.problem(f"{group.section}: {server.label}: not installed")
    runs = rounds_fresh if group.fresh else rounds_kept
    step = group.estimate / (group.rounds * (1 if group.fresh else len(group.loads)))
    for round_number, found in enumerate(runs(group, there, records, progress)):
        for load, server, sample in found:
            records.samples.append(
                {
                    "section": group.section,
                    "load": load.name,
                    "server": server.name,
                    "tool": drivers.tool_for(server, load),
                    "pair": f"{number}.{round_number}",
                    **sample,
                }
            )
        progress.advance(step)
    progress.done = progress_at_start + group.estimate


Found = list[tuple[Load, Server, dict]]


def order(servers: Sequence[Server], round_number: int) -> list[Server]:
    return list(servers) if round_number % 2 == 0 else list(reversed(servers))


def describe(group: Group, load: Load, round_number: int) -> str:
    return f"{group.section}, {load.label}: round {round_number + 1} of {group.rounds}"


def rounds_fresh(
    group: Group, servers: list[Server], records: Records, progress: Progress
) -> Iterator[Found]:
    for round_number in range(group.rounds):
        found: Found = []
        for load in group.loads:
            progress.print_line(describe(group, load, round_number))
            for server in order(servers, round_number):
                with noted(group, server, load, records, servers), server.running(load) as running:
                    drivers.check(server, running.port, load)
                    found.append(
                        (load, server, drivers.measure(server, running, load, group.seconds))
                    )
        yield found


def rounds_kept(
    group: Group, servers: list[Server], records: Records, progress: Progress
) -> Iterator[Found]:
    """Starts the servers that stay for all rounds because they start slowly; they idle
    meanwhile."""
    with contextlib.ExitStack() as stack:
        running = {}
        for server in list(servers):
            progress.print_line(f"{group.section}: starting {server.label}")
            with noted(group, server, group.loads[0], records, servers):
                running[server.name] = stack.enter_context(server.running(group.loads[0]))
                drivers.check(server, running[server.name].port, group.loads[0])
        for round_number, load in itertools.product(range(group.rounds), group.loads):
            progress.print_line(describe(group, load, round_number))
            found: Found = []
            for server in order(servers, round_number):
                with noted(group, server, load, records, servers):
                    sample = drivers.measure(server, running[server.name], load, group.seconds)
                    found.append((load, server, sample))
            yield found


@contextlib.contextmanager
def noted(
    group: Group, server: Server, load: Load, records: Records, servers: list[Server]
) -> Iterator[None]:
    """Runs one load, and records a failure as a problem. A server that stays is not retried."""
    try:
        yield
    except drivers.FAILURES as error:
        records.problem(f"{group.section}, {load.label}: {server.label}: {error}")
        if not group.fresh and server in servers:
            servers.remove(server)
