"""Line charts as SVG: panels below one another, in the reader's light or dark theme.

A series has the same colour in all panels and one entry in the legend. A chart has at most as many
series as there are colours; the tables show the others.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from bench.render.charts import svg

LEFT, WIDTH, LEGEND, TOP, HEIGHT, STEP = 76, 540, 200, 40, 220, 290
#: The first is for the baseline.
COLOURS = (
    "#8c959f",
    "#0969da",
    "#1a9c6b",
    "#bf5700",
    "#8250df",
    "#c2569b",
    "#1b9aaa",
    "#bf8700",
    "#d1242f",
)


@dataclass(frozen=True)
class Axis:
    """From `low` to `high`; values beyond are drawn at the end. `ticks` are values and their
    text."""

    low: float
    high: float
    ticks: Mapping[float, str]
    is_logarithmic: bool = False

    def share(self, value: float) -> float:
        """The position on the axis, from 0 to 1."""
        value = min(max(value, self.low), self.high)
        if self.is_logarithmic:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


@dataclass(frozen=True)
class Panel:
    """Lines through the points of each series, in the order given."""

    title: str
    x: Axis
    y: Axis
    series: Mapping[str, Sequence[tuple[float, float]]]


def lines(panels: Sequence[Panel], dashed: Collection[str] = ()) -> str:
    """The chart. `dashed` names the series of other projects."""
    names = list(dict.fromkeys(name for panel in panels for name in panel.series))
    if len(names) > len(COLOURS):
        raise ValueError(f"{len(names)} series, and only {len(COLOURS)} colours")
    styles = {
        name: f'stroke="{colour}"' + (' stroke-dasharray="5 3"' if name in dashed else "")
        for name, colour in zip(names, COLOURS, strict=False)
    }
    parts = [_panel(panel, STEP * index, styles) for index, panel in enumerate(panels)]
    parts += (_entry(name, index, styles[name]) for index, name in enumerate(names))
    title = "; ".join(panel.title for panel in panels)
    return svg(LEFT + WIDTH + LEGEND, STEP * len(panels), title, parts)


def _panel(panel: Panel, top: float, styles: Mapping[str, str]) -> str:
    bottom = top + TOP + HEIGHT

    def x(value: float) -> float:
        return LEFT + WIDTH * panel.x.share(value)

    def y(value: float) -> float:
        return bottom - HEIGHT * panel.y.share(value)

    parts = [f'<text class="title" x="{LEFT}" y="{top + 24}">{escape(panel.title)}</text>']
    for value, text in panel.y.ticks.items():
        at = y(value)
        parts.append(f'<path class="grid" d="M{LEFT} {at:.1f}h{WIDTH}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">')
        parts.append(f"{escape(text)}</text>")
    for value, text in panel.x.ticks.items():
        at = x(value)
        parts.append(f'<path class="grid" d="M{at:.1f} {bottom}v5"/>')
        parts.append(f'<text class="tick" x="{at:.1f}" y="{bottom + 18}" text-anchor="middle">')
        parts.append(f"{escape(text)}</text>")
    for name, points in panel.series.items():
        drawn = " ".join(f"{x(at):.1f},{y(value):.1f}" for at, value in points)
        parts.append(f'<polyline points="{drawn}" fill="none" stroke-width="2" {styles[name]}/>')
    return "".join(parts)


def _entry(name: str, index: int, style: str) -> str:
    """A line of the legend."""
    x, y = LEFT + WIDTH + 20, TOP + 12 + 20 * index
    return (
        f'<path d="M{x} {y - 4}h22" stroke-width="2" {style}/>'
        f'<text x="{x + 30}" y="{y}">{escape(name)}</text>'
    )
