"""Compares TLS with plain TCP on the same engine, in turns.

32 connections, one `sum` a request, the same each time, by `bench/load`. The figure is the server's
CPU time a call: the load encrypts, too, on its own core.
"""

import argparse
from functools import partial

from bench.harness import certificate, figures, processes
from bench.harness.figures import Column, spread
from bench.render.data import COST
from bench.suite import rounds, servers
from bench.suite.plan import CONSTANT

ROUNDS, SECONDS = 9, 2
HAS_ENGINES = True


def run(options: argparse.Namespace) -> None:
    processes.pin_to(processes.cores()[1])
    certificate.issue()
    found = {it.name: it for it in (*servers.ours("http"), *servers.over_tls())}
    for engine in options.engines:
        plain = f"ours-python-{engine}"
        pair = {"plain": found[plain], "TLS": found[f"{plain}-tls"]}
        turns = {
            name: partial(rounds.measured, server, CONSTANT, options.seconds)
            for name, server in pair.items()
        }
        runs = figures.in_turns(turns, options.rounds, engine)
        columns = [
            Column("CPU µs/call", COST, "{:.3f}", kind=spread),
            Column("of plain", COST, base="plain", kind=spread),
        ]
        print(figures.table_of(runs, columns, engine), end="\n\n", flush=True)
