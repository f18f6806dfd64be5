"""Tail latency at shares of the capacity that was found, beside the floor at the same rate."""

from collections.abc import Sequence
from dataclasses import replace

from bench.suite import drivers, rounds, servers
from bench.suite.plan import MANY
from bench.suite.rounds import Group, Run
from bench.suite.servers import Load, Server

SHARES = (10, 50, 80)
#: The capacity is found anew in each round, because the machine changes its mode.
ROUNDS, SECONDS = 8, 1
#: Of a run that only checks that all servers work.
BRIEF_ROUNDS = 1


def load_at(share: int, capacity: float, of: Load = MANY) -> Load:
    rate = max(round(capacity * share / 100), 1)
    label = f"{rate:,} calls a second, {share}% of the capacity"
    return replace(of, name=f"share-{share}", label=label, rate=rate)


def capacity(server: Server, of: Load = MANY) -> float:
    """Calls a second that the server reaches in a closed loop."""
    with server.running(of) as running:
        return drivers.measure(server, running, of, 1)["calls_per_second"]


def estimate(brief: bool) -> float:
    return estimate_of(servers.ours("http"), SHARES, BRIEF_ROUNDS if brief else ROUNDS)


def estimate_of(chosen: Sequence[Server], shares: Sequence[int], rounds_made: int) -> float:
    runs = 2 * len(chosen) * len(shares) * rounds_made
    return runs * (SECONDS + rounds.RUN_SECONDS)


def measure_all(brief: bool, run: Run) -> None:
    floors = {floor.name: floor for floor in servers.floors("http")}
    rounds_made = BRIEF_ROUNDS if brief else ROUNDS
    pairs = [(floors[servers.floors_of(it.name)[0]], it) for it in servers.ours("http")]
    measure("tails", pairs, SHARES, rounds_made, run)


def measure(
    section: str,
    pairs: Sequence[tuple[Server, Server]],
    shares: Sequence[int],
    rounds_made: int,
    run: Run,
    of: Load = MANY,
) -> None:
    """Measures servers and their floors."""
    for round_number in range(rounds_made):
        for floor, server in pairs:
            try:
                found = capacity(server, of)
            except drivers.FAILURES as error:
                run.records.problem(f"{section}: {server.label}: {error}")
                continue
            loads = tuple(load_at(share, found, of) for share in shares)
            group = Group(section, (floor, server), loads, 1, SECONDS)
            rounds.run_group(group, f"{section}.{server.name}.{round_number}", run)
