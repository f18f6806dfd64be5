"""Compares ucall with the floor, in a few minutes: for work on the hot path.

Prints a table for each load, and the instructions and system calls of a call, which hardly vary.
`bench/README.md` explains them. Writes all samples to `.bench/quick.json`.
"""

import argparse
import sys

from bench.harness import figures, processes
from bench.render import tables
from bench.render.data import Results
from bench.suite import calibration, exact, machine, plan, rounds, servers
from bench.suite.rounds import Group
from bench.suite.servers import Load

SECONDS = 2
HAS_ENGINES = True
#: Loads, and the rounds of each; and what is counted without rounds.
PARTS = {
    "headline": (plan.CONSTANT, 15),
    "single": (plan.SINGLE, 5),
    "batch": (Load("batch-100", "32 clients, batches of 100", 32, batch=100), 5),
    "pipeline": (Load("depth-16", "32 clients, 16 deep", 32, depth=16), 5),
    "exact": (),
}
OPTIONS = {
    "--rounds": {"type": int, "help": "by default 15 for the headline, 5 for others"},
    "--language": {"choices": ["python", "c"], "default": "python"},
}


def chosen(options: argparse.Namespace) -> tuple[servers.Server, ...]:
    """The floors, and after each of them the server of ours on its engine."""
    wanted = {f"ours-{options.language}-{engine}" for engine in options.engines}
    found = plan.with_floors("http")
    return tuple(it for it in found if it.family == "floor" or it.name in wanted)


def run(options: argparse.Namespace) -> None:
    if processes.cores()[0] == processes.cores()[1]:
        figures.log("Only one core: server and load share it, so the figures are not reliable.")
    processes.pin_to(processes.cores()[1])
    contenders = chosen(options)
    groups = [
        Group("quick", contenders, (load,), options.rounds or usual, options.seconds)
        for load, usual in (PARTS[name] for name in options.only if name != "exact")
    ]
    records = rounds.Records()
    progress = rounds.Progress(sum(group.estimate for group in groups))
    with calibration.running() as floor:
        for number, group in enumerate(groups):
            rounds.run_group(group, f"quick.{number}", rounds.Run(floor, records, progress))
    results = Results({"samples": records.samples})
    for group in groups:
        [load] = group.loads
        print(f"{load.label}\n\n{tables.calls(results, contenders, load.name)}\n", flush=True)
    counted = []
    for server in contenders if "exact" in options.only else ():
        figures.log(f"instructions and system calls of {server.label}")
        counted += exact.counts(server)
    if counted:
        print(tables.exact(Results({"samples": [], "exact": counted}), contenders))
    raw = {"machine": machine.describe(), "exact": counted, "problems": records.problems}
    figures.write(figures.part("quick"), raw | {"samples": records.samples})
    if records.problems:
        sys.exit("\n".join(["Problems:", *records.problems]))
