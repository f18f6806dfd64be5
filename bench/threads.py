"""Compares two threads of the C library with one: `make bench-threads`.

    python bench/threads.py PROGRAM [--pairs N] [--seconds S] [--engine posix|uring]

PROGRAM takes `--threads`, `--engine` and `--port`, and serves `sum`. Server and load share the
machine, so the load costs the server much and wrk little: batches of 1,000 calls, whose replies wrk
only counts. No process is pinned. Runs with one and with two threads alternate, because machines
drift; the ratio is computed within each pair, and the median of all is printed.
"""

import argparse
import os
import statistics
from pathlib import Path

from harness import load, processes, usage
from harness.rows import OUTPUT, Row

ROW = Row("threads", "32 connections, batches of 1,000", 32, batch=1000)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compares one thread with two.")
    parser.add_argument("program", type=Path)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=2)
    parser.add_argument("--engine", choices=["posix", "uring"], default="posix")
    return parser.parse_args()


def calls_per_second(options: argparse.Namespace, threads: int, cores: set[int]) -> float:
    command = [str(options.program), "--threads", str(threads), "--engine", options.engine]
    core, _ = processes.cores()
    log = OUTPUT / f"threads-{threads}.log"
    with processes.serving([*command, "--port", "0"], log, core) as server:
        for thread in os.listdir(f"/proc/{server.pid}/task"):
            os.sched_setaffinity(int(thread), cores)
        before = usage.cpu_nanoseconds(server.pid)
        result = load.wrk(ROW, server.port, options.seconds, None)
        cpu = (usage.cpu_nanoseconds(server.pid) - before) / 1e9
    rate = result["requests"] * ROW.batch / result["duration"]
    print(f"{threads} threads: {rate:12,.0f} calls/s, {cpu / result['duration']:.2f} cores")
    return rate


def main() -> None:
    options, cores = arguments(), os.sched_getaffinity(0)
    ratios = []
    for pair in range(options.pairs):
        order = (1, 2) if pair % 2 else (2, 1)
        rates = {threads: calls_per_second(options, threads, cores) for threads in order}
        ratios.append(rates[2] / rates[1])
    print(f"two threads serve {statistics.median(ratios):.2f} times as many calls", end=" ")
    print(f"({min(ratios):.2f} to {max(ratios):.2f}, {len(cores)} cores, shared with wrk)")


main()
