"""Bar charts as SVG, which follow the reader's light or dark theme.

Written without a library, so rendering needs Python alone. Bars have a logarithmic scale, because
the servers of a chart differ by a factor of a hundred.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

WIDTH, LEFT, RIGHT, TOP, ROW, BAR = 820, 210, 110, 64, 22, 14
FAMILIES = {
    "floor": "floor",
    "ours": "ucall",
    "native": "C, C++ and Rust",
    "python": "Python",
}
STYLE = """<style>
text { font: 12px system-ui, sans-serif; fill: #24292f }
.title { font-size: 15px; font-weight: 600 }
.note, .tick { fill: #57606a }
.grid { stroke: #d0d7de; stroke-width: 1 }
.ours-label { font-weight: 600 }
.floor { fill: #8c959f } .ours { fill: #0969da } .native { fill: #bf8700 } .python { fill: #8250df }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 } .note, .tick { fill: #9198a1 } .grid { stroke: #3d444d }
.floor { fill: #6e7681 } .ours { fill: #4493f8 } .native { fill: #d29922 } .python { fill: #ab7df8 }
}
</style>"""


@dataclass(frozen=True)
class Bar:
    """A server's figure. `family` gives the colour."""

    label: str
    family: str
    value: float
    text: str


def bars(title: str, note: str, unit: str, found: Sequence[Bar], least: float | None = None) -> str:
    """The chart, with bars in the order given. They start at `least`, if it is given."""
    height = TOP + ROW * len(found) + 52
    low, high = scale([bar.value for bar in found], least)

    def x(value: float) -> float:
        share = math.log10(max(value, low) / low) / math.log10(high / low)
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    bottom = TOP + ROW * len(found)
    parts = [
        f'<text class="title" x="12" y="24">{escape(title)}</text>',
        f'<text class="note" x="12" y="44">{escape(note)}</text>',
        *(grid_line(tick, x(tick), bottom) for tick in ticks(low, high)),
        *(bar_parts(bar, TOP + ROW * index, x(bar.value)) for index, bar in enumerate(found)),
        f'<text class="tick" x="{LEFT}" y="{bottom + 34}">{escape(unit)}, logarithmic</text>',
        legend([bar.family for bar in found], bottom + 34),
    ]
    return svg(WIDTH, height, title, parts)


def svg(width: int, height: int, title: str, parts: Iterable[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img" aria-label="{escape(title)}">'
    )
    return "\n".join([head, STYLE, *parts, "</svg>\n"])


def scale(values: Sequence[float], least: float | None) -> tuple[float, float]:
    """The range from `least`, or a value below all others, to the largest; at least a decade."""
    low = least or min(values) / 2
    return low, max(max(values), low * 10)


def ticks(low: float, high: float) -> list[float]:
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [10.0**decade for decade in decades if low <= 10.0**decade <= high]


def grid_line(tick: float, x: float, bottom: float) -> str:
    text = f"{tick:,.0f}" if tick >= 1 else f"{tick:g}"
    return (
        f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 6}" y2="{bottom}"/>'
        f'<text class="tick" x="{x:.1f}" y="{bottom + 15}" text-anchor="middle">{text}</text>'
    )


def bar_parts(bar: Bar, top: float, x: float) -> str:
    middle = top + BAR / 2 + 4
    emphasis = ' class="ours-label"' if bar.family == "ours" else ""
    return (
        f'<text{emphasis} x="{LEFT - 8}" y="{middle}" text-anchor="end">{escape(bar.label)}</text>'
        f'<rect class="{bar.family}" x="{LEFT}" y="{top}" width="{x - LEFT:.1f}" height="{BAR}" '
        f'rx="2"/><text x="{x + 6:.1f}" y="{middle}">{escape(bar.text)}</text>'
    )


def legend(families: Sequence[str], y: float) -> str:
    """The legend of the families in the chart, from right to left."""
    parts, x = [], WIDTH - 12.0
    for family in reversed([name for name in FAMILIES if name in families]):
        label = FAMILIES[family]
        x -= 7.0 * len(label)
        parts.append(f'<text class="note" x="{x:.0f}" y="{y}">{escape(label)}</text>')
        x -= 16
        parts.append(f'<rect class="{family}" x="{x:.0f}" y="{y - 10}" width="11" height="11"/>')
        x -= 14
    return "".join(parts)
