"""Memory and descriptors over a soak, as an SVG.

The benchmark's code draws it, so the folder of `bench` must be on the path, as in `make soak`.
"""

from __future__ import annotations

from bench.render.lines import Axis, Panel, lines
from soak.samples import Sample


def chart(runs: dict[str, list[Sample]]) -> str:
    """A line for each run."""
    return lines(
        [
            _panel("Resident memory, MiB", "rss_mib", runs),
            _panel("Descriptors", "descriptors", runs),
        ]
    )


def _panel(title: str, field: str, runs: dict[str, list[Sample]]) -> Panel:
    series = {
        name: [(it.at_s / 60, float(getattr(it, field))) for it in samples]
        for name, samples in runs.items()
    }
    points = [point for found in series.values() for point in found]
    end = max(at for at, _ in points) or 1
    high = max(value for _, value in points) * 1.1
    time = Axis(0, end, {end * part: f"{end * part:.3g} min" for part in (0, 0.5, 1)})
    return Panel(title, time, Axis(0, high, _ticks(high)), series)


def _ticks(high: float) -> dict[float, str]:
    """At most five round numbers, from 0."""
    step = next(
        it * 10**power for power in range(9) for it in (1, 2, 5) if 4 * it * 10**power > high
    )
    return {float(at): f"{at:,}" for at in range(0, int(high) + 1, step)}
