"""User instructions and system calls of a call, which hardly vary between runs.

A server runs twice under the tool, with few requests and with many. The difference is the cost of
the requests, without start and stop. There is one connection, with one request at a time. Address
space randomisation and hash randomisation are off, so that starts are alike.

Callgrind counts exactly, and only on epoll: valgrind 3.19 delivers no signal to a process that
waits in a ring, so the server could not be ended. perf counts on both engines if the machine grants
it the counters, and varies a little between runs.
"""

import functools
import http.client
import itertools
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from bench import OUTPUT
from bench.harness import processes, request
from bench.suite import servers
from bench.suite.plan import SINGLE
from bench.suite.servers import Server

REPORT_SECONDS_MAX = 10
PART_SECONDS = 8.0


class ToolError(Exception):
    """The tool is missing, or the server does not run under it."""


FAILURES = (
    ToolError,
    processes.StartError,
    request.WrongReplyError,
    OSError,
    http.client.HTTPException,
)
#: Counts by which two runs may differ, whatever the requests.
STRAY = 5


@dataclass(frozen=True)
class Figures:
    """The cost of each call, and the reasons for missing figures. Instructions are by tool."""

    instructions: dict[str, float]
    system_calls: dict[str, float]
    notes: list[str]


Totals = dict[str, int]
Parser = Callable[[str], Totals]


@dataclass(frozen=True)
class Tool:
    """A program that runs another and writes totals to a file when it has ended."""

    name: str
    prefix: tuple[str, ...]
    file_option: str
    parse: Parser
    #: The requests of the shorter run, a tenth of those that the longer one has beyond them.
    few: int = 1000

    def wrap(self, command: Sequence[str], report: Path) -> list[str]:
        return [*self.prefix, self.file_option.format(report), *command]


def callgrind_totals(report: str) -> Totals:
    return {"instructions": number_after(r"^totals: (\d+)", report)}


def perf_totals(report: str) -> Totals:
    return {"instructions": number_after(r"^(\d+),,instructions:u", report)}


def number_after(pattern: str, report: str) -> int:
    """perf writes `<not supported>` where a virtual machine has no counters."""
    found = re.search(pattern, report, re.MULTILINE)
    if not found:
        raise ToolError(f"no total in its report: {report.strip()[:200]}")
    return int(found[1])


def strace_totals(report: str) -> Totals:
    """The columns are: % time, seconds, usecs/call, calls, errors (may be empty), name."""
    rows = (line.split() for line in report.splitlines()[2:])
    rows = (row for row in rows if len(row) >= 5 and row[3].isdigit())
    return {row[-1]: int(row[3]) for row in rows if row[-1] != "total"}


CALLGRIND = Tool(
    "callgrind",
    ("valgrind", "--tool=callgrind", "--quiet"),
    "--callgrind-out-file={}",
    callgrind_totals,
)
PERF = Tool("perf", ("perf", "stat", "-x,", "-e", "instructions:u"), "--output={}", perf_totals)
#: It stops the server at each system call, and counts few of them as exactly as many.
STRACE = Tool("strace", ("strace", "-f", "-c"), "--output={}", strace_totals, few=200)


def figures(server: Server, sent: Sequence[bytes] = (request.http_request(0),)) -> Figures:
    """What a call costs. These requests of one call each are sent in turn."""
    notes: list[str] = []
    costs = {tool: try_tool(tool, server, sent, notes) for tool in tools_for(server)}
    system_calls = costs.pop(STRACE)
    instructions = {tool.name: cost["instructions"] for tool, cost in costs.items() if cost}
    return Figures(instructions, system_calls, notes)


def tools_for(server: Server) -> tuple[Tool, ...]:
    return (PERF, STRACE) if server.name.endswith("uring") else (CALLGRIND, PERF, STRACE)


def try_tool(
    tool: Tool, server: Server, sent: Sequence[bytes], notes: list[str]
) -> dict[str, float]:
    try:
        return a_call(tool, server, sent)
    except FAILURES as error:
        notes.append(f"{server.label} under {tool.name}: {error}")
        return {}


def a_call(tool: Tool, server: Server, sent: Sequence[bytes]) -> dict[str, float]:
    """The difference of two runs, divided by the calls between them."""
    if not shutil.which(tool.prefix[0]):
        raise ToolError(f"{tool.prefix[0]} is not installed")
    if reason := why_it_counts_nothing(tool):
        raise ToolError(reason)
    steps = 10 * tool.few
    few, many = (totals(tool, server, sent, count) for count in (tool.few, tool.few + steps))
    costs = {name: (count - few.get(name, 0)) / steps for name, count in many.items()}
    return {name: cost for name, cost in costs.items() if abs(cost) > STRAY / steps}


@functools.cache
def why_it_counts_nothing(tool: Tool) -> str | None:
    """Why the tool has no total of a program that ends at once, such as perf without counters."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report"
        done = subprocess.run(tool.wrap(["true"], report), capture_output=True, text=True)
        try:
            tool.parse(complete_report(report) if done.returncode == 0 else done.stderr)
        except ToolError as error:
            return str(error)
    return None


def totals(tool: Tool, server: Server, sent: Sequence[bytes], requests: int) -> Totals:
    report = OUTPUT / f"{tool.name}.{server.name}"
    report.unlink(missing_ok=True)
    command = [*same_each_time(), *tool.wrap(server.command_for(SINGLE), report)]
    with processes.serving(command, f"{server.name}.{tool.name}") as running:
        request.probe_until_ready(running.port, 0, 30)
        exchange_in_turn(running.port, sent, requests)
    return tool.parse(complete_report(report))


def same_each_time() -> list[str]:
    """A command prefix that turns randomisation off, so that runs of a program are alike."""
    fixed_addresses = ["setarch", "-R"] if shutil.which("setarch") else []
    return ["env", "PYTHONHASHSEED=0", *fixed_addresses]


def complete_report(report: Path) -> str:
    deadline = time.monotonic() + REPORT_SECONDS_MAX
    while not report.exists() or report.stat().st_size == 0:
        if time.monotonic() > deadline:
            raise ToolError("it wrote no report")
        time.sleep(0.05)
    return report.read_text(errors="replace")


def exchange_in_turn(port: int, sent: Sequence[bytes], requests: int) -> None:
    """Sends the requests in turn, as often as needed, one at a time."""
    with request.connect(port) as connection:
        for asked in itertools.islice(itertools.cycle(sent), requests):
            status, _ = request.exchange_on(connection, asked)
            if status != http.client.OK:
                raise ToolError(f"status {status}")


def counts(server: Server) -> list[dict]:
    return [{"server": server.name, **asdict(figures(server))}]


def parts() -> dict[str, Callable[[], list[dict]]]:
    chosen = [*servers.floors("http"), *servers.ours("http")]
    return {server.label: partial(counts, server) for server in chosen}
