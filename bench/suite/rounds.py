"""Interleaved rounds: each server of a group runs once a round, including the floors.

A machine's speed drifts, so the servers of a group run in turns, and a ratio is computed within a
round. Every second round runs in reverse order. Where the machine changed its mode between a server
and its floor, both run again.
"""

import contextlib
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from bench.suite import drivers
from bench.suite.calibration import SECONDS as CALIBRATION_SECONDS
from bench.suite.calibration import is_one_mode
from bench.suite.servers import Load, Server, floors_of

#: The time to start and check a server and to calibrate, for the estimate of the time left.
RUN_SECONDS = 0.35 + CALIBRATION_SECONDS
#: A group makes up to this many times its rounds, until each server has its pairs in one mode.
ROUNDS_MAX_RATIO = 3


@dataclass(frozen=True)
class Group:
    """Servers that run in turns under the same loads, until each of them has been compared with its
    floor in `rounds` pairs of one mode."""

    section: str
    servers: tuple[Server, ...]
    loads: tuple[Load, ...]
    rounds: int
    seconds: int

    @property
    def estimate(self) -> float:
        """The duration of the group in seconds, if the machine keeps its mode."""
        runs = self.rounds * len(self.servers) * len(self.loads) + self.has_shares
        return runs * (self.seconds + RUN_SECONDS)

    @property
    def has_shares(self) -> bool:
        return any(load.share for load in self.loads)


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
    """All samples, in order, and all problems. `rejected` counts the servers' samples that were
    taken while the machine changed its mode, or in another one than their floor's."""

    samples: list[dict] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    rejected: int = 0

    def problem(self, text: str) -> None:
        print(f"       PROBLEM: {text}", file=sys.stderr, flush=True)
        self.problems.append(text)


@dataclass(frozen=True)
class Run:
    """What all groups of a run share."""

    calibrate: Callable[[], float]
    records: Records
    progress: Progress


def run_group(group: Group, name: str, run: Run) -> None:
    """Runs the rounds of a group. No other group has the same name."""
    progress_at_start = run.progress.done
    there = [server for server in group.servers if server.is_there]
    for server in (server for server in group.servers if not server.is_there):
        run.records.problem(f"{group.section}: {server.label}: not installed")
    try:
        loads = at_shares(group) if group.has_shares else group.loads
    except drivers.FAILURES as error:
        run.records.problem(f"{group.section}: {group.servers[-1].label}: no capacity: {error}")
        loads = ()
    for load in loads:
        run_load(group, load, name, list(there), run)
    run.progress.done = progress_at_start + group.estimate


def run_load(group: Group, load: Load, name: str, servers: list[Server], run: Run) -> None:
    accepted: Counter[str] = Counter()
    before = run.calibrate()
    for round_number in range(group.rounds * ROUNDS_MAX_RATIO):
        chosen = order(lacking(group, servers, accepted), round_number)
        if not chosen:
            return
        text = f"{group.section}, {load.label}: round {round_number + 1} of {group.rounds}"
        run.progress.print_line(text)
        found: dict[str, dict] = {}
        for server in chosen:
            with noted(group, server, load, run.records, servers):
                found[server.name] = measured(server, load, group.seconds)
            after = run.calibrate()
            if server.name in found:
                found[server.name]["calibration_us"] = [before, after]
            before = after
            run.progress.advance(group.seconds + RUN_SECONDS)
        record(group, load, f"{name}.{round_number}", found, run.records)
        good = [server for server in found if is_accepted(server, found)]
        run.records.rejected += len(found) - len(good)
        accepted.update(good)
    for server in lacking(group, servers, accepted):
        run.records.problem(
            f"{group.section}, {load.label}: {server.label}: only {accepted[server.name]} of "
            f"{group.rounds} samples in the mode of their floor"
        )


def measured(server: Server, load: Load, seconds: int) -> dict:
    with server.running(load) as running:
        drivers.check(server, running.port, load)
        return drivers.measure(server, running, load, seconds)


def at_shares(group: Group) -> list[Load]:
    """The loads at their shares of what the first of our servers reaches in a closed loop."""
    server = next(server for server in group.servers if server.family == "ours")
    closed = replace(group.loads[0], share=0, idle=0)
    capacity = measured(server, closed, 1)["calls_per_second"]
    return [replace(it, rate=max(round(capacity * it.share / 100), 1)) for it in group.loads]


def record(group: Group, load: Load, pair: str, found: dict[str, dict], records: Records) -> None:
    tools = {server.name: drivers.tool_for(server, load) for server in group.servers}
    for name, sample in found.items():
        where = {"section": group.section, "load": load.name, "server": name}
        records.samples.append({**where, "tool": tools[name], "pair": pair, **sample})


def is_accepted(name: str, found: dict[str, dict]) -> bool:
    """Whether the sample and that of its floor, if there is one, were taken in one mode."""
    own = found[name]["calibration_us"]
    floor = next((floor for floor in floors_of(name) if floor in found), name)
    return is_one_mode([*own, *found[floor]["calibration_us"]])


def lacking(group: Group, servers: Sequence[Server], accepted: Counter[str]) -> list[Server]:
    """The servers that need more rounds, with their floors."""
    names = {server.name for server in servers if accepted[server.name] < group.rounds}
    names |= {floor for name in names for floor in floors_of(name)}
    return [server for server in servers if server.name in names]


def order(servers: Sequence[Server], round_number: int) -> list[Server]:
    return list(servers) if round_number % 2 == 0 else list(reversed(servers))


@contextlib.contextmanager
def noted(
    group: Group, server: Server, load: Load, records: Records, servers: list[Server]
) -> Iterator[None]:
    """Runs one load. Records a failure as a problem, and leaves that server out from then on."""
    try:
        yield
    except drivers.FAILURES as error:
        records.problem(f"{group.section}, {load.label}: {server.label}: {error}")
        servers.remove(server)
