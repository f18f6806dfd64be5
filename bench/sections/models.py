"""Compares served models with bare loops of them, with the best batcher, and with other servers.

Three models need no device, and the time of a batch of each is known: `sleep` waits without the
interpreter's lock, `compute` holds it, `launcher` holds it for 2 ms and waits for 3, as one that
launches kernels does. With `--device cuda:0`, two are of PyTorch: `text` is as large as MiniLM, and
`image` is a ResNet-50.

Closed loops of 1 to 512 connections count served items a second, as a share of what a bare loop
reaches with batches that so many callers can fill. In open loops calls arrive at random times, at a
share of the bare loop's most items a second; the 99th percentile is compared with that of a batcher
that never lets the device rest, computed for the same arrivals. A server has no open loop at a rate
that it did not reach in a closed one.

With `--before PYTHON` an earlier build of ucall, whose interpreter that is, takes part. The other
servers are those of bench/peers/python/model_servers.py.
"""

import argparse
import contextlib
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bench import OUTPUT, ROOT
from bench.harness import figures, ideal, models, processes, usage
from bench.harness.figures import Column, Sample
from bench.harness.ideal import Times
from bench.suite import drivers, machine
from bench.suite.model_contenders import BARE, PROCESSES, THREADS, Contender, Field

PAGE = ROOT / "docs/benchmarks-models.md"
PARTS = tuple(models.KINDS)
ROUNDS, SECONDS = 3, 0.6
OPTIONS = {
    "--before": {"type": Path, "help": "a Python with an earlier build of ucall"},
    "--without-peers": {"action": "store_true"},
    "--peers": {
        "type": Path,
        "default": OUTPUT / "models/bin/python",
        "help": "a Python with the other servers (%(default)s)",
    },
    "--device": {
        "help": "of the models text and image, such as cuda:0; without it they are left out"
    },
    "--engine": {"choices": ["posix", "uring"], "default": "posix"},
}
CONNECTIONS = (1, 8, 64, 256, 512)
#: Of an open loop: the share of the most that a bare loop reaches, and the connections.
SHARES, OPEN_CONNECTIONS = (0.5, 0.8, 0.95), 512
#: The connections at which the servers' CPU time is measured.
BUSY = 256
WARM_UP_SECONDS = 0.5
#: Other servers take up to half a second to read the first calls of 512 connections.
PEERS_LONGER = 2

#: What servers must reach: the field, the least or the most.
GOALS = [
    ("share_8", "of the bare loop's items a second at 8 connections", {"least": 0.9}),
    *(
        (f"share_{it}", f"of the bare loop's items a second at {it}", {"least": 0.95})
        for it in (64, 256, 512)
    ),
    ("added_ms", "ms more for a single caller", {"most": 0.3}),
    *((f"late_{it}", f"of the best p99 at {it} of the rate", {"most": 1.3}) for it in SHARES),
]
HOST_CPU_GOAL = ("cpu_us", "µs of CPU time an item", {"most": 12})


@dataclass(frozen=True)
class Served:
    """A contender's server that runs, with the requests of a load."""

    field: Field
    contender: Contender
    server: processes.Server
    requests: list[bytes]

    def load(self, seconds: float, connections: int, *more: object) -> dict[str, float]:
        more = more if self.field.is_exact else (*more, "--lengths")
        return drivers.repeat(self.server.port, self.requests, connections, seconds, *more)

    def sample(self, seconds: float, capacity: float) -> Sample | None:
        try:
            found = self.closed(seconds if self.contender.is_ours else PEERS_LONGER * seconds)
            reached = max(found[f"items_{it}"] for it in CONNECTIONS)
            shares = [it for it in SHARES if it * capacity <= reached]
            return found | self.opened(seconds, capacity, shares)
        except processes.LoadError as error:
            figures.log(f"without {self.contender.label}: {error}")
            return None

    def closed(self, seconds: float) -> Sample:
        found: Sample = {}
        for connections in CONNECTIONS:
            pids = usage.family(self.server.pid)
            before = usage.cpu_nanoseconds(*pids)
            load = self.load(seconds, connections)
            used = usage.cpu_nanoseconds(*pids) - before
            found[f"items_{connections}"] = load["requests"] / load["duration"]
            found[f"p50_{connections}"] = load["p50"] / 1e3
            found[f"p99_{connections}"] = load["p99"] / 1e3
            if connections == BUSY:
                found["cpu_us"] = used / 1e3 / load["requests"]
        return found

    def opened(self, seconds: float, capacity: float, shares: Iterable[float]) -> Sample:
        """Percentiles at shares of the bare loop's rate, in milliseconds."""
        found: Sample = {}
        for share in shares if self.contender.has_open_loop else ():
            listed = OUTPUT / "models.arrivals"
            times = arrivals(share, seconds, capacity)
            listed.write_text("".join(f"{round(it * 1e9)}\n" for it in times))
            load = self.load(seconds, OPEN_CONNECTIONS, "--sleep", "--arrivals", listed)
            found[f"open_p99_{share}"] = load["p99"] / 1e3
        return found


def arrivals(share: float, seconds: float, capacity: float) -> list[float]:
    """The same for each contender and each round."""
    return ideal.poisson(share * capacity, seconds, round(share * 100))


def in_rounds(field: Field, options: argparse.Namespace) -> tuple[figures.Runs, float]:
    """The samples of the contenders of a model, and the bare loop's most items a second."""
    with contextlib.ExitStack() as stack:
        bare = stack.enter_context(field.bare())
        capacity = bare(options.seconds).rate(models.MAX_SIZE)
        turns: dict[str, Callable[[], Any]] = {BARE: lambda: bare(options.seconds).measured}
        for each in field.contenders(not options.without_peers):
            try:
                server = stack.enter_context(field.running(each))
                served = Served(field, each, server, field.requests(each, server.port))
                served.load(WARM_UP_SECONDS, 64)
            except (processes.StartError, processes.LoadError, OSError) as error:
                figures.log(f"{field.name}: without {each.label}: {error}")
                continue
            turns[each.label] = partial(served.sample, options.seconds, capacity)
        runs = figures.in_turns(turns, options.rounds, field.name)
    return compared(runs, options.seconds, capacity), capacity


def compared(runs: figures.Runs, seconds: float, capacity: float) -> figures.Runs:
    """Adds to each sample what it is beside the bare loop of its round, and beside the ideal."""
    found: figures.Runs = {name: [] for name in runs}
    for number, measured in enumerate(runs[BARE]):
        times = Times({int(size): took for size, took in (measured or {}).items()})
        best = ideals(times, seconds, capacity)
        found[BARE].append(bare_sample(times))
        for name in runs:
            if name != BARE:
                sample = runs[name][number]
                found[name].append(sample and sample | beside(sample, times, best))
    return found


def ideals(times: Times, seconds: float, capacity: float) -> dict[float, list[float]]:
    return {
        share: ideal.latencies(arrivals(share, seconds, capacity), times, models.MAX_SIZE)
        for share in SHARES
    }


def bare_sample(times: Times) -> Sample:
    rates = {f"items_{it}": times.rate(it) for it in CONNECTIONS}
    return {**rates, **{f"share_{it}": 1.0 for it in CONNECTIONS}, "t_1": times.of(1) * 1e3}


def beside(sample: Sample, times: Times, best: dict[float, list[float]]) -> Sample:
    found = {f"share_{it}": sample[f"items_{it}"] / times.rate(it) for it in CONNECTIONS}
    found["added_ms"] = sample["p50_1"] - times.of(1) * 1e3
    for share, latencies in best.items():
        if (p99 := sample.get(f"open_p99_{share}")) is not None:
            found[f"late_{share}"] = p99 / 1e3 / ideal.percentile(latencies, 0.99)
    return found


COLUMNS = [
    Column(f"items/s at {BUSY}", f"items_{BUSY}", "{:,.0f}"),
    *(
        Column(f"at {it}" if it > 1 else "of the bare loop's at 1", f"share_{it}")
        for it in CONNECTIONS
    ),
    Column("ms added at 1", "added_ms"),
    Column("p99 at 8, ms", "p99_8", "{:.1f}"),
    *(
        Column(f"{'p99 of the best at ' if it == SHARES[0] else ''}{it}", f"late_{it}")
        for it in SHARES
    ),
    Column("CPU µs/item", "cpu_us", "{:,.1f}"),
]


def table(name: str, runs: figures.Runs) -> str:
    return figures.table_of(runs, COLUMNS, name)


def verdicts(found: dict[str, figures.Runs]) -> str:
    """Each goal, and whether the run met it."""
    rows = []
    for name, runs in found.items():
        goals = [*GOALS, HOST_CPU_GOAL] if name == "sleep" else GOALS
        for label in (THREADS, PROCESSES):
            for field, what, bound in goals:
                measured = figures.interval(figures.values(runs, label, field))
                if measured:
                    [(kind, limit)] = bound.items()
                    cells = [f"{name}: {label}", measured.text("{:.2f}")]
                    cells += [f"at {kind} {limit} {what}", figures.outcome(measured, **bound)]
                    rows.append(cells)
    return figures.table(["goal", "median (95% interval)", "", ""], rows)


def run(options: argparse.Namespace) -> dict[str, Any]:
    found, capacities = {}, {}
    for name in options.only:
        if name not in models.TIMED and not options.device:
            continue
        device = options.device or "cpu"
        field = Field(name, device, options.engine, options.before, options.peers)
        found[name], capacities[name] = in_rounds(field, options)
        print(table(name, found[name]), end="\n\n", flush=True)
    print(verdicts(found))
    how = {"rounds": options.rounds, "seconds": options.seconds, "engine": options.engine}
    return {
        "machine": {**machine.describe(), "device": options.device and device_name(options.device)},
        "options": how,
        "capacity": capacities,
        "samples": found,
    }


def device_name(device: str) -> str:
    import torch

    return "a processor" if device == "cpu" else torch.cuda.get_device_name(device)


def times_of(runs: figures.Runs) -> str:
    single = statistics.median(figures.values(runs, BARE, "t_1"))
    most = statistics.median(figures.values(runs, BARE, f"items_{CONNECTIONS[-1]}"))
    return f"one item takes {single:.1f} ms, and the bare loop does {most:,.0f} a second"


def report(results: dict[str, Any]) -> str:
    how, device = results["options"], results["machine"]["device"]
    parts = [
        f"Over HTTP on {how['engine']}, batches of up to {models.MAX_SIZE}, items of 512 bytes.\n"
        f"{machine.text(results['machine'])}{f', {device}' if device else ''}, "
        f"{how['rounds']} rounds."
    ]
    for name, runs in results["samples"].items():
        parts += [f"`{name}`: {times_of(runs)}.", table(name, runs)]
    return "\n\n".join(parts)
