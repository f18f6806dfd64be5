"""Calls `sum` while slowhttptest holds thousands of slow connections.

For each engine and mode of slowhttptest, in rounds: the 99th percentile of `sum` alone, then while
slow peers connect, stay and are closed. A second server, in a process of its own on the same core
and without slow peers, gets the same calls at the same time: the latency that its calls lose is the
machine's, and only the rest of the first server's loss is its own.

**Load.** Each server has 32 connections with calls at a fixed rate far below its capacity. Latency
counts from the time at which a call was due, so a server that stalls does not get fewer calls. A
closed loop would use its whole core, so the kernel would preempt it for slowhttptest for ticks of
several milliseconds, and those ticks would be its 99th percentile, whichever server has the slow
peers.

**Cores.** The servers run on one core, without priority. The callers run on the other with
SCHED_FIFO if that is allowed, and slowhttptest in the time that they leave, with SCHED_IDLE. It
polls its sockets without pause, in system calls that the kernel does not interrupt (with
CONFIG_PREEMPT_NONE), so it runs in many processes with few sockets each.

The server's time limits are short, so that they expire during a round.
"""

import argparse
import csv
import functools
import json
import platform
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from bench import OUTPUT, ROOT
from bench.harness import figures, processes, usage
from bench.harness.figures import Column, Spread
from bench.suite import drivers, plan
from bench.suite.servers import served

ROUNDS, SECONDS = 3, 9
HAS_ENGINES = True
#: Connections of each of the two servers.
CALLERS = 32
CALLS_A_SECOND = 2000
PAGE, TARGET = ROOT / "docs/bad-input.md", "slow-peers"

#: Each mode writes or reads a little every few seconds, so the connection is never idle.
MODES = {
    "slow headers": ["-H", "-t", "POST", "-i", "3"],
    "slow body": ["-B", "-i", "3", "-s", "1024"],
    "slow read": ["-X", "-k", "10", "-n", "3", "-z", "5", "-w", "1", "-y", "64"],
}
#: The server rejects GET, so slowhttptest gets no long reply to read slowly.
OWN_MODE = "slow read of 100 kB"
CONNECTIONS_A_SECOND = 2000
IDLE_SECONDS = 3
SERVER_TIMEOUT_SECONDS = 5
#: Processes of slowhttptest, each with its share of the connections.
PROCESSES = 20
#: The time within which the server must close the last connection.
RECOVERY_SECONDS_MAX = 15
PARTS = [*MODES, OWN_MODE]
OPTIONS = {"--connections": {"type": int, "default": 4000, "help": "slow ones, in each mode"}}


def open_connections(port: int) -> int:
    """The number of the server's connections, without the one of this call."""
    question = b'{"jsonrpc":"2.0","method":"connections","id":1}'
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(question)
        return json.loads(connection.makefile("rb").readline())["result"] - 1


def state(server: processes.Server) -> tuple[float, int]:
    """The memory in MB, and the open files and connections once all connections have closed; /proc
    does not show those of io_uring."""
    deadline = time.monotonic() + RECOVERY_SECONDS_MAX
    while (connections := open_connections(server.port)) and time.monotonic() < deadline:
        time.sleep(0.1)
    files = len(list(Path(f"/proc/{server.pid}/fd").iterdir()))
    return usage.resident_mb(server.pid), files + connections


@contextmanager
def slow_peers(
    mode: str, port: int, options: argparse.Namespace
) -> Iterator[list[subprocess.Popen]]:
    """Runs the slow peers' processes during the block."""
    nothing = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    started = [
        processes.start_load(["chrt", "--idle", "0", *command], **nothing)
        for command in commands(mode, port, options)
    ]
    try:
        yield started
    finally:
        for process in started:
            process.kill()
            process.wait()


def commands(mode: str, port: int, options: argparse.Namespace) -> list[list[object]]:
    seconds = round(options.seconds)
    if mode == OWN_MODE:
        script = [sys.executable, ROOT / "bench/servers/slow_readers.py", port]
        return [[*script, options.connections, seconds, report_of(0)]]
    share, rate = options.connections // PROCESSES, CONNECTIONS_A_SECOND // PROCESSES
    command = ["slowhttptest", *MODES[mode], "-u", f"http://127.0.0.1:{port}/", "-c", share]
    command += ["-r", rate, "-l", seconds, "-v", "0", "-g", "-o"]
    return [[*command, report_of(number).with_suffix("")] for number in range(PROCESSES)]


def report_of(number: int) -> Path:
    """The report of a process of slowhttptest."""
    return OUTPUT / f"slowhttptest-{number}.csv"


@functools.cache
def real_time() -> list[str]:
    """A command prefix for real-time priority, if that is allowed."""
    command = ["chrt", "--fifo", "1"]
    allowed = subprocess.run([*command, "true"], check=False, capture_output=True)
    return command if allowed.returncode == 0 else []


def start_calling(port: int, seconds: float) -> subprocess.Popen:
    load = replace(plan.CONSTANT, connections=CALLERS, rate=CALLS_A_SECOND)
    command = [*real_time(), *drivers.own_command(load), "--sleep", "--seconds", seconds]
    return processes.start_load([*command, f"127.0.0.1:{port}"])


def p99s_us(ports: Sequence[int], seconds: float) -> list[float]:
    """The percentiles of calls to several servers at the same time; raises if a call failed."""
    started = [start_calling(port, seconds) for port in ports]
    outputs = [process.communicate(timeout=seconds + 30)[0] for process in started]
    results = [drivers.parsed(output.decode(errors="replace")) for output in outputs]
    for result in results:
        if result["errors"] or not result["requests"]:
            raise drivers.LoadError(f"calls failed: {result}")
    return [result["p99"] for result in results]


def p99s_and_held(ports: Sequence[int], seconds: float) -> tuple[list[float], list[int]]:
    """The percentiles, and the number of the first server's slow peers, second by second."""
    held: list[int] = []

    def watch() -> None:
        while time.monotonic() < end:
            held.append(max(open_connections(ports[0]) - CALLERS, 0))
            time.sleep(1)

    end = time.monotonic() + seconds
    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        return p99s_us(ports, seconds), held
    finally:
        watcher.join()


def closed_seen(count: int) -> int:
    """The connections that were closed, as slowhttptest's processes report."""
    closed = 0
    for number in range(count):
        with report_of(number).open(newline="") as file:
            *_, last = csv.DictReader(file, skipinitialspace=True)
        closed += int(last["Closed"])
    return closed


def measure(
    server: processes.Server, other: processes.Server, mode: str, options: argparse.Namespace
) -> figures.Sample:
    ports = server.port, other.port
    before = state(server)
    idle, other_idle = p99s_us(ports, IDLE_SECONDS)
    with slow_peers(mode, server.port, options) as started:
        (slow, other_slow), held = p99s_and_held(ports, options.seconds)
        for process in started:
            process.wait(RECOVERY_SECONDS_MAX)
    after = state(server)
    return {
        "idle_us": idle,
        "slow_us": slow,
        "ratio": slow / idle,
        "other_ratio": other_slow / other_idle,
        "ratio_of_both": slow / idle / (other_slow / other_idle),
        "held_max": max(held),
        "held_at_end": held[-1],
        "closed": closed_seen(len(started)),
        "mb_before": before[0],
        "mb_after": after[0],
        "files_before": before[1],
        "files_after": after[1],
    }


def lowest_and_highest(values: Sequence[float]) -> Spread:
    return Spread(statistics.median(values), min(values), max(values))


COLUMNS = [
    Column("p99 alone, µs", "idle_us", "{:,.0f}"),
    Column("p99 beside it, µs", "slow_us", "{:,.0f}"),
    Column("ratio", "ratio", kind=lowest_and_highest),
    Column("ratio of the second server", "other_ratio", kind=lowest_and_highest),
    Column("first ratio / second", "ratio_of_both", kind=lowest_and_highest),
    Column("slow peers, most", "held_max", "{:,.0f}"),
    Column("at the end", "held_at_end", "{:,.0f}"),
    Column("closed, as slowhttptest saw", "closed", "{:,.0f}"),
    Column("MB before", "mb_before", "{:.1f}"),
    Column("MB after", "mb_after", "{:.1f}"),
    Column("descriptors before", "files_before", "{:.0f}"),
    Column("after", "files_after", "{:.0f}"),
]


def measure_engine(engine: str, options: argparse.Namespace) -> figures.Runs:
    limits = ("--timeout-s", str(SERVER_TIMEOUT_SECONDS))
    command = served("guarded", "--engine", engine, *limits)
    with (
        processes.serving(command, f"guarded-{engine}") as server,
        processes.serving(command, f"guarded-{engine}-other") as other,
    ):
        p99s_us([server.port, other.port], 1)
        turns = {
            f"{mode}, {engine}": functools.partial(measure, server, other, mode, options)
            for mode in options.only
        }
        return figures.in_turns(turns, options.rounds, engine)


def report(results: dict) -> str:
    how = (
        f"`sum`, {CALLS_A_SECOND:,} calls a second on {CALLERS} connections, beside "
        f"{results['connections']:,} slow ones; every time limit is {SERVER_TIMEOUT_SECONDS} s, on "
        f"Linux {results['kernel']}. Medians of the rounds; ratios within a round, with the lowest "
        "and the highest."
    )
    return f"{how}\n\n{figures.table_of(results['samples'], COLUMNS, 'slowhttptest')}"


def run(options: argparse.Namespace) -> dict:
    processes.pin_to(processes.cores()[1])
    runs: figures.Runs = {}
    for engine in options.engines:
        runs |= measure_engine(engine, options)
    results = {"connections": options.connections, "kernel": platform.release(), "samples": runs}
    print(report(results))
    return results
