"""Tables, verdicts and the plot of the section `queue`."""

import statistics

from bench.harness import figures
from bench.harness.figures import spread
from bench.render.lines import Axis, Panel, lines

Turns = figures.Runs
Results = dict[int, Turns]
LARGE = 2 << 20


def size_name(size: int) -> str:
    if size < 1024:
        return f"{size} B"
    return f"{size >> 10} KiB" if size < 1 << 20 else f"{size >> 20} MiB"


def middle(turns: list[dict[str, float] | None]) -> dict[str, float] | None:
    """The median of each figure; None if every turn failed."""
    good = [turn for turn in turns if turn is not None]
    if not good:
        return None
    return {name: statistics.median(turn[name] for turn in good) for name in good[0]}


def table(results: Results) -> str:
    header = ["", "messages/s", "Gbit/s", "CPU µs a message", "RSS MB put, get, broker"]
    parts = []
    for size, turns in results.items():
        rows = []
        for name, each in turns.items():
            rows.append([f"{name}{failed(each)}", *cells(size, middle(each))])
        parts.append(f"\n### {size_name(size)}\n\n{figures.table(header, rows)}")
    return "\n".join(parts)


def failed(turns: list[dict[str, float] | None]) -> str:
    count = turns.count(None)
    return f" ({count} of {len(turns)} turns failed)" if count else ""


def cells(size: int, row: dict[str, float] | None) -> list[str]:
    if row is None:
        return [""] * 4
    gigabits = row["rate"] * size * 8 / 1e9
    return [f"{row['rate']:,.0f}", f"{gigabits:.2f}", f"{row['cpu_us']:.2f}", memory(row)]


#: The size, a contender, the one that it is compared with, and the least ratio in messages a
#: second, or None for a ratio without a target.
TARGETS = [
    *((LARGE, name, "net-queue", 3) for name in ("ucall", "ucall, epoll")),
    *((LARGE, name, "C pair", 0.8) for name in ("ucall", "ucall, epoll")),
    *((64, name, "net-queue", 30) for name in ("ucall", "ucall, epoll")),
    *((64, name, "pyzmq", None) for name in ("ucall", "ucall, epoll")),
    *((LARGE, name, "C pair", 1) for name in ("ucall, SHM", "ucall, SHM, trusted")),
    *((size, "ucall, SHM", "ucall, Unix, arrays", 1) for size in (LARGE, 64 << 20)),
    *((size, "ucall, MQTT", "net-queue, MQTT", 2) for size in (64, LARGE)),
]


def verdicts(results: Results) -> str:
    """The targets and the ratios measured."""
    rows = []
    for size, name, beside, least in TARGETS:
        if found := spread(figures.ratios(results.get(size, {}), name, beside, "rate")):
            met = "" if least is None else verdict(found.median >= least)
            wanted = "" if least is None else f"{least:g}"
            what = f"{size_name(size)}, {name} : {beside}"
            rows.append([what, wanted, found.text("{:.2f}"), met])
    rows += memory_beside_broker(results.get(LARGE, {}))
    for size in (64, LARGE):
        rows += memory_of_pair(size, results.get(size, {}))
    return "\n" + figures.table(["ratio", "target", "median (quartiles)", ""], rows)


def verdict(is_met: bool) -> str:
    return "met" if is_met else "**missed**"


def memory_beside_broker(turns: Turns) -> list[list[str]]:
    """The memory of the two processes that use a broker, without the broker's own."""
    ours, theirs = (middle(turns.get(f"{name}, MQTT", [])) for name in ("ucall", "net-queue"))
    if not ours or not theirs:
        return []
    share = (ours["put_mb"] + ours["get_mb"]) / (theirs["put_mb"] + theirs["get_mb"])
    what = f"{size_name(LARGE)}, memory of ucall, MQTT : net-queue, MQTT"
    return [[what, "0.1 at most", f"{share:.2f}", verdict(share <= 0.1)]]


def memory_of_pair(size: int, turns: Turns) -> list[list[str]]:
    """The memory of the larger of two processes connected by TCP."""
    pairs = [middle(turns.get(name, [])) for name in ("ucall", "ucall, epoll")]
    most = max((max(pair["put_mb"], pair["get_mb"]) for pair in pairs if pair), default=None)
    if most is None:
        return []
    # `transport_size`, which also counts the overhead of each message.
    in_flight = (16 << 20) / 1e6
    what = f"{size_name(size)}, memory of ucall in MB: 40, and {in_flight:.0f} in flight"
    wanted = f"{40 + in_flight:.0f} at most"
    return [[what, wanted, f"{most:.0f}", verdict(most <= 40 + in_flight)]]


#: The plot shows these; the table has all.
PLOTTED = (
    *("C pair", "ucall", "ucall, SHM", "ucall, TLS", "ucall, MQTT"),
    *("ucall, gRPC", "pyzmq", "net-queue", "net-queue, MQTT"),
)


def plot(results: Results) -> str:
    """Throughput over message size, both logarithmic, as an SVG."""
    series: dict[str, list[tuple[float, float]]] = {}
    for size, turns in results.items():
        for name in PLOTTED:
            if row := middle(turns.get(name, [])):
                series.setdefault(name, []).append((size, row["rate"] * size * 8 / 1e9))
    sizes = Axis(min(results), max(results), {size: size_name(size) for size in results}, True)
    rates = Axis(0.01, 200, {0.01: "0.01", 0.1: "0.1", 1: "1", 10: "10", 100: "100 Gbit/s"}, True)
    panel = Panel("Throughput over the size of messages", sizes, rates, series)
    return lines([panel], dashed=[name for name in PLOTTED if not name.startswith("ucall")])


def summary(results: Results) -> str:
    """Messages a second, by contender and size."""
    rows = []
    for name in next(iter(results.values())):
        found = [middle(turns[name]) for turns in results.values()]
        rows.append([name, *(f"{row['rate']:,.0f}" if row else "failed" for row in found)])
    return figures.table(["messages/s", *map(size_name, results)], rows)


def costs(results: Results) -> str:
    """CPU time a message of both sides, and the memory of each process, at two sizes."""
    sizes = [size for size in (64, LARGE) if size in results]
    header = [""]
    for size in sizes:
        header += [f"CPU µs, {size_name(size)}", "RSS MB put, get, broker"]
    rows = []
    for name in next(iter(results.values())):
        found = [middle(results[size][name]) for size in sizes]
        rows.append([name, *(cell for row in found for cell in cost(row))])
    return figures.table(header, rows)


def cost(row: dict[str, float] | None) -> tuple[str, str]:
    return (f"{row['cpu_us']:,.2f}", memory(row)) if row else ("failed", "")


def memory(row: dict[str, float]) -> str:
    rss = f"{row['put_mb']:.0f}, {row['get_mb']:.0f}" if row["put_mb"] else ""
    return rss + (f", {row['broker_mb']:.0f}" if "broker_mb" in row else "")


def section(results: Results, how: str) -> str:
    """That of docs/benchmarks-queues.md."""
    rounds = [
        f"{max(map(len, turns.values()))} of {size_name(size)}" for size, turns in results.items()
    ]
    text = f"{how}; medians of rounds:\n{', '.join(rounds)}.\n"
    text += "Compare only ratios within the run."
    return f"{text}\n\n{summary(results)}\n\n{costs(results)}\n\nTargets:\n{verdicts(results)}"
