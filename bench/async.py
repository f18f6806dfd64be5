"""Measures the cost of concurrency: four tables, in about six minutes.

    python bench/async.py --rounds 5 --only sleepers

`sleepers` runs handlers that sleep under `ab`: ucall's, an ideal server in C, and FastAPI's.
`beside` is the latency of `sum` while other calls sleep. `share` is the ratio of an async
function's rate to a plain one's. `embeddings` is the gain of batching. The percentiles of the
sleepers also go to `.bench/async.json`, and their cumulative distributions to
`docs/concurrency.svg`.

A round runs all servers in turn, because machines drift, and the difference to the ideal is
computed within a round. The server has one core and the load another: on a shared core every server
takes milliseconds longer. `ab` prints whole milliseconds, so its `-e` output is used, which is
exact.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

from harness import beside, embeddings, processes
from render.lines import Axis, Panel, lines

ROOT = Path(__file__).resolve().parents[1]
BENCH = ROOT / ".bench"
CALL = '{"jsonrpc":"2.0","method":"sleep","id":1}'
SLEEP_MS = 100.0
BEGAN = time.monotonic()

Server = tuple[str, list[str], str]
"""A name, a command that ends with the port, and the path to call."""

#: Percentiles of the calls' times in milliseconds, from 0 to 100.
Percentiles = list[float]
Runs = dict[str, dict[str, list[Percentiles]]]
"""The percentiles of each run, by load and server."""

#: Calls, connections, and whether connections are kept. The last load varies most, so it runs
#: twice.
LOADS = [(1000, 100, True), (1000, 100, False), (5000, 1000, True), (5000, 1000, True)]


def servers(engines: list[str]) -> list[Server]:
    script = [sys.executable, str(ROOT / "bench/servers/sleeper.py")]
    found: list[Server] = [("ideal C", [str(BENCH / "floor-sleeper")], "/")]
    for engine in engines:
        for kind in ("async", "threads"):
            flags = ["--engine", engine, "--kind", kind, "--port"]
            found.append((f"ucall {engine}, {kind}", [*script, *flags], "/"))
    python = BENCH / "fastapi/bin/python"
    if python.exists():
        command = [str(python), str(ROOT / "bench/servers/sleeper_fastapi.py")]
        found += [("FastAPI, async def", command, "/async"), ("FastAPI, def", command, "/def")]
    return found


def started(command: list[str], port: int, path: str) -> subprocess.Popen[bytes]:
    arguments = [*command, str(port)] + (["100"] if command[0].endswith("sleeper") else [])
    core, _ = processes.cores()
    process = processes.start_pinned(arguments, core, stdout=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}{path}"
    for _ in range(100):
        try:
            request = urllib.request.Request(url, CALL.encode())
            urllib.request.urlopen(request, timeout=5).read()
            return process
        except OSError:
            time.sleep(0.1)
    process.kill()
    raise SystemExit(f"{command} does not answer")


def percentiles(port: int, path: str, calls: int, connections: int, keep: bool) -> Percentiles:
    """The latency in milliseconds at each percentile from 0 to 100."""
    body, table = BENCH / "sleep.json", BENCH / "ab.csv"
    body.write_text(CALL)
    command = ["ab", "-q", "-n", str(calls), "-c", str(connections), "-e", str(table)]
    command += ["-p", str(body), "-T", "application/json", *(["-k"] if keep else [])]
    _, core = processes.cores()
    load = processes.start_pinned(
        [*command, f"http://127.0.0.1:{port}{path}"], core, stdout=subprocess.DEVNULL
    )
    if load.wait():
        raise SystemExit(f"{command} failed")
    return [float(line.split(",")[1]) for line in table.read_text().splitlines()[1:]]


def measured(rounds: int, all_servers: list[Server]) -> Runs:
    runs: Runs = {}
    for number in range(rounds):
        for index, (name, command, path) in enumerate(all_servers):
            port = 18_600 + index
            process = started(command, port, path)
            try:
                for calls, connections, keep in LOADS:
                    if ("threads" in name or name.endswith(", def")) and connections > 100:
                        continue
                    load = f"-n {calls} -c {connections}{' -k' if keep else ''}"
                    found = percentiles(port, path, calls, connections, keep)
                    runs.setdefault(load, {}).setdefault(name, []).append(found)
            finally:
                process.kill()
                process.wait()
        log(f"sleepers: round {number + 1} of {rounds}")
    return runs


def medians(runs: Runs) -> dict[str, dict[str, Percentiles]]:
    """The median of each percentile over the runs."""
    median: Callable[[tuple[float, ...]], float] = statistics.median
    return {
        load: {name: [median(at) for at in zip(*each, strict=True)] for name, each in by.items()}
        for load, by in runs.items()
    }


def table(runs: Runs) -> str:
    lines = ["| `ab` | server | p50 ms | p95 ms | p99 ms | p95 over the ideal |"]
    lines.append("|---|---|---|---|---|---|")
    for load, by_server in medians(runs).items():
        ideals = runs[load]["ideal C"]
        for name, at in by_server.items():
            pairs = zip(runs[load][name], ideals, strict=True)
            over = [run[95] - ideal[95] for run, ideal in pairs]
            figures = f"{at[50]:.1f} | {at[95]:.1f} | {at[99]:.1f} | {shown(over)}"
            lines.append(f"| `{load}` | {name} | {figures} |")
    return "\n".join(lines)


def shown(over_ms: list[float]) -> str:
    """The median, and the lowest and the highest."""
    middle = f"{statistics.median(over_ms):+.1f}"
    return f"{middle} ({min(over_ms):+.1f}..{max(over_ms):+.1f})" if any(over_ms) else middle


def log(line: str) -> None:
    print(f"{time.monotonic() - BEGAN:4.0f} s  {line}", file=sys.stderr)


def ours(engines: list[str]) -> list[beside.Contender]:
    script = [sys.executable, str(ROOT / "bench/servers/sleeper.py"), "--kind", "async"]
    return [(f"ucall {engine}", [*script, "--engine", engine]) for engine in engines]


def sleepers(rounds: int, engines: list[str]) -> str:
    runs = measured(rounds, servers(engines))
    (BENCH / "async.json").write_text(json.dumps(runs))
    (ROOT / "docs/concurrency.svg").write_text(chart(medians(runs)))
    return table(runs)


def chart(results: dict[str, dict[str, Percentiles]]) -> str:
    """The cumulative share of calls by the time from the handler's end to the reply."""
    late = Axis(0.1, 1000, {0.1: "0.1", 1: "1", 10: "10", 100: "100", 1000: "1,000 ms"}, True)
    share = Axis(0, 100, {0: "0", 50: "50 %", 95: "95 %"})
    panels = [
        Panel(
            f"ab {load}: reply in ms after the sleep of {SLEEP_MS:.0f} ms",
            late,
            share,
            {
                name: [(at - SLEEP_MS, percent) for percent, at in enumerate(found)]
                for name, found in by_server.items()
            },
        )
        for load, by_server in results.items()
    ]
    names = dict.fromkeys(name for by_server in results.values() for name in by_server)
    return lines(panels, dashed=[name for name in names if not name.startswith("ucall")])


def main() -> None:
    parts: dict[str, Callable[[int, list[str]], str]] = {
        "share": lambda rounds, engines: beside.async_share(ours(engines), rounds, log),
        "beside": lambda rounds, engines: beside.beside_sleepers(
            [("ideal C", [str(BENCH / "floor-sleeper"), "0", "100"]), *ours(engines)], rounds, log
        ),
        "embeddings": lambda rounds, engines: embeddings.gain(min(rounds, 3), engines),
        "sleepers": sleepers,
    }
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--engines", nargs="+", default=["posix", "uring"])
    parser.add_argument("--only", nargs="+", choices=parts, default=list(parts))
    chosen = parser.parse_args()
    for name in chosen.only:
        print(parts[name](chosen.rounds, chosen.engines), end="\n\n", flush=True)


main()
