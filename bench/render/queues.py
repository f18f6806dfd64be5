"""Tables, verdicts and the plot of the section `queue`."""

import dataclasses
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
    lines = []
    for size, turns in results.items():
        lines += ["", f"### {size_name(size)}", ""]
        lines.append("| | messages/s | Gbit/s | CPU µs a message | RSS MB put, get, broker |")
        lines.append("|---|---:|---:|---:|---:|")
        for name, all_turns in turns.items():
            failed = all_turns.count(None)
            row = middle(all_turns)
            note = f" ({failed} of {len(all_turns)} turns failed)" if failed else ""
            if row is None:
                lines.append(f"| {name}{note} | | | | |")
                continue
            gigabits = row["rate"] * size * 8 / 1e9
            cells = f"{row['rate']:,.0f} | {gigabits:.2f} | {row['cpu_us']:.2f} | {memory(row)}"
            lines.append(f"| {name}{note} | {cells} |")
    return "\n".join(lines)


@dataclasses.dataclass
class Target:
    """The least ratio of `name` to `beside` in messages a second, at one size."""

    size: int
    name: str
    beside: str
    # None: the ratio is reported without a target.
    least: float | None


TARGETS = [
    *(Target(LARGE, name, "net-queue", 3) for name in ("ucall", "ucall, epoll")),
    *(Target(LARGE, name, "C pair", 0.8) for name in ("ucall", "ucall, epoll")),
    *(Target(64, name, "net-queue", 30) for name in ("ucall", "ucall, epoll")),
    *(Target(64, name, "pyzmq", None) for name in ("ucall", "ucall, epoll")),
    *(Target(LARGE, name, "C pair", 1) for name in ("ucall, SHM", "ucall, SHM, trusted")),
    *(Target(size, "ucall, SHM", "ucall, Unix, arrays", 1) for size in (LARGE, 64 << 20)),
    *(Target(size, "ucall, MQTT", "net-queue, MQTT", 2) for size in (64, LARGE)),
]


def verdicts(results: Results) -> str:
    """The targets and the ratios measured."""
    head = ["| size | ratio | target | median (quartiles) | |", "|---|---|---:|---:|---|"]
    evaluated = [evaluate(target, results.get(target.size, {})) for target in TARGETS]
    broker = memory_beside_broker(results.get(LARGE, {}))
    own = [memory_of_pair(size, results.get(size, {})) for size in (64, LARGE)]
    rows = [row for row in [*evaluated, broker, *own] if row]
    return "\n".join(["", *head, *rows])


def evaluate(target: Target, turns: Turns) -> str | None:
    found = spread(figures.ratios(turns, target.name, target.beside, "rate"))
    if not found:
        return None
    wanted, met = "", ""
    if target.least is not None:
        wanted, met = f"{target.least:g}", verdict(found.median >= target.least)
    what = f"{target.name} : {target.beside}"
    return f"| {size_name(target.size)} | {what} | {wanted} | {found.text('{:.2f}')} | {met} |"


def verdict(is_met: bool) -> str:
    return "met" if is_met else "**missed**"


def memory_beside_broker(turns: Turns) -> str | None:
    """The memory of the two processes that use a broker, without the broker's own."""
    ours, theirs = (middle(turns.get(f"{name}, MQTT", [])) for name in ("ucall", "net-queue"))
    if not ours or not theirs:
        return None
    share = (ours["put_mb"] + ours["get_mb"]) / (theirs["put_mb"] + theirs["get_mb"])
    what = "memory of ucall, MQTT : net-queue, MQTT"
    return f"| {size_name(LARGE)} | {what} | 0.1 at most | {share:.2f} | {verdict(share <= 0.1)} |"


def memory_of_pair(size: int, turns: Turns) -> str | None:
    """The memory of the larger of two processes connected by TCP."""
    pairs = [middle(turns.get(name, [])) for name in ("ucall", "ucall, epoll")]
    most = max((max(pair["put_mb"], pair["get_mb"]) for pair in pairs if pair), default=None)
    if most is None:
        return None
    # `transport_size`, which also counts the overhead of each message.
    in_flight = (16 << 20) / 1e6
    wanted = f"{40 + in_flight:.0f} at most"
    met = verdict(most <= 40 + in_flight)
    what = f"memory of ucall in MB: 40, and {in_flight:.0f} in flight"
    return f"| {size_name(size)} | {what} | {wanted} | {most:.0f} | {met} |"


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
    sizes = [f"{size_name(size)}" for size in results]
    lines = [f"| messages/s | {' | '.join(sizes)} |", "|---|" + "---:|" * len(sizes)]
    for name in next(iter(results.values())):
        rows = [middle(turns[name]) for turns in results.values()]
        cells = [f"{row['rate']:,.0f}" if row else "failed" for row in rows]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def costs(results: Results) -> str:
    """CPU time a message of both sides, and the memory of each process, at two sizes."""
    sizes = [size for size in (64, LARGE) if size in results]
    head = [f"CPU µs, {size_name(size)} | RSS MB put, get, broker" for size in sizes]
    lines = [f"| | {' | '.join(head)} |", "|---|" + "---:|---:|" * len(sizes)]
    for name in next(iter(results.values())):
        cells = [cost(middle(results[size][name])) for size in sizes]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def cost(row: dict[str, float] | None) -> str:
    if row is None:
        return "failed | "
    return f"{row['cpu_us']:,.2f} | {memory(row)}"


def memory(row: dict[str, float]) -> str:
    rss = f"{row['put_mb']:.0f}, {row['get_mb']:.0f}" if row["put_mb"] else ""
    return rss + (f", {row['broker_mb']:.0f}" if "broker_mb" in row else "")


def rounds_of(turns: Turns) -> int:
    return max(len(each) for each in turns.values())


def section(results: Results, how: str) -> str:
    """That of docs/queues.md."""
    rounds = [f"{rounds_of(turns)} of {size_name(size)}" for size, turns in results.items()]
    text = f"{how}; medians of rounds:\n{', '.join(rounds)}.\n"
    text += "Compare only ratios within the run."
    return f"{text}\n\n{summary(results)}\n\n{costs(results)}\n\nTargets:\n{verdicts(results)}"
