"""Compares two threads of the C library with one.

Server and load share the machine, so the load costs the server much and the load little: batches of
1,000 calls, whose replies it only compares. The server is not pinned.
"""

import argparse
import os
from functools import partial

from bench import OUTPUT
from bench.harness import figures, processes, usage
from bench.harness.figures import Column, spread
from bench.suite import drivers
from bench.suite.servers import Load

ROUNDS, SECONDS = 5, 2
HAS_ENGINES = True
LOAD = Load("threads", "32 connections, batches of 1,000", 32, batch=1000)
COLUMNS = [
    Column("calls/s", "rate", "{:,.0f}"),
    Column("of one thread", "rate", base="1", kind=spread),
    Column("cores", "cores"),
]


def measure(command: list[object], cores: set[int], seconds: float) -> figures.Sample:
    with processes.serving(command, "threads") as running:
        for thread in os.listdir(f"/proc/{running.pid}/task"):
            os.sched_setaffinity(int(thread), cores)
        before = usage.cpu_nanoseconds(running.pid)
        found = drivers.call(running.port, LOAD, seconds)
        cpu = (usage.cpu_nanoseconds(running.pid) - before) / 1e9
    return {
        "rate": found["requests"] * LOAD.batch / found["duration"],
        "cores": cpu / found["duration"],
    }


def run(options: argparse.Namespace) -> None:
    cores = os.sched_getaffinity(0)
    for engine in options.engines:
        turns = {}
        for threads in ("1", "2"):
            command = [OUTPUT / "c-server", "--threads", threads, "--engine", engine]
            turns[threads] = partial(measure, command, cores, options.seconds)
        runs = figures.in_turns(turns, options.rounds, engine)
        print(figures.table_of(runs, COLUMNS, f"threads, {engine}, {len(cores)} cores"))
