"""Interleaved rounds: each server of a group once a round, the floors among them.

A group is measured together because a machine's speed drifts. A ratio is taken within a round, so
that both its sides saw the same machine. Every second round runs backwards.
"""

import contextlib
import itertools
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from suite import drivers
from suite.servers import Load, Server

#: What starting and looking at a server takes, for the estimate of the time that is left.
START_SECONDS = 0.35
RUN_SECONDS = 0.1


@dataclass(frozen=True)
class Group:
    """Servers that are measured side by side under some loads."""

    section: str
    servers: tuple[Server, ...]
    loads: tuple[Load, ...]
    rounds: int
    seconds: int
    # A new server for each round and load: what one start happens to get, another does not.
    fresh: bool = True

    @property
    def estimate(self) -> float:
        """Seconds that it takes."""
        runs = self.rounds * len(self.servers) * len(self.loads)
        starts = runs if self.fresh else len(self.servers) * 3
        return runs * (self.seconds + RUN_SECONDS) + starts * START_SECONDS


class Progress:
    """One line on the terminal that says what runs, and how long all of it will take yet."""

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
    """All samples, in order, and what went wrong."""

    samples: list[dict] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def problem(self, text: str) -> None:
        print(f"       PROBLEM: {text}", file=sys.stderr, flush=True)
        self.problems.append(text)


def run_group(group: Group, number: int, records: Records, progress: Progress) -> None:
    """`number` tells this group's rounds from those of others of its section."""
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
    """Servers that are slow to start stay for all rounds: they do nothing while others run."""
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
    """A failure is kept among the problems. A server that stays is not tried again."""
    try:
        yield
    except drivers.FAILURES as error:
        records.problem(f"{group.section}, {load.label}: {server.label}: {error}")
        if not group.fresh and server in servers:
            servers.remove(server)
