"""What `bench/queue.py` shows of its turns: tables, verdicts, and a plot."""

import math
import os
import platform
import statistics
from pathlib import Path

Turns = dict[str, list[dict[str, float] | None]]
Results = dict[int, Turns]

BEGIN = "<!-- queues: made by `make bench-queue` -->"
END = "<!-- end of queues -->"
COLOURS = [
    "#444",
    "#d62728",
    "#ff7f0e",
    "#8c564b",
    "#bcbd22",
    "#e377c2",
    "#1f77b4",
    "#17becf",
    "#2ca02c",
    "#9467bd",
    "#bcbd22",
    "#7f7f7f",
    "#98df8a",
    "#ffbb78",
    "#aec7e8",
]
LARGE = 2 << 20


def size_name(size: int) -> str:
    if size < 1024:
        return f"{size} B"
    return f"{size >> 10} KiB" if size < 1 << 20 else f"{size >> 20} MiB"


def middle(turns: list[dict[str, float] | None]) -> dict[str, float] | None:
    """The median of each figure; None if no turn gave any."""
    good = [turn for turn in turns if turn is not None]
    if not good:
        return None
    return {name: statistics.median(turn[name] for turn in good) for name in good[0]}


def ratios(turns: Turns, name: str, beside: str, figure: str = "rate") -> list[float]:
    """Of the turns of each round, in ascending order."""
    rounds = zip(turns.get(name, []), turns.get(beside, []), strict=False)
    return sorted(ours[figure] / theirs[figure] for ours, theirs in rounds if ours and theirs)


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
            rss = f"{row['put_mb']:.0f}, {row['get_mb']:.0f}" if row["put_mb"] else ""
            rss += f", {row['broker_mb']:.0f}" if "broker_mb" in row else ""
            cells = f"{row['rate']:,.0f} | {gigabits:.2f} | {row['cpu_us']:.2f} | {rss}"
            lines.append(f"| {name}{note} | {cells} |")
    return "\n".join(lines)


def verdicts(results: Results) -> str:
    """What was to be reached, and what was."""
    lines = [
        "",
        "| at | ucall beside | to reach | median (least..most) | |",
        "|---|---|---:|---:|---|",
    ]

    def judge(size: int, name: str, beside: str, least: float | None) -> None:
        found = ratios(results.get(size, {}), name, beside)
        if not found:
            return
        median = statistics.median(found)
        wanted = "" if least is None else f"{least:g}"
        verdict = "" if least is None else ("met" if median >= least else "**missed**")
        spread = f"{median:.2f} ({found[0]:.2f}..{found[-1]:.2f})"
        lines.append(f"| {size_name(size)} | {name}: {beside} | {wanted} | {spread} | {verdict} |")

    for name in ("ucall", "ucall, epoll"):
        judge(LARGE, name, "C pair", 0.8)
        judge(LARGE, name, "net-queue", 3)
        judge(64, name, "net-queue", 30)
        judge(64, name, "pyzmq", None)
    # Ahead of it.
    for name in ("ucall, SHM", "ucall, SHM, trusted"):
        judge(LARGE, name, "C pair", 1)
    for size in (LARGE, 64):
        judge(size, "ucall, MQTT", "net-queue, MQTT", 2)
    lines += memory_verdict(results.get(LARGE, {}))
    return "\n".join(lines)


def memory_verdict(turns: Turns) -> list[str]:
    """Of the two processes beside a broker, not of that itself."""
    ours, theirs = (middle(turns.get(f"{name}, MQTT", [])) for name in ("ucall", "net-queue"))
    if not ours or not theirs:
        return []
    share = (ours["put_mb"] + ours["get_mb"]) / (theirs["put_mb"] + theirs["get_mb"])
    verdict = "met" if share <= 0.1 else "**missed**"
    return [
        f"| {size_name(LARGE)} | memory, MQTT: net-queue | 0.1 at most | {share:.2f} | {verdict} |"
    ]


def plot(results: Results) -> str:
    """Throughput over message size, both logarithmic, as an SVG."""
    width, height, margin = 560, 320, 60
    sizes = list(results)
    rows = {size: {name: middle(turns) for name, turns in results[size].items()} for size in sizes}

    def x(size: float) -> float:
        low, high = math.log(sizes[0]), math.log(sizes[-1])
        return margin + width * (math.log(size) - low) / max(high - low, 1e-9)

    def y(gigabits: float) -> float:
        share = (math.log10(max(gigabits, 1e-3)) + 3) / 5.6
        return margin / 2 + height * (1 - share)

    style = 'font-family="sans-serif" font-size="11"'
    total = f'width="{width + 230}" height="{height + margin}"'
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" {total} {style}>']
    parts.append('<rect width="100%" height="100%" fill="white"/>')
    for power in range(-3, 3):
        at = y(10**power)
        parts.append(f'<path d="M{margin} {at:.1f}h{width}" stroke="#ddd"/>')
        parts.append(f'<text x="8" y="{at + 4:.1f}">{10.0**power:g} Gbit/s</text>')
    for size in sizes:
        place = f'x="{x(size) - 16:.1f}" y="{height + margin / 2 + 18}"'
        parts.append(f"<text {place}>{size_name(size)}</text>")
    names = list(dict.fromkeys(name for found in rows.values() for name in found))
    for index, name in enumerate(names):
        colour = COLOURS[index % len(COLOURS)]
        points = [
            f"{x(size):.1f},{y(found[name]['rate'] * size * 8 / 1e9):.1f}"
            for size, found in rows.items()
            if found.get(name)
        ]
        line = f'points="{" ".join(points)}" fill="none" stroke="{colour}" stroke-width="2"'
        parts.append(f"<polyline {line}/>")
        place = f'x="{margin + width + 14}" y="{margin + index * 18}"'
        parts.append(f'<text {place} fill="{colour}">{name}</text>')
    return "".join(parts) + "</svg>\n"


def summary(results: Results) -> str:
    """Messages a second, by size and contender."""
    names = list(next(iter(results.values())))
    lines = [f"| messages/s | {' | '.join(names)} |", "|---|" + "---:|" * len(names)]
    for size, turns in results.items():
        rows = [middle(turns[name]) for name in names]
        cells = [f"{row['rate']:,.0f}" if row else "failed" for row in rows]
        lines.append(f"| {size_name(size)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def write_pages(results: Results, docs: Path, how: str) -> None:
    """The plot, and what is between the markers of docs/queues.md."""
    (docs / "queue.svg").write_text(plot(results), encoding="utf-8")
    page = docs / "queues.md"
    before, rest = page.read_text(encoding="utf-8").split(BEGIN)
    _, after = rest.split(END)
    where = f"Linux {platform.release().split('-')[0]}, {os.cpu_count()} cores, {how}"
    told = f"{where}; only ratios within the run say something.\n\n{summary(results)}\n"
    told += f"{verdicts(results)}\n"
    page.write_text(f"{before}{BEGIN}\n{told}{END}{after}", encoding="utf-8")
