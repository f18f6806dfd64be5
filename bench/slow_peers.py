"""Calls `sum` while slowhttptest holds thousands of slow connections: `make slow-peers`.

    python bench/slow_peers.py [--engines posix,uring] [--connections N] [--seconds S]

For each engine and mode of slowhttptest: the 99th percentile of `sum` at 32 connections alone,
then while the slow peers are there and are turned out. The server has one core; wrk has the other,
and slowhttptest what wrk leaves of it; what it costs wrk counts as the server's.
Its times are short enough to pass. Keeps the figures in `.bench/slow-peers.json`,
engine by engine, and writes the table of all of them into docs/security.md.
"""

import argparse
import csv
import json
import platform
import resource
import socket
import subprocess
import sys
import threading
import time
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
CONNECTIONS_A_SECOND = 1000
CONNECT_SECONDS_MAX = 6
IDLE_SECONDS = 3
SERVER_TIMEOUT_SECONDS = 8
#: How long the server has until the last connection is gone.
CALM_SECONDS_MAX = 15


@dataclass(frozen=True)
class State:
    """What the server holds when nobody loads it, in MB, and open files and connections."""

    rss_mb: float
    descriptors: int


@dataclass(frozen=True)
class Figures:
    """One mode on one engine."""

    idle_p99_us: float
    slow_p99_us: float
    held_max: int
    held_at_end: int
    closed_seen: int
    seconds_out_of_service: int
    before: State
    after: State


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Calls sum beside thousands of slow peers.")
    parser.add_argument("--engines", default="posix,uring", help="with a comma between them")
    parser.add_argument("--connections", type=int, default=4000, help="slow ones, in each mode")
    parser.add_argument("--seconds", type=int, default=18, help="of each mode (18)")
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


def start_slow_peers(mode: str, port: int, options: argparse.Namespace) -> subprocess.Popen:
    _, core = processes.cores()
    count, seconds = str(options.connections), str(options.seconds)
    if mode == OWN_MODE:
        command = [sys.executable, str(ROOT / "bench/slow_readers.py"), str(port), count, seconds]
        command += [str(OUTPUT / "slowhttptest.csv")]
    else:
        command = ["slowhttptest", *MODES[mode], "-u", f"http://127.0.0.1:{port}/", "-c", count]
        command += ["-r", str(CONNECTIONS_A_SECOND), "-l", seconds, "-v", "0"]
        command += ["-g", "-o", str(OUTPUT / "slowhttptest")]
    # Whenever the load has something to do it goes first, so that it waits for the server alone.
    return processes.start_pinned(
        ["chrt", "--idle", "0", *command],
        core,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


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


def p99_and_held(process: subprocess.Popen, port: int, seconds: int) -> tuple[float, list[int]]:
    """The percentile beside the slow peers, and how many of them there were, second by second."""
    held: list[int] = []

    def watch() -> None:
        while process.poll() is None and time.monotonic() < end:
            held.append(max(open_connections(port) - ROW.connections, 0))
            time.sleep(1)

    end = time.monotonic() + seconds
    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        return p99_us(port, seconds), held
    finally:
        watcher.join()


def reported() -> tuple[int, int]:
    """What slowhttptest saw: connections closed on it, and seconds without an answer to a probe."""
    with (OUTPUT / "slowhttptest.csv").open(newline="") as file:
        rows = [
            {key.strip(): int(value) for key, value in row.items()} for row in csv.DictReader(file)
        ]
    return rows[-1]["Closed"], sum(row["Service Available"] == 0 for row in rows)


def measure(server: processes.Server, mode: str, options: argparse.Namespace) -> Figures:
    before = state(server)
    idle = p99_us(server.port, IDLE_SECONDS)
    process = start_slow_peers(mode, server.port, options)
    try:
        started = time.monotonic()
        await_peers(server.port, options.connections)
        seconds = options.seconds - round(time.monotonic() - started)
        slow, held = p99_and_held(process, server.port, seconds)
        process.wait(CALM_SECONDS_MAX)
    finally:
        process.kill()
        process.wait()
    closed, out_of_service = reported()
    return Figures(idle, slow, max(held), held[-1], closed, out_of_service, before, state(server))


def figures_of(engine: str, options: argparse.Namespace) -> dict[str, dict]:
    core, _ = processes.cores()
    command = [sys.executable, str(ROOT / "bench/servers/guarded.py"), "--engine", engine]
    command += ["--timeout-s", str(SERVER_TIMEOUT_SECONDS)]
    found = {}
    with processes.serving(command, OUTPUT / f"guarded-{engine}.log", core) as server:
        p99_us(server.port, 1)
        for mode in (*MODES, OWN_MODE):
            found[mode] = asdict(measure(server, mode, options))
            print(f"{engine}, {mode}: {found[mode]}", file=sys.stderr, flush=True)
    return found


def table(found: dict[str, dict[str, dict]], connections: int) -> str:
    lines = [
        f"`sum` at {ROW.connections} connections beside {connections:,} slow ones, every time "
        f"limit {SERVER_TIMEOUT_SECONDS} s, on Linux {platform.release()}.",
        "",
        "| slowhttptest | engine | p99 alone, µs | p99 beside it, µs | ratio | slow ones at most "
        "| at the end | closed, as it saw | memory before, after, MB | descriptors |",
        "|---" * 10 + "|",
    ]
    for mode in (*MODES, OWN_MODE):
        for engine, modes in found.items():
            lines.append(f"| {mode} | {engine} | {_cells(modes[mode])} |")
    return "\n".join(lines)


def _cells(row: dict) -> str:
    before, after = row["before"], row["after"]
    cells = [
        f"{row['idle_p99_us']:,.0f}",
        f"{row['slow_p99_us']:,.0f}",
        f"{row['slow_p99_us'] / row['idle_p99_us']:.2f}",
        f"{row['held_max']:,}",
        f"{row['held_at_end']:,}",
        f"{row['closed_seen']:,}",
        f"{before['rss_mb']:.1f}, {after['rss_mb']:.1f}",
        f"{before['descriptors']}, {after['descriptors']}",
    ]
    return " | ".join(cells)


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
        found[engine] = figures_of(engine, options)
        FIGURES.write_text(json.dumps(found, indent=1))
    content = table(dict(sorted(found.items())), options.connections)
    print(content)
    write(PAGE, content)


main()
