"""Tail latency of Python servers at half of their capacity while something else goes on: a thread
that computes, garbage collections, idle connections."""

from dataclasses import replace

from bench.suite import drivers, rounds, servers, tails
from bench.suite.rounds import Group, Run

LOAD, IDLE = "beside", "beside-idle"
SHARE, IDLE_CONNECTIONS = 50, 1_000
ROUNDS, SECONDS = 5, 1


def alone() -> list[servers.Server]:
    return [server for server in servers.python_beside() if server.label.endswith("alone")]


def estimate(brief: bool) -> float:
    rounds_made = 1 if brief else ROUNDS
    runs = len(servers.python_beside()) + len(alone())
    return rounds_made * runs * (SECONDS + rounds.RUN_SECONDS)


def measure_all(brief: bool, run: Run) -> None:
    for round_number in range(1 if brief else ROUNDS):
        for server in alone():
            try:
                found = tails.capacity(server)
            except drivers.FAILURES as error:
                run.records.problem(f"beside: {server.label}: {error}")
                continue
            load = replace(tails.load_at(SHARE, found), name=LOAD)
            same = [it for it in servers.python_beside() if it.name.startswith(server.name)]
            name = f"beside.{server.name}.{round_number}"
            rounds.run_group(Group("beside", tuple(same), (load,), 1, SECONDS), name, run)
            idle = replace(load, name=IDLE, idle=IDLE_CONNECTIONS)
            rounds.run_group(Group("beside", (server,), (idle,), 1, SECONDS), name, run)
