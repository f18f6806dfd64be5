"""Tables in Markdown: one function for each section of the report."""

import itertools
from collections.abc import Iterable, Sequence

from bench.harness.figures import Spread, table
from bench.render.data import COST, Results, difference
from bench.render.verdicts import NOT_MEASURED, all_verdicts
from bench.suite.plan import (
    BATCHES,
    BESIDE,
    BESIDE_IDLE,
    IDLE_CONNECTIONS,
    QUOTED,
    RATES,
    SHARES,
)
from bench.suite.servers import Server, python_beside

NONE = "-"
TIME, CPU, RATIO = "{:,.0f}", "{:.2f}", "{:.2f}"
TOOL_METRICS = ("calls_per_second", "p50_us", "p99_us", COST)
#: The formats of metrics, if they are not `TIME`.
FORMS = {COST: CPU, "rss_mb": "{:.0f}"}


def one(found: Spread | None, form: str) -> str:
    return form.format(found.median) if found else NONE


def full(found: Spread | None, form: str) -> str:
    """The median, and the confidence interval in brackets."""
    return found.text(form) if found else NONE


def cell(results: Results, server: Server, load: str, metric: str) -> str:
    return one(results.values(server.name, load, metric), FORMS.get(metric, TIME))


def cells(results: Results, server: Server, load: str, metrics: Iterable[str]) -> list[str]:
    return [cell(results, server, load, metric) for metric in metrics]


def calls(results: Results, servers: Sequence[Server], load: str) -> str:
    """Calls a second, latency, CPU and memory under one load."""
    header = ["", "calls/s", "p50 µs", "p99 µs", "p99.9 µs", "CPU µs/call"]
    rows = []
    for server in present(results, servers, load):
        measured = cells(results, server, load, (*TOOL_METRICS[:3], "p999_us", TOOL_METRICS[3]))
        measured.append(full(results.to_floor(server.name, load, COST), RATIO))
        measured.append(cell(results, server, load, "rss_mb"))
        if results.is_broken(server.name, load):
            measured = ["broken", *[NONE] * (len(measured) - 1)]
        rows.append([server.label, *measured, f"{results.errors(server.name, load):,}"])
    return table([*header, "CPU / floor", "RSS MB", "errors"], rows)


def present(results: Results, servers: Sequence[Server], *loads: str) -> list[Server]:
    """The servers that were measured under any of these loads."""
    return [it for it in servers if any(results.has(it.name, load) for load in loads)]


def headline(results: Results, servers: Sequence[Server]) -> str:
    """The main figures of the servers that people compare first."""
    header = ["", "calls/s, 32 clients", "errors", "CPU µs/call, in pairs", "the floor's"]
    header += ["CPU / floor", "p99 µs", "p50 µs, 1 client", "RSS MB"]
    rows = []
    for server in present(results, servers, "c32"):
        name = server.name
        is_quoted = server.family in ("floor", "ours") or name in QUOTED
        # Raw TCP and the other peers are on the page of all benchmarks.
        if server.protocol == "raw" or not is_quoted:
            continue
        own, floors = results.beside_floor(name, "c32", COST)
        rows.append(
            [
                f"**{server.label}**" if server.family == "ours" else server.label,
                cell(results, server, "c32", "calls_per_second"),
                f"{results.errors(name, 'c32'):,}",
                one(own or results.values(name, "c32", COST), CPU),
                one(floors, CPU),
                full(results.to_floor(name, "c32", COST), RATIO),
                cell(results, server, "c32", "p99_us"),
                cell(results, server, "c1", "p50_us"),
                cell(results, server, "c32", "rss_mb"),
            ]
        )
    return table(header, rows)


def to_the_floor(results: Results, servers: Sequence[Server]) -> str:
    """ucall and the floor, with confidence intervals."""
    header = ["", "pairs", "CPU a call, ratio", "one request: ratio"]
    header += ["CPU a call, difference, µs", "p50 with 1 client, difference, µs"]
    rows = []
    for server in present(results, ours_of(servers), "c32"):
        name = server.name
        pairs = results.accepted(name, results.nearest_floor(name, "c32"), "c32")
        above = (
            results.to_floor(name, "c32", COST, difference),
            results.to_floor(name, "c1", "p50_us", difference),
        )
        ratios = (results.to_floor(name, load, COST) for load in ("c32", "constant"))
        rows.append([server.label, f"{len(pairs)}", *(full(it, RATIO) for it in ratios)])
        rows[-1] += [full(above[0], "{:+.2f}"), full(above[1], "{:+.1f}")]
    return table(header, rows)


def ours_of(servers: Sequence[Server]) -> list[Server]:
    return [server for server in servers if server.family == "ours"]


IDLE_LABEL = f"beside {IDLE_CONNECTIONS:,} idle connections"
TAIL_METRICS = {
    "p50_us": "p50",
    "p99_us": "p99",
    "p999_windows_us": "p99.9 of 50 ms",
    "p999_us": "p99.9",
    "max_us": "max",
}


def tails(results: Results, servers: Sequence[Server]) -> str:
    """Latency of ucall at shares of its capacity, and its floor's at that rate."""
    header = ["", "share", *TAIL_METRICS.values(), f"{TAIL_METRICS['p999_windows_us']}, ratio"]
    rows = []
    for server in ours_of(servers):
        for load, share in ((f"share-{share}", share) for share in SHARES):
            if not results.has(server.name, load):
                continue
            both = (results.beside_floor(server.name, load, it) for it in TAIL_METRICS)
            shown = [" / ".join(one(found, TIME) for found in pair) for pair in both]
            ratio = results.to_floor(server.name, load, "p999_windows_us")
            rows.append([server.label, f"{share}%", *shown, full(ratio, RATIO)])
    return table(header, rows)


def beside_others(results: Results, servers: Sequence[Server]) -> str:
    """Latency of Python servers while something else goes on."""
    rows = []
    for server in itertools.chain(*python_beside()):
        idle_label = server.label.replace("alone", IDLE_LABEL)
        for load, label in ((BESIDE, server.label), (BESIDE_IDLE, idle_label)):
            if results.has(server.name, load):
                rows.append([label, *cells(results, server, load, TAIL_METRICS)])
    return table(["", *TAIL_METRICS.values()], rows)


def open_loop(results: Results, servers: Sequence[Server]) -> str:
    header = [""]
    for rate in RATES:
        header += [f"{rate:,}/s: p50", "p99", "p99.9", "no reply"]
    loads = [f"rate-{rate}" for rate in RATES]
    rows = []
    for server in present(results, servers, *loads):
        row = [server.label]
        for load in loads:
            row += cells(results, server, load, ("p50_us", "p99_us", "p999_us"))
            has = results.has(server.name, load)
            row.append(f"{results.errors(server.name, load):,}" if has else NONE)
        rows.append(row)
    return table(header, rows)


def rates(results: Results, servers: Sequence[Server], loads: dict[str, str]) -> str:
    """Two columns for each load: calls a second, and CPU time a call with its ratio to the
    floor's."""
    header = [""]
    for label in loads.values():
        header += [f"{label}: calls/s", "CPU ns/call (/ floor)"]
    rows = []
    for server in present(results, servers, *loads):
        row = [server.label]
        for load in loads:
            row.append(cell(results, server, load, "calls_per_second"))
            row.append(cpu_cell(results, server.name, load, 1000, "{:,.0f}"))
        rows.append(row)
    return table(header, rows)


def cpu_cell(results: Results, server: str, load: str, factor: float, form: str) -> str:
    cpu = results.values(server, load, COST)
    to_floor = results.to_floor(server, load, COST)
    if not cpu:
        return NONE
    text = form.format(cpu.median * factor)
    return f"{text} ({to_floor.median:.2f})" if to_floor else text


def pipelined(results: Results, servers: Sequence[Server]) -> str:
    return rates(results, servers, {"depth-16": "16 deep"})


def batches(results: Results, servers: Sequence[Server]) -> str:
    batched = {f"batch-{size}": f"{size:,}" for size in BATCHES}
    http = [s for s in servers if s.family in ("floor", "ours") and s.protocol == "http"]
    are_any = present(results, http, *batched)
    return rates(results, http, {"c32": "1"} | batched if are_any else batched)


def idle(results: Results, servers: Sequence[Server]) -> str:
    labels = {server.name: server.label for server in servers}
    header = ["", "RSS before, MB", "with 10,000 idle, MB", "KiB each"]
    header += ["calls/s of 32 other clients", "p99 µs", "CPU µs/call"]
    rows = [
        [
            labels[row["server"]],
            f"{row['base_kib'] * 1024 / 1e6:.1f}",
            f"{row['idle_kib'] * 1024 / 1e6:.1f}",
            f"{row['kib_each']:.2f}",
            f"{row['calls_per_second']:,.0f}",
            f"{row['p99_us']:,.0f}",
            f"{row['cpu_us_per_call']:.2f}",
        ]
        for row in results.raw["idle"]
    ]
    return table(header, rows)


def exact(results: Results, servers: Sequence[Server]) -> str:
    labels = {server.name: server.label for server in servers}
    rows = []
    for row in results.raw["exact"]:
        tool, count = next(iter(row["instructions"].items()), (NONE, None))
        named = ", ".join(f"{name} {calls:.2f}" for name, calls in row["system_calls"].items())
        shown = NONE if count is None else f"{count:,.0f}"
        rows.append([labels[row["server"]], shown, tool, named or NONE])
    header = ["", "user instructions a call", "counted by", "system calls a call"]
    return table(header, rows)


def tools(results: Results, servers: Sequence[Server]) -> str:
    rows = []
    for server in present(results, servers, "tool-wrk"):
        by_tool = (cells(results, server, f"tool-{it}", TOOL_METRICS) for it in ("wrk", "own"))
        rows.append([server.label, *itertools.chain(*by_tool)])
    header = ["", "wrk: calls/s", "p50 µs", "p99 µs", "CPU µs"]
    return table([*header, "bench/load: calls/s", *header[2:]], rows)


def verdicts(results: Results, servers: Sequence[Server]) -> str:
    """Those that were measured, and how many were not."""
    found = all_verdicts(results, servers)
    measured = [each for each in found if each.outcome != NOT_MEASURED]
    rows = [[each.claim, each.asked, each.found, each.outcome] for each in measured]
    text = table(["figure", "target", "median (95% interval)", ""], rows)
    others = len(found) - len(measured)
    return text + (f"\n\n{others} more targets were not measured in this run." if others else "")
