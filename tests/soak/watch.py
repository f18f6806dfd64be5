"""Samples of a process, whether they stay flat, and a picture of them."""

from __future__ import annotations

import os
import statistics
from dataclasses import dataclass
from pathlib import Path

#: Memory may differ by this from the first part of the run to the last: what the traffic happens to
#: hold at that moment.
RSS_SLACK_MIB = 16
RSS_SLACK_SHARE = 0.10
#: The part of a run that is warming up.
WARM_UP = 0.25
#: What may be open after the traffic more than before it.
DESCRIPTORS_SLACK = 3
#: Connections after it: the one that asks.
CONNECTIONS_MAX = 1


@dataclass
class Sample:
    at_s: float
    rss_mib: float
    descriptors: int
    threads: int


def sample(pid: int, at_s: float) -> Sample:
    """Memory in MiB, descriptors and threads of a process now."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    rss_mib = int(fields["VmRSS"].split()[0]) / 1024
    descriptors = len(os.listdir(f"/proc/{pid}/fd"))
    return Sample(round(at_s, 2), round(rss_mib, 2), descriptors, int(fields["Threads"]))


def complaints(samples: list[Sample], before: Sample, after: Sample, connections: int) -> list[str]:
    """What is not flat: memory from the first third behind the warm-up to the last, and what is
    open when all clients have gone."""
    warm = samples[int(len(samples) * WARM_UP) :]
    third = max(1, len(warm) // 3)
    early = statistics.median(it.rss_mib for it in warm[:third])
    late = statistics.median(it.rss_mib for it in warm[-third:])
    found = []
    if late > early + max(RSS_SLACK_MIB, RSS_SLACK_SHARE * early):
        found.append(f"memory grew from {early:.1f} to {late:.1f} MiB")
    if after.descriptors > before.descriptors + DESCRIPTORS_SLACK:
        found.append(f"{after.descriptors} descriptors stay, there were {before.descriptors}")
    # io_uring's sockets are no descriptors of the process.
    if connections > CONNECTIONS_MAX:
        found.append(f"{connections} connections stay open")
    return found


WIDTH, HEIGHT, MARGIN = 620, 150, 60


def picture(runs: dict[str, list[Sample]], path: Path) -> None:
    """Draws memory and descriptors over time, a line for each run."""
    panels = [
        _panel("resident memory, MiB", {name: _points(it, "rss_mib") for name, it in runs.items()}),
        _panel("descriptors", {name: _points(it, "descriptors") for name, it in runs.items()}),
    ]
    step = HEIGHT + MARGIN
    moved = (f'<g transform="translate(0 {i * step})">{it}</g>' for i, it in enumerate(panels))
    size = f'width="{WIDTH + 2 * MARGIN}" height="{len(panels) * step + MARGIN // 2}"'
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif"'
    rest = 'font-size="11" fill="none"><rect width="100%" height="100%" fill="white"/>'
    path.write_text(f"{opening} {rest}{''.join(moved)}</svg>\n", encoding="utf-8")


def _points(samples: list[Sample], field: str) -> list[tuple[float, float]]:
    return [(it.at_s, float(getattr(it, field))) for it in samples]


COLOURS = ["#1f77b4", "#d62728", "#2ca02c", "#9467bd"]


def _panel(title: str, lines: dict[str, list[tuple[float, float]]]) -> str:
    end_s = max(at for points in lines.values() for at, _ in points) or 1
    top = 1.1 * max(value for points in lines.values() for _, value in points)
    base = MARGIN // 2
    frame = f'x="{MARGIN}" y="{base}" width="{WIDTH}" height="{HEIGHT}"'
    parts = [
        f'<rect {frame} stroke="#bbb"/>',
        f'<text x="{MARGIN}" y="{base - 8}" fill="#000">{title}</text>',
    ]
    for part in (0, 0.5, 1):
        y, x = base + HEIGHT * (1 - part), MARGIN + WIDTH * part
        parts.append(f'<text x="8" y="{y + 4:.0f}" fill="#000">{top * part:.0f}</text>')
        where = f'x="{x - 12:.0f}" y="{base + HEIGHT + 14}"'
        parts.append(f'<text {where} fill="#000">{end_s * part / 60:.1f} min</text>')
    for index, (name, points) in enumerate(lines.items()):
        drawn = " ".join(
            f"{MARGIN + WIDTH * at / end_s:.1f},{base + HEIGHT * (1 - value / top):.1f}"
            for at, value in points
        )
        colour = COLOURS[index % len(COLOURS)]
        parts.append(f'<polyline points="{drawn}" stroke="{colour}"/>')
        place = f'x="{MARGIN + WIDTH - 110}" y="{base + HEIGHT - 10 - 14 * index}"'
        parts.append(f'<text {place} fill="{colour}">{name}</text>')
    return "".join(parts)
