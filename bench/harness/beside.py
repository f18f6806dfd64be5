"""Fast calls beside slow ones, and async functions beside plain ones, at 32 connections.

The load is `floor/beside.c`. Each round runs all servers one after another, and a ratio is computed
within its round.
"""

import statistics
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from harness import processes
from harness.rows import OUTPUT

#: A name, and the command of a server that announces its port.
Contender = tuple[str, list[str]]
Log = Callable[[str], None]

SLEEPERS = 100
SECONDS = 1.0


def load(port: int, sleepers: int, method: str = "sum") -> tuple[float, float, float]:
    """Calls a second, and the median and 99th percentile of their latency in microseconds."""
    command = [str(OUTPUT / "beside"), str(port), str(sleepers), str(SECONDS), method]
    _, core = processes.cores()
    process = processes.start_pinned(command, core, stdout=subprocess.PIPE, text=True)
    output, _ = process.communicate(timeout=SECONDS + 30)
    if process.returncode:
        raise SystemExit(f"{command} failed")
    rate, median, p99 = map(float, output.split())
    return rate, median, p99


@contextmanager
def all_serving(contenders: list[Contender]) -> Iterator[dict[str, int]]:
    """Starts all servers and yields their ports by name; only the one under load is busy."""
    core, _ = processes.cores()
    with ExitStack() as stack:
        ports = {}
        for name, command in contenders:
            server = processes.serving(command, OUTPUT / "beside.log", core)
            ports[name] = stack.enter_context(server).port
        yield ports


def beside_sleepers(contenders: list[Contender], rounds: int, log: Log) -> str:
    """The 99th percentile of `sum` alone, and while sleeping calls wake at the same moment."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name, _ in contenders}
    with all_serving(contenders) as ports:
        for number in range(rounds):
            for name, port in ports.items():
                found[name].append((load(port, 0)[2], load(port, SLEEPERS)[2]))
            log(f"beside sleepers: round {number + 1} of {rounds}")
    lines = [
        f"| `sum` at 32 connections | p99 alone µs | p99 beside {SLEEPERS} sleepers µs | ratio |",
        "|---|---|---|---|",
    ]
    for name, rows in found.items():
        alone, beside = (statistics.median(row[index] for row in rows) for index in (0, 1))
        ratio = _quartiles([after / before for before, after in rows])
        lines.append(f"| {name} | {alone:.0f} | {beside:.0f} | {ratio} |")
    return "\n".join(lines)


def async_share(contenders: list[Contender], rounds: int, log: Log) -> str:
    """The ratio of an async function's calls a second to a plain one's."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name, _ in contenders}
    with all_serving(contenders) as ports:
        for number in range(rounds):
            for name, port in ports.items():
                found[name].append((load(port, 0)[0], load(port, 0, "sum_async")[0]))
            log(f"async and plain: round {number + 1} of {rounds}")
    lines = [
        "| `sum` at 32 connections | plain, calls/s | async, calls/s | ratio |",
        "|---|---|---|---|",
    ]
    for name, rows in found.items():
        plain, of_async = (statistics.median(row[index] for row in rows) for index in (0, 1))
        ratio = _quartiles([after / before for before, after in rows])
        lines.append(f"| {name} | {plain:,.0f} | {of_async:,.0f} | {ratio} |")
    return "\n".join(lines)


def _quartiles(ratios: list[float]) -> str:
    if len(ratios) < 2:
        return f"{ratios[0]:.2f}"
    low, median, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return f"{median:.2f} [{low:.2f}, {high:.2f}]"
