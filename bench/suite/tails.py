"""Tail latency at shares of the capacity that was found, beside the floor at the same rate."""

from suite import drivers, rounds, servers
from suite.plan import MANY
from suite.rounds import Group, Run
from suite.servers import Load, Server

SHARES = (10, 50, 80)
#: The capacity is found anew in each round, because the machine changes its mode.
ROUNDS, SECONDS = 8, 1
#: Of a run that only checks that all servers work.
BRIEF_ROUNDS = 1


def load_at(share: int, capacity: float) -> Load:
    rate = max(round(capacity * share / 100), 1)
    label = f"{rate:,} calls a second, {share}% of the capacity"
    return Load(f"share-{share}", label, MANY.connections, MANY.clients, rate=rate)


def capacity(server: Server) -> float:
    """Calls a second that the server reaches in a closed loop."""
    with server.running(MANY) as running:
        return drivers.measure(server, running, MANY, 1)["calls_per_second"]


def estimate(brief: bool) -> float:
    rounds_made = BRIEF_ROUNDS if brief else ROUNDS
    loads = (MANY,) * len(SHARES)
    group = Group("tails", tuple(servers.ours("http")[:2]), loads, rounds_made, SECONDS)
    return group.estimate * len(servers.ours("http"))


def measure_all(brief: bool, run: Run) -> None:
    floors = {floor.name: floor for floor in servers.floors("http")}
    for round_number in range(BRIEF_ROUNDS if brief else ROUNDS):
        for number, server in enumerate(servers.ours("http")):
            floor = floors[servers.floors_of(server.name)[0]]
            try:
                found = capacity(server)
            except drivers.FAILURES as error:
                run.records.problem(f"tails: {server.label}: {error}")
                continue
            loads = tuple(load_at(share, found) for share in SHARES)
            group = Group("tails", (floor, server), loads, 1, SECONDS)
            rounds.run_group(group, f"tails.{number}.{round_number}", run)
