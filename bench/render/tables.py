"""Tables in Markdown: one function for each section of the report."""

from collections.abc import Sequence

from bench.harness.figures import Spread, table
from bench.render.data import Results, difference
from bench.render.verdicts import NOT_MEASURED, Verdict
from bench.suite import beside
from bench.suite.plan import BATCHES, PAYLOAD_BYTES, QUOTED, RATES
from bench.suite.servers import Server, python_beside
from bench.suite.tails import SHARES

NONE = "-"
RATE, TIME, CPU, RATIO = "{:,.0f}", "{:,.0f}", "{:.2f}", "{:.2f}"


def cost_name(results: Results) -> str:
    return "cycles" if results.cost == "cycles_per_call" else "CPU"


def one(found: Spread | None, form: str) -> str:
    return form.format(found.median) if found else NONE


def full(found: Spread | None, form: str) -> str:
    """The median, and the confidence interval in brackets."""
    return found.text(form) if found else NONE


def calls(results: Results, servers: Sequence[Server], load: str) -> str:
    """Calls a second, latency, CPU and memory under one load."""
    header = [
        "",
        "calls/s",
        "p50 µs",
        "p99 µs",
        "p99.9 µs",
        "CPU µs/call",
        f"{cost_name(results)} / floor",
    ]
    rows = []
    for server in present(results, servers, load):
        cells = [
            (results.values(server.name, load, metric), form)
            for metric, form in (
                ("calls_per_second", RATE),
                ("p50_us", TIME),
                ("p99_us", TIME),
                ("p999_us", TIME),
                ("cpu_us_per_call", CPU),
            )
        ]
        to_floor = results.to_floor(server.name, load, results.cost)
        memory = one(results.values(server.name, load, "rss_mb"), "{:.0f}")
        measured = [*(one(found, form) for found, form in cells), full(to_floor, RATIO), memory]
        if results.is_broken(server.name, load):
            measured = ["broken", *[NONE] * (len(measured) - 1)]
        rows.append([server.label, *measured, f"{results.errors(server.name, load):,}"])
    return table([*header, "RSS MB", "errors"], rows)


def present(results: Results, servers: Sequence[Server], load: str) -> list[Server]:
    return [server for server in servers if results.has(server.name, load)]


def headline(results: Results, servers: Sequence[Server]) -> str:
    """The README's table: the main figures of each server."""
    header = ["", "calls/s, 32 clients", "errors", "CPU µs/call, in pairs", "the floor's"]
    header += [f"{cost_name(results)} / floor", "p99 µs", "p50 µs, 1 client", "RSS MB"]
    rows = []
    for server in present(results, servers, "c32"):
        name = server.name
        is_quoted = server.family in ("floor", "ours") or name in QUOTED
        # Raw TCP and the other peers are on the page of the benchmarks.
        if server.protocol == "raw" or not is_quoted:
            continue
        own, floors = results.beside_floor(name, "c32", "cpu_us_per_call")
        label = f"**{server.label}**" if server.family == "ours" else server.label
        rows.append(
            [
                label,
                one(results.values(name, "c32", "calls_per_second"), RATE),
                f"{results.errors(name, 'c32'):,}",
                one(own or results.values(name, "c32", "cpu_us_per_call"), CPU),
                one(floors, CPU),
                full(results.to_floor(name, "c32", results.cost), RATIO),
                one(results.values(name, "c32", "p99_us"), TIME),
                one(results.values(name, "c1", "p50_us"), TIME),
                one(results.values(name, "c32", "rss_mb"), "{:.0f}"),
            ]
        )
    return table(header, rows)


def to_the_floor(results: Results, servers: Sequence[Server]) -> str:
    """ucall and the floor, with confidence intervals."""
    header = ["", "pairs", f"{cost_name(results)} a call, ratio", "one request: ratio"]
    header += ["CPU a call, difference, µs", "p50 with 1 client, difference, µs"]
    rows = []
    for server in servers:
        name = server.name
        if server.family == "ours" and results.has(name, "c32"):
            rows.append(
                [
                    server.label,
                    f"{len(results.accepted(name, results.nearest_floor(name, 'c32'), 'c32'))}",
                    full(results.to_floor(name, "c32", results.cost), RATIO),
                    full(results.to_floor(name, "constant", results.cost), RATIO),
                    full(results.to_floor(name, "c32", "cpu_us_per_call", difference), "{:+.2f}"),
                    full(results.to_floor(name, "c1", "p50_us", difference), "{:+.1f}"),
                ]
            )
    return table(header, rows)


IDLE_LABEL = f"beside {beside.IDLE_CONNECTIONS:,} idle connections"
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
    for server in servers:
        if server.family != "ours":
            continue
        for share in SHARES:
            load = f"share-{share}"
            if not results.has(server.name, load):
                continue
            cells = [server.label, f"{share}%"]
            for metric in TAIL_METRICS:
                both = results.beside_floor(server.name, load, metric)
                cells.append(" / ".join(one(found, TIME) for found in both))
            ratio = results.to_floor(server.name, load, "p999_windows_us")
            rows.append([*cells, full(ratio, RATIO)])
    return table(header, rows)


def beside_others(results: Results) -> str:
    """Latency of Python servers while something else goes on."""
    rows = []
    for server in python_beside():
        for load in (beside.LOAD, beside.IDLE):
            if not results.has(server.name, load):
                continue
            is_idle = load == beside.IDLE
            label = server.label.replace("alone", IDLE_LABEL) if is_idle else server.label
            values = (results.values(server.name, load, metric) for metric in TAIL_METRICS)
            rows.append([label, *(one(found, TIME) for found in values)])
    return table(["", *TAIL_METRICS.values()], rows)


def open_loop(results: Results, servers: Sequence[Server]) -> str:
    header = [""]
    for rate in RATES:
        header += [f"{rate:,}/s: p50", "p99", "p99.9", "no reply"]
    loads = [f"rate-{rate}" for rate in RATES]
    rows = []
    for server in servers:
        if not any(results.has(server.name, load) for load in loads):
            continue
        cells = [server.label]
        for load in loads:
            for metric in ("p50_us", "p99_us", "p999_us"):
                cells.append(one(results.values(server.name, load, metric), TIME))
            has = results.has(server.name, load)
            cells.append(f"{results.errors(server.name, load):,}" if has else NONE)
        rows.append(cells)
    return table(header, rows)


def rates(results: Results, servers: Sequence[Server], loads: dict[str, str]) -> str:
    """Two columns for each load: calls a second, and CPU time a call with its ratio to the
    floor's."""
    header = [""]
    for label in loads.values():
        header += [f"{label}: calls/s", "CPU ns/call (/ floor)"]
    rows = []
    for server in servers:
        if not any(results.has(server.name, load) for load in loads):
            continue
        cells = [server.label]
        for load in loads:
            cells.append(one(results.values(server.name, load, "calls_per_second"), RATE))
            cells.append(cpu_cell(results, server.name, load, 1000, "{:,.0f}"))
        rows.append(cells)
    return table(header, rows)


def cpu_cell(results: Results, server: str, load: str, factor: float, form: str) -> str:
    cpu = results.values(server, load, "cpu_us_per_call")
    to_floor = results.to_floor(server, load, results.cost)
    if not cpu:
        return NONE
    text = form.format(cpu.median * factor)
    return f"{text} ({to_floor.median:.2f})" if to_floor else text


def batches(results: Results, servers: Sequence[Server]) -> str:
    batched = {f"batch-{size}": f"{size:,}" for size in BATCHES}
    http = [s for s in servers if s.family in ("floor", "ours") and s.protocol == "http"]
    are_any = any(results.has(server.name, load) for server in http for load in batched)
    return rates(results, http, {"c32": "1"} | batched if are_any else batched)


def payloads(results: Results, servers: Sequence[Server]) -> str:
    """Bytes echoed, counted once, in 10^9 a second."""
    chosen = [server for server in servers if server.name.startswith(("payload", "floor-echo"))]
    header = [""]
    for server in chosen:
        header += [f"{server.label}: GB/s", "CPU µs/call (/ floor)"]
    rows = []
    for kind in KINDS:
        for size in PAYLOAD_BYTES:
            cells = [f"{kind}, {size_label(size)}"]
            for server in chosen:
                found = results.values(server.name, f"{kind}-{size}", "calls_per_second")
                cells.append(f"{found.median * size / 1e9:.3g}" if found else NONE)
                cells.append(cpu_cell(results, server.name, f"{kind}-{size}", 1, "{:,.1f}"))
            rows.append(cells)
    return table(header, rows)


KINDS = ("bytes", "array")


def size_label(size: int) -> str:
    for unit, one_of_it in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= one_of_it:
            return f"{size // one_of_it} {unit}"
    return f"{size} B"


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


def documents(results: Results) -> str:
    found = {(r["task"], r["document"], r["library"]): r["ns"] for r in results.raw["json"]}
    libraries = list(dict.fromkeys(library for _, _, library in found))
    libraries.sort(key=lambda name: (name != "ucall", "Python" in name, name))
    tasks = sorted({key[:2] for key in found})
    rows = [
        [f"{task} {document}", *(nanoseconds(found.get((task, document, it))) for it in libraries)]
        for task, document in tasks
    ]
    return table(["", *libraries], rows)


def nanoseconds(value: float | None) -> str:
    if value is None:
        return NONE
    return f"{value:,.0f} ns" if value < 1e4 else f"{value / 1e3:,.1f} µs"


def exact(results: Results, servers: Sequence[Server]) -> str:
    labels = {server.name: server.label for server in servers}
    header = ["", "user instructions a call", "counted by", "system calls a call"]
    rows = []
    for row in results.raw["exact"]:
        tool, count = next(iter(row["instructions"].items()), (NONE, None))
        named = (f"{name} {count:.2f}" for name, count in row["system_calls"].items())
        rows.append(
            [
                labels[row["server"]],
                f"{count:,.0f}" if count is not None else NONE,
                tool,
                ", ".join(named) or NONE,
            ]
        )
    return table(header, rows)


def tools(results: Results, servers: Sequence[Server]) -> str:
    header = ["", "wrk: calls/s", "p50 µs", "p99 µs", "CPU µs"]
    header += ["bench/load: calls/s", "p50 µs", "p99 µs"]
    rows = []
    for server in present(results, servers, "tool-wrk"):
        cells = [server.label]
        for tool in ("wrk", "own"):
            for metric, form in (
                ("calls_per_second", RATE),
                ("p50_us", TIME),
                ("p99_us", TIME),
                ("cpu_us_per_call", CPU),
            ):
                cells.append(one(results.values(server.name, f"tool-{tool}", metric), form))
        rows.append(cells)
    return table([*header, "CPU µs"], rows)


def verdicts(found: Sequence[Verdict]) -> str:
    """Those that were measured, and how many were not."""
    measured = [each for each in found if each.outcome != NOT_MEASURED]
    rows = [[each.claim, each.asked, each.found, each.outcome] for each in measured]
    text = table(["figure", "target", "median (95% interval)", ""], rows)
    others = len(found) - len(measured)
    return text + (f"\n\n{others} more targets were not measured in this run." if others else "")
