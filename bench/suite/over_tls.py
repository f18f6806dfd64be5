"""The cost and the tails of servers over TLS, beside the floor of TLS."""

from dataclasses import replace

from bench.harness import certificate
from bench.suite import rounds, servers, tails
from bench.suite.plan import MANY
from bench.suite.rounds import Group, Run

#: Chromium names an origin, which over TLS is another one, and so rejected.
LOAD = replace(MANY, name="c32-tls", clients=tuple(it for it in MANY.clients if it != "chromium"))
SHARES = (50,)
ROUNDS, SECONDS = 7, 1


def closed_loop(rounds_made: int) -> Group:
    return Group("tls", tuple(servers.over_tls()), (LOAD,), rounds_made, SECONDS)


def rounds_of(brief: bool) -> int:
    return 1 if brief else ROUNDS


def estimate(brief: bool) -> float:
    _, *ours = servers.over_tls()
    rounds_made = rounds_of(brief)
    open_loop = tails.estimate_of(ours, SHARES, rounds_made)
    return closed_loop(rounds_made).estimate + open_loop


def measure_all(brief: bool, run: Run) -> None:
    certificate.issue()
    rounds.run_group(closed_loop(rounds_of(brief)), "tls", run)
    floor, *ours = servers.over_tls()
    pairs = [(floor, server) for server in ours]
    tails.measure("tls", pairs, SHARES, rounds_of(brief), run, LOAD)
