"""Cumulative distributions as an SVG, written by hand: a panel a load, a line a server."""

from pathlib import Path

COLOURS = ["#444", "#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b", "#17becf"]
WIDTH, HEIGHT, MARGIN = 620, 230, 48


def plot(results: dict[str, dict[str, list[float]]], path: Path, from_ms: float) -> None:
    """Draws what share of the calls had ended after how many milliseconds."""
    panels = [
        _panel(load, by_server, index * (HEIGHT + MARGIN), from_ms)
        for index, (load, by_server) in enumerate(results.items())
    ]
    height = len(panels) * (HEIGHT + MARGIN) + MARGIN
    size = f'width="{WIDTH + 2 * MARGIN}" height="{height}"'
    style = 'font-family="sans-serif" font-size="11" fill="none"'
    svg = f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>'
    svg += '<rect width="100%" height="100%" fill="white"/>'
    path.write_text(svg + "".join(panels) + "</svg>\n", encoding="utf-8")


def _panel(load: str, by_server: dict[str, list[float]], top: int, from_ms: float) -> str:
    to_ms = max(at[99] for at in by_server.values()) * 1.05
    base = top + MARGIN

    def x(milliseconds: float) -> float:
        share = (milliseconds - from_ms) / (to_ms - from_ms)
        return MARGIN + WIDTH * min(max(share, 0.0), 1.0)

    def y(percent: float) -> float:
        return base + HEIGHT * (1 - percent / 100)

    parts = [f'<text x="{MARGIN}" y="{base - 8}" fill="#000">ab {load}</text>']
    frame = f'x="{MARGIN}" y="{base}" width="{WIDTH}" height="{HEIGHT}"'
    parts.append(f'<rect {frame} stroke="#bbb"/>')
    for percent in (50, 95):
        line = f'x1="{MARGIN}" x2="{MARGIN + WIDTH}" y1="{y(percent)}" y2="{y(percent)}"'
        parts.append(f'<line {line} stroke="#ddd"/>')
        parts.append(f'<text x="8" y="{y(percent) + 4}" fill="#000">{percent} %</text>')
    for step in range(6):
        at = from_ms + step * (to_ms - from_ms) / 5
        parts.append(f'<text x="{x(at) - 14:.0f}" y="{base + HEIGHT + 14}" fill="#000">')
        parts.append(f"{at:.0f} ms</text>")
    for index, (name, at) in enumerate(by_server.items()):
        points = " ".join(f"{x(ms):.1f},{y(percent):.1f}" for percent, ms in enumerate(at))
        colour = COLOURS[index % len(COLOURS)]
        parts.append(f'<polyline points="{points}" stroke="{colour}" stroke-width="1.5"/>')
        label = f'x="{MARGIN + WIDTH - 150}" y="{base + HEIGHT - 12 - 14 * index}"'
        parts.append(f'<text {label} fill="{colour}">{name}</text>')
    return "".join(parts)
