"""Calls `sum` while slowhttptest holds thousands of slow connections: `make slow-peers`.

    python bench/slow_peers.py [--engines posix,uring] [--modes "slow body,…"] [--rounds N]
        [--connections N] [--seconds S]

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

The server's time limits are short, so that they expire during a round. The figures are kept in
`.bench/slow-peers.json`, by engine and mode, and the table of all of them in docs/security.md.
"""

import argparse
import csv
import functools
import json
import platform
import resource
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from harness import load, processes, request, usage
from harness.rows import OUTPUT, ROOT

LOAD = OUTPUT / "target/release/load"
#: Connections of each of the two servers.
CALLERS = 32
CALLS_A_SECOND = 2000
PAGE = ROOT / "docs/security.md"
FIGURES = OUTPUT / "slow-peers.json"
BEGIN = "<!-- slow peers: written by `make slow-peers` -->"
END = "<!-- end of slow peers -->"

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


@dataclass(frozen=True)
class State:
    """The server's memory in MB, open files and connections without load."""

    rss_mb: float
    descriptors: int


@dataclass(frozen=True)
class Figures:
    """One round of one mode on one engine. The second server has no slow peers."""

    idle_p99_us: float
    slow_p99_us: float
    other_idle_p99_us: float
    other_slow_p99_us: float
    held_max: int
    held_at_end: int
    closed_seen: int
    seconds_out_of_service: int
    before: State
    after: State


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Calls sum beside thousands of slow peers.")
    parser.add_argument("--engines", default="posix,uring", help="with a comma between them")
    parser.add_argument("--modes", default=",".join([*MODES, OWN_MODE]), help="likewise")
    parser.add_argument("--rounds", type=int, default=3, help="rounds, whose medians are shown (3)")
    parser.add_argument("--connections", type=int, default=4000, help="slow ones, in each mode")
    parser.add_argument("--seconds", type=int, default=9, help="of each mode (9)")
    return parser.parse_args()


def open_connections(port: int) -> int:
    """The number of the server's connections, without the one of this call."""
    question = b'{"jsonrpc":"2.0","method":"connections","id":1}'
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(question)
        return json.loads(connection.makefile("rb").readline())["result"] - 1


def state(server: processes.Server) -> State:
    """Waits until all connections have closed; /proc does not show those of io_uring."""
    deadline = time.monotonic() + RECOVERY_SECONDS_MAX
    while (connections := open_connections(server.port)) and time.monotonic() < deadline:
        time.sleep(0.1)
    files = len(list(Path(f"/proc/{server.pid}/fd").iterdir()))
    return State(usage.memory(server.pid).now_mb, max(files, files + connections))


@contextmanager
def slow_peers(
    mode: str, port: int, options: argparse.Namespace
) -> Iterator[list[subprocess.Popen]]:
    """Runs the slow peers' processes during the block."""
    _, core = processes.cores()
    started = [
        processes.start_pinned(
            ["chrt", "--idle", "0", *command],
            core,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for command in commands(mode, port, options)
    ]
    try:
        yield started
    finally:
        for process in started:
            process.kill()
            process.wait()


def commands(mode: str, port: int, options: argparse.Namespace) -> list[list[str]]:
    if mode == OWN_MODE:
        script = [sys.executable, str(ROOT / "bench/slow_readers.py"), str(port)]
        return [[*script, str(options.connections), str(options.seconds), str(report(0))]]
    share, rate = options.connections // PROCESSES, CONNECTIONS_A_SECOND // PROCESSES
    command = ["slowhttptest", *MODES[mode], "-u", f"http://127.0.0.1:{port}/", "-c", str(share)]
    command += ["-r", str(rate), "-l", str(options.seconds), "-v", "0", "-g", "-o"]
    return [[*command, str(report(number).with_suffix(""))] for number in range(PROCESSES)]


def report(number: int) -> Path:
    """The report of a process of slowhttptest."""
    return OUTPUT / f"slowhttptest-{number}.csv"


@functools.cache
def real_time() -> list[str]:
    """A command prefix for real-time priority, if that is allowed."""
    command = ["chrt", "--fifo", "1"]
    allowed = subprocess.run([*command, "true"], check=False, capture_output=True)
    return command if allowed.returncode == 0 else []


def start_calling(port: int, seconds: int) -> subprocess.Popen:
    body = OUTPUT / "request-0.json"
    body.write_bytes(request.body(0))
    command = [*real_time(), str(LOAD), "--body", str(body), "--connections", str(CALLERS)]
    command += ["--rate", str(CALLS_A_SECOND), "--sleep", "--seconds", str(seconds)]
    _, core = processes.cores()
    return processes.start_pinned([*command, f"127.0.0.1:{port}"], core, stdout=subprocess.PIPE)


def p99s_us(ports: Sequence[int], seconds: int) -> list[float]:
    """The percentiles of calls to several servers at the same time; raises if a call failed."""
    started = [start_calling(port, seconds) for port in ports]
    outputs = [process.communicate(timeout=seconds + 30)[0] for process in started]
    results = [load.parsed(output.decode(errors="replace")) for output in outputs]
    for result in results:
        if result["errors"] or not result["requests"]:
            raise load.LoadError(f"calls failed: {result}")
    return [result["p99"] for result in results]


def p99s_and_held(ports: Sequence[int], seconds: int) -> tuple[list[float], list[int]]:
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


def reported(count: int) -> tuple[int, int]:
    """slowhttptest's report: closed connections, and seconds without a reply to a probe."""
    closed = out_of_service = 0
    for number in range(count):
        with report(number).open(newline="") as file:
            rows = [
                {key.strip(): int(value) for key, value in row.items()}
                for row in csv.DictReader(file)
            ]
        closed += rows[-1]["Closed"]
        out_of_service += sum(row["Service Available"] == 0 for row in rows)
    return closed, out_of_service


def measure(
    server: processes.Server, other: processes.Server, mode: str, options: argparse.Namespace
) -> Figures:
    ports = server.port, other.port
    before = state(server)
    idle, other_idle = p99s_us(ports, IDLE_SECONDS)
    with slow_peers(mode, server.port, options) as started:
        (slow, other_slow), held = p99s_and_held(ports, options.seconds)
        for process in started:
            process.wait(RECOVERY_SECONDS_MAX)
    closed, out_of_service = reported(len(started))
    return Figures(
        idle_p99_us=idle,
        slow_p99_us=slow,
        other_idle_p99_us=other_idle,
        other_slow_p99_us=other_slow,
        held_max=max(held),
        held_at_end=held[-1],
        closed_seen=closed,
        seconds_out_of_service=out_of_service,
        before=before,
        after=state(server),
    )


def figures_of(engine: str, options: argparse.Namespace) -> dict[str, list[dict]]:
    core, _ = processes.cores()
    command = [sys.executable, str(ROOT / "bench/servers/guarded.py"), "--engine", engine]
    command += ["--timeout-s", str(SERVER_TIMEOUT_SECONDS)]
    found: dict[str, list[dict]] = {mode: [] for mode in options.modes.split(",")}
    with (
        processes.serving(command, OUTPUT / f"guarded-{engine}.log", core) as server,
        processes.serving(command, OUTPUT / f"guarded-{engine}-other.log", core) as other,
    ):
        p99s_us([server.port, other.port], 1)
        for _ in range(options.rounds):
            for mode, rounds in found.items():
                rounds.append(asdict(measure(server, other, mode, options)))
                print(f"{engine}, {mode}: {rounds[-1]}", file=sys.stderr, flush=True)
    return found


def table(found: dict[str, dict[str, list[dict]]], connections: int) -> str:
    lines = [
        f"`sum`, {CALLS_A_SECOND:,} calls a second on {CALLERS} connections, beside "
        f"{connections:,} slow ones; every time limit is {SERVER_TIMEOUT_SECONDS} s, on Linux "
        f"{platform.release()}. Medians of the rounds; ratios within a round, with the lowest and "
        "the highest.",
        "",
        "| slowhttptest | engine | p99 alone, µs | p99 beside it, µs | ratio "
        "| ratio of the second server | first ratio / second | slow peers, most | at the end "
        "| closed, as slowhttptest saw | memory before, after, MB | descriptors |",
        "|---" * 12 + "|",
    ]
    for mode in (*MODES, OWN_MODE):
        for engine, modes in found.items():
            if mode in modes:
                lines.append(f"| {mode} | {engine} | {_cells(modes[mode])} |")
    return "\n".join(lines)


def _cells(rounds: list[dict]) -> str:
    first, last = rounds[0]["before"], rounds[-1]["after"]
    cells = [
        f"{_median(rounds, 'idle_p99_us'):,.0f}",
        f"{_median(rounds, 'slow_p99_us'):,.0f}",
        _spread([_ratio(row) for row in rounds]),
        _spread([_other_ratio(row) for row in rounds]),
        _spread([_ratio(row) / _other_ratio(row) for row in rounds]),
        f"{_median(rounds, 'held_max'):,.0f}",
        f"{_median(rounds, 'held_at_end'):,.0f}",
        f"{_median(rounds, 'closed_seen'):,.0f}",
        f"{first['rss_mb']:.1f}, {last['rss_mb']:.1f}",
        f"{first['descriptors']}, {last['descriptors']}",
    ]
    return " | ".join(cells)


def _median(rounds: list[dict], name: str) -> float:
    return statistics.median(row[name] for row in rounds)


def _ratio(row: dict) -> float:
    return row["slow_p99_us"] / row["idle_p99_us"]


def _other_ratio(row: dict) -> float:
    return row["other_slow_p99_us"] / row["other_idle_p99_us"]


def _spread(ratios: list[float]) -> str:
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f}..{max(ratios):.2f})"


def write(page: Path, content: str) -> None:
    """Replaces the table between its marks in the page."""
    before, _, rest = page.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n{content}\n{END}{after}")


def main() -> None:
    options = arguments()
    OUTPUT.mkdir(exist_ok=True)
    processes.pin_to(processes.cores()[1])
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    found = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
    for engine in options.engines.split(","):
        found[engine] = found.get(engine, {}) | figures_of(engine, options)
        FIGURES.write_text(json.dumps(found, indent=1))
    content = table(dict(sorted(found.items())), options.connections)
    print(content)
    write(PAGE, content)


main()
