"""Calls `sum` while slowhttptest holds thousands of slow connections: `make slow-peers`.

    python bench/slow_peers.py [--engines posix,uring] [--modes "slow body,…"] [--rounds N]
        [--connections N] [--seconds S]

For each engine and mode of slowhttptest, in rounds: the 99th percentile of `sum` at 32 connections
alone; while the slow peers are there and are turned out; and while the same peers are at another
server, a process of its own on the same core, which shows what they cost the machine. The server
has one core; wrk has the other, and slowhttptest what wrk leaves of it, in several processes: the
kernel does not interrupt a poll of thousands of sockets, so one alone would hold wrk up itself.
Its times are short enough to pass. Keeps the figures in `.bench/slow-peers.json`, by engine and
mode, and writes the table of all of them into docs/security.md.
"""

import argparse
import csv
import json
import platform
import resource
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from harness import load, processes, usage
from harness.rows import OUTPUT, ROOT, ROWS

ROW = ROWS["headline"]
PAGE = ROOT / "docs/security.md"
FIGURES = OUTPUT / "slow-peers.json"
BEGIN = "<!-- slow peers: made by `make slow-peers` -->"
END = "<!-- end of slow peers -->"

#: Each writes or reads a little every few seconds, so that the connection never looks idle.
MODES = {
    "slow headers": ["-H", "-t", "POST", "-i", "3"],
    "slow body": ["-B", "-i", "3", "-s", "4096"],
    "slow read": ["-X", "-k", "10", "-n", "3", "-z", "5", "-w", "1", "-y", "64"],
}
#: GETs are refused, so that slowhttptest gets no long reply that it could read slowly.
OWN_MODE = "slow read of 100 kB"
CONNECTIONS_A_SECOND = 2000
CONNECT_SECONDS_MAX = 4
IDLE_SECONDS = 2
SERVER_TIMEOUT_SECONDS = 5
#: Processes of slowhttptest, each with its share of the connections.
PROCESSES = 8
#: How long the server has until the last connection is gone.
CALM_SECONDS_MAX = 15


@dataclass(frozen=True)
class State:
    """What the server holds when nobody loads it, in MB, and open files and connections."""

    rss_mb: float
    descriptors: int


@dataclass(frozen=True)
class Figures:
    """One round of one mode on one engine."""

    idle_p99_us: float
    slow_p99_us: float
    elsewhere_p99_us: float
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
    parser.add_argument("--rounds", type=int, default=3, help="of which medians are shown (3)")
    parser.add_argument("--connections", type=int, default=4000, help="slow ones, in each mode")
    parser.add_argument("--seconds", type=int, default=9, help="of each mode (9)")
    return parser.parse_args()


def open_connections(port: int) -> int:
    """How many connections the server has, besides that of this question."""
    question = b'{"jsonrpc":"2.0","method":"connections","id":1}'
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(question)
        return json.loads(connection.makefile("rb").readline())["result"] - 1


def state(server: processes.Server) -> State:
    """Once all connections have ended. io_uring keeps them in a table that /proc does not show."""
    deadline = time.monotonic() + CALM_SECONDS_MAX
    while (connections := open_connections(server.port)) and time.monotonic() < deadline:
        time.sleep(0.1)
    files = len(list(Path(f"/proc/{server.pid}/fd").iterdir()))
    return State(usage.memory(server.pid).now_mb, max(files, files + connections))


@contextmanager
def slow_peers(
    mode: str, port: int, options: argparse.Namespace
) -> Iterator[list[subprocess.Popen]]:
    """Their processes, which are ended with the block."""
    _, core = processes.cores()
    # Whenever the load has something to do it goes first, so that it waits for the server alone.
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
    """Where a process of slowhttptest says what it saw."""
    return OUTPUT / f"slowhttptest-{number}.csv"


def p99_us(port: int, seconds: int) -> float:
    """Refuses a load of which a call failed."""
    result = load.wrk(ROW, port, seconds, None)
    load.refuse_errors(result)
    return result["p99"]


def await_peers(port: int, count: int) -> None:
    """Until they are all there, or have been turned out so fast that they never are."""
    deadline = time.monotonic() + CONNECT_SECONDS_MAX
    while open_connections(port) < count and time.monotonic() < deadline:
        time.sleep(0.1)


def p99_and_held(port: int, slow_port: int, seconds: int) -> tuple[float, list[int]]:
    """The percentile beside the slow peers, and how many of them there were, second by second."""
    held: list[int] = []
    others = ROW.connections if port == slow_port else 0

    def watch() -> None:
        while time.monotonic() < end:
            held.append(max(open_connections(slow_port) - others, 0))
            time.sleep(1)

    end = time.monotonic() + seconds
    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        return p99_us(port, seconds), held
    finally:
        watcher.join()


def reported(count: int) -> tuple[int, int]:
    """What slowhttptest saw: connections closed on it, and seconds without an answer to a probe."""
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


def beside(
    mode: str, port: int, slow_port: int, options: argparse.Namespace
) -> tuple[float, list[int], int, int]:
    """The percentile of the server at `port` in the seconds that are left once slow peers are at
    that at `slow_port`; how many there were; and what they report."""
    with slow_peers(mode, slow_port, options) as started:
        began = time.monotonic()
        await_peers(slow_port, options.connections)
        seconds = options.seconds - round(time.monotonic() - began)
        p99, held = p99_and_held(port, slow_port, seconds)
        for process in started:
            process.wait(CALM_SECONDS_MAX)
    return p99, held, *reported(len(started))


def measure(
    server: processes.Server, other: processes.Server, mode: str, options: argparse.Namespace
) -> Figures:
    before = state(server)
    idle = p99_us(server.port, IDLE_SECONDS)
    slow, held, closed, out_of_service = beside(mode, server.port, server.port, options)
    after = state(server)
    elsewhere, *_ = beside(mode, server.port, other.port, options)
    state(other)
    return Figures(
        idle, slow, elsewhere, max(held), held[-1], closed, out_of_service, before, after
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
        p99_us(server.port, 1)
        for _ in range(options.rounds):
            for mode, rounds in found.items():
                rounds.append(asdict(measure(server, other, mode, options)))
                print(f"{engine}, {mode}: {rounds[-1]}", file=sys.stderr, flush=True)
    return found


def table(found: dict[str, dict[str, list[dict]]], connections: int) -> str:
    lines = [
        f"`sum` at {ROW.connections} connections beside {connections:,} slow ones, every time "
        f"limit {SERVER_TIMEOUT_SECONDS} s, on Linux {platform.release()}. Medians of the rounds; "
        "ratios to the p99 alone of the same round, with the lowest and the highest.",
        "",
        "| slowhttptest | engine | p99 alone, µs | p99 beside it, µs | ratio "
        "| ratio while it is at another server | slow ones at most "
        "| at the end | closed, as it saw | memory before, after, MB | descriptors |",
        "|---" * 11 + "|",
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
        _ratio(rounds, "slow_p99_us"),
        _ratio(rounds, "elsewhere_p99_us"),
        f"{_median(rounds, 'held_max'):,.0f}",
        f"{_median(rounds, 'held_at_end'):,.0f}",
        f"{_median(rounds, 'closed_seen'):,.0f}",
        f"{first['rss_mb']:.1f}, {last['rss_mb']:.1f}",
        f"{first['descriptors']}, {last['descriptors']}",
    ]
    return " | ".join(cells)


def _median(rounds: list[dict], name: str) -> float:
    return statistics.median(row[name] for row in rounds)


def _ratio(rounds: list[dict], name: str) -> str:
    ratios = [row[name] / row["idle_p99_us"] for row in rounds]
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f}..{max(ratios):.2f})"


def write(page: Path, content: str) -> None:
    """Puts the table between its marks in the page."""
    before, _, rest = page.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n{content}\n{END}{after}")


def main() -> None:
    options = arguments()
    OUTPUT.mkdir(exist_ok=True)
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
