"""Measures the cost of concurrency, in about six minutes.

`share` is the ratio of an async function's rate to a plain one's. `beside` is the latency of `sum`
while other calls sleep. `embeddings` is the gain of batching for a model of sentence embeddings.
`sleepers` runs handlers that sleep under `ab`: ucall's, an ideal server in C, and FastAPI's; their
percentiles also go to `.bench/sleepers.json`, and their cumulative distributions to
docs/concurrency.svg.

The server has one core and the load another: on a shared core every server takes milliseconds
longer. `ab` prints whole milliseconds, so its `-e` output is used, which is exact. The load of
`share` and `beside` is `floor/beside.c`, with 32 connections.
"""

import argparse
import concurrent.futures
import contextlib
import functools
import socket
import statistics
import time
from collections.abc import Callable, Iterator

from bench import OUTPUT, ROOT
from bench.harness import figures, processes, request
from bench.harness.figures import Column, Sample, spread
from bench.render.lines import Axis, Panel, lines
from bench.suite.plan import SINGLE
from bench.suite.servers import Server, python_peer, served

ROUNDS = 5
HAS_ENGINES = True
SLEEP_MS = 100
SLEEPERS, BESIDE_SECONDS = 100, 1.0
CALL = b'{"jsonrpc":"2.0","method":"sleep","id":1}'
#: Calls, connections, and whether connections are kept. The last load varies most, so it runs
#: twice.
LOADS = [(1000, 100, True), (1000, 100, False), (5000, 1000, True), (5000, 1000, True)]
#: What servers that use threads cannot hold.
MANY_CONNECTIONS = 1000
IDEAL = "ideal C"
FASTAPI = python_peer("sleeper", "FastAPI", "fastapi_sleep")


def ours(engine: str, kind: str = "async") -> tuple[str, ...]:
    return served("sleeper", "--engine", engine, "--kind-of-sleep", kind)


def ideal() -> tuple[str, ...]:
    return (str(OUTPUT / "floor-sleeper"), str(SLEEP_MS))


def beside_load(port: int, sleepers: int, method: str = "sum") -> Sample:
    """Calls a second, and the median and 99th percentile of their latency in microseconds."""
    command = [OUTPUT / "floor-beside", port, sleepers, BESIDE_SECONDS, method]
    output = processes.run_load(command, BESIDE_SECONDS)
    return dict(zip(("rate", "p50", "p99"), map(float, output.split()), strict=True))


@contextlib.contextmanager
def all_serving(commands: dict[str, tuple[str, ...]]) -> Iterator[dict[str, int]]:
    """Starts all servers and yields their ports by name; only the one under load is busy."""
    with contextlib.ExitStack() as stack:
        yield {
            name: stack.enter_context(processes.serving(command, "sleepers")).port
            for name, command in commands.items()
        }


def compare(
    ports: dict[str, int], sides: dict[str, Callable[[int], float]], rounds: int, title: str
) -> None:
    """Prints two figures of each server, and their ratio."""

    def measure(port: int) -> Sample:
        found = {name: side(port) for name, side in sides.items()}
        base, other = found.values()
        return {**found, "ratio": other / base}

    turns = {name: functools.partial(measure, port) for name, port in ports.items()}
    columns = [*(Column(name, name, "{:,.0f}") for name in sides), RATIO]
    runs = figures.in_turns(turns, rounds, title)
    print(figures.table_of(runs, columns, title), end="\n\n", flush=True)


RATIO = Column("ratio", "ratio", kind=spread)
AT_32 = "`sum` at 32 connections"


def beside(options: argparse.Namespace) -> None:
    """The 99th percentile of `sum` alone, and while sleeping calls wake at the same moment."""
    commands = {IDEAL: ideal(), **{f"ucall {it}": ours(it) for it in options.engines}}
    sides = {
        "p99 alone µs": lambda port: beside_load(port, 0)["p99"],
        f"p99 beside {SLEEPERS} sleepers µs": lambda port: beside_load(port, SLEEPERS)["p99"],
    }
    with all_serving(commands) as ports:
        compare(ports, sides, options.rounds, AT_32)


def share(options: argparse.Namespace) -> None:
    """The ratio of an async function's calls a second to a plain one's."""
    sides = {
        "plain, calls/s": lambda port: beside_load(port, 0)["rate"],
        "async, calls/s": lambda port: beside_load(port, 0, "sum_async")["rate"],
    }
    with all_serving({f"ucall {it}": ours(it) for it in options.engines}) as ports:
        compare(ports, sides, options.rounds, AT_32)


EMBEDDINGS = OUTPUT / "embeddings/bin/python"
CONNECTIONS = 32
CALL_SECONDS = 3.0


def embeddings(options: argparse.Namespace) -> None:
    if not EMBEDDINGS.exists():
        print("Embeddings were not measured: `make bench-embeddings` installs the model.\n")
        return
    environment = {"HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT / "examples/embeddings")}
    sides = {
        "one by one, calls/s": lambda port: _rate(port, "embed_one_by_one"),
        "batched": lambda port: _rate(port, "embed"),
    }
    for engine in options.engines:
        port = processes.free_port()
        command = [EMBEDDINGS, "-m", "ucall", "embeddings:server", "--engine", engine]
        command += ["--port", port]
        with processes.serving_on(command, port, "embeddings", environment, 60):
            request.exchange(port, request.post(request.call("embed", "a")), 60)
            title = f"embeddings at {CONNECTIONS} connections"
            compare({f"ucall {engine}": port}, sides, min(options.rounds, 3), title)


def _rate(port: int, method: str) -> float:
    """Calls a second of concurrent callers, each of which waits for its reply."""
    ends_at = time.monotonic() + CALL_SECONDS

    def caller(number: int) -> int:
        count = 0
        with socket.create_connection(("127.0.0.1", port)) as wire:
            replies = wire.makefile("rb")
            while time.monotonic() < ends_at:
                text = f"caller {number} says sentence {count}"
                wire.sendall(request.call(method, text))
                reply = replies.readline()
                if b'"result"' not in reply:
                    raise processes.LoadError(f"{method}: {reply[:200]!r}")
                count += 1
        return count

    with concurrent.futures.ThreadPoolExecutor(CONNECTIONS) as callers:
        return sum(callers.map(caller, range(CONNECTIONS))) / CALL_SECONDS


def sleeping(engines: list[str]) -> dict[str, tuple[Server, str]]:
    """Each server, and the path that it sleeps at."""
    found = {IDEAL: (Server("sleeper", IDEAL, "floor", ideal()), "/")}
    for engine in engines:
        for kind in ("async", "threads"):
            server = Server("sleeper", "", "ours", ours(engine, kind))
            found[f"ucall {engine}, {kind}"] = server, "/"
    if FASTAPI.is_there:
        found["FastAPI, async def"] = FASTAPI, "/async"
        found["FastAPI, def"] = FASTAPI, "/def"
    return found


def percentiles(url: str, calls: int, connections: int, keep: bool) -> list[float]:
    """The latency in milliseconds at each percentile from 0 to 100."""
    body, table = OUTPUT / "sleep.json", OUTPUT / "ab.csv"
    body.write_bytes(CALL)
    command = ["ab", "-q", "-n", calls, "-c", connections, "-e", table, "-p", body]
    processes.run_load([*command, "-T", "application/json", *(["-k"] if keep else []), url], 600)
    return [float(line.split(",")[1]) for line in table.read_text().splitlines()[1:]]


#: The percentiles of each run, by load and server.
Percentiles = dict[str, dict[str, list[list[float]]]]


def measure_sleepers(name: str, server: Server, path: str, runs: Percentiles) -> None:
    with server.running(SINGLE) as running:
        url = f"http://127.0.0.1:{running.port}{path}"
        request.exchange(running.port, request.post(CALL, path=path), 60)
        for calls, connections, keep in LOADS:
            if name.endswith(("threads", ", def")) and connections >= MANY_CONNECTIONS:
                continue
            load = f"-n {calls} -c {connections}{' -k' if keep else ''}"
            found = percentiles(url, calls, connections, keep)
            runs.setdefault(load, {}).setdefault(name, []).append(found)


def sleepers(options: argparse.Namespace) -> None:
    runs: Percentiles = {}
    for number in range(options.rounds):
        for name, (server, path) in sleeping(options.engines).items():
            measure_sleepers(name, server, path, runs)
        figures.log(f"sleepers: round {number + 1} of {options.rounds}")
    figures.write(figures.part("sleepers"), runs)
    medians = {
        load: {
            name: list(map(statistics.median, zip(*each, strict=True))) for name, each in by.items()
        }
        for load, by in runs.items()
    }
    (ROOT / "docs/concurrency.svg").write_text(chart(medians))
    rows = []
    for load, by_server in medians.items():
        for name, at in by_server.items():
            pairs = zip(runs[load][name], runs[load][IDEAL], strict=True)
            over = [run[95] - other[95] for run, other in pairs]
            shown = f"{statistics.median(over):+.1f} ({min(over):+.1f}..{max(over):+.1f})"
            rows.append([f"`{load}`, {name}", *(f"{at[it]:.1f}" for it in (50, 95, 99)), shown])
    header = ["`ab`, server", "p50 ms", "p95 ms", "p99 ms", "p95 over the ideal"]
    print(figures.table(header, rows), end="\n\n", flush=True)


def chart(results: dict[str, dict[str, list[float]]]) -> str:
    """The cumulative share of calls by the time from the handler's end to the reply."""
    late = Axis(0.1, 1000, {0.1: "0.1", 1: "1", 10: "10", 100: "100", 1000: "1,000 ms"}, True)
    share = Axis(0, 100, {0: "0", 50: "50 %", 95: "95 %"})
    panels = [
        Panel(
            f"ab {load}: reply in ms after the sleep of {SLEEP_MS} ms",
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


PARTS = {it.__name__: it for it in (share, beside, embeddings, sleepers)}


def run(options: argparse.Namespace) -> None:
    for name in options.only:
        PARTS[name](options)
