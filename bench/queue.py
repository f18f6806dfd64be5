"""Measures queues: messages of five sizes from one process to another, over loopback.

    make bench-queue
    python bench/queue.py --sizes 64 2097152 --seconds 1 --rounds 3

Ours is measured beside net-queue, pyzmq (raw bytes, no acknowledgement) and a pair of C programs of
which the reader allocates memory for each message. All take their turns, round by round, since
machines drift: only ratios of one run hold. Writes .bench/queue.json and docs/queue.svg.
"""

import argparse
import json
import math
import socket
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAIRS = ROOT / "bench" / "queues"
BENCH = ROOT / ".bench"
NET_QUEUE = BENCH / "netqueue" / "bin" / "python"
ZEROMQ = BENCH / "zeromq" / "bin" / "python"
SIZES = [64, 2048, 65536, 2 << 20, 64 << 20]
CONTENDERS = {
    "C pair": None,
    "ucall": (Path(sys.executable), "ours.py", "tcp"),
    "ucall, Unix": (Path(sys.executable), "ours.py", "unix"),
    "ucall, asyncio": (Path(sys.executable), "ours.py", "async"),
    "pyzmq": (ZEROMQ, "zeromq.py", "sync"),
    "pyzmq, asyncio": (ZEROMQ, "zeromq.py", "async"),
    "net-queue": (NET_QUEUE, "netqueue.py", "sync"),
    "net-queue, asyncio": (NET_QUEUE, "netqueue.py", "async"),
}
COLOURS = ["#444", "#d62728", "#ff7f0e", "#e377c2", "#1f77b4", "#17becf", "#2ca02c", "#9467bd"]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


def measure_pair(contender: str, size: int, seconds: float) -> dict[str, float] | None:
    """One turn. None if it failed, or was not through in time."""
    if CONTENDERS[contender] is None:
        command = [str(BENCH / "floor-pair"), str(size), str(seconds)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        rate, cpu = map(float, done.stdout.split())
        return {"rate": rate, "cpu_us": cpu / (rate * seconds) * 1e6, "put_mb": 0, "get_mb": 0}
    python, script, mode = CONTENDERS[contender]
    port = str(free_port())
    sides = [
        subprocess.Popen(
            [str(python), str(PAIRS / script), role, mode, port, str(size), str(seconds)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for role in ("get", "put")
    ]
    try:
        got, put = (side.communicate(timeout=20 + 5 * seconds)[0].split() for side in sides)
        messages, took, get_cpu, get_mb = map(float, got)
        put_cpu, put_mb = map(float, put)
    except (subprocess.TimeoutExpired, ValueError):
        return None
    finally:
        for side in sides:
            side.kill()
            side.wait()
    cpu_us = (get_cpu + put_cpu) / max(messages, 1) * 1e6
    return {"rate": messages / took, "cpu_us": cpu_us, "put_mb": put_mb, "get_mb": get_mb}


def middle(turns: list[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(turn[name] for turn in turns) for name in turns[0]}


def table(results: dict[int, dict[str, dict[str, float]]]) -> str:
    lines = []
    for size, rows in results.items():
        lines += ["", f"### {size:,} bytes", ""]
        lines.append("| | messages/s | Gbit/s | CPU µs a message | RSS MB put, get |")
        lines.append("|---|---:|---:|---:|---:|")
        for name, row in rows.items():
            gigabits = row["rate"] * size * 8 / 1e9
            rss = f"{row['put_mb']:.0f}, {row['get_mb']:.0f}" if row["put_mb"] else ""
            cells = f"{row['rate']:,.0f} | {gigabits:.2f} | {row['cpu_us']:.2f} | {rss}"
            lines.append(f"| {name} | {cells} |")
    return "\n".join(lines)


def plot(results: dict[int, dict[str, dict[str, float]]], path: Path) -> None:
    """Throughput over message size, both logarithmic, as an SVG."""
    width, height, margin = 560, 320, 60
    sizes = list(results)

    def x(size: float) -> float:
        low, high = math.log(sizes[0]), math.log(sizes[-1])
        return margin + width * (math.log(size) - low) / max(high - low, 1e-9)

    def y(gigabits: float) -> float:
        share = (math.log10(max(gigabits, 1e-3)) + 3) / 5
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
        name = f"{size} B" if size < 1024 else f"{size >> 10} KiB"
        name = name if size < 1 << 20 else f"{size >> 20} MiB"
        parts.append(f'<text x="{x(size) - 16:.1f}" y="{height + margin / 2 + 18}">{name}</text>')
    names = list(dict.fromkeys(name for rows in results.values() for name in rows))
    for index, name in enumerate(names):
        colour = COLOURS[index % len(COLOURS)]
        points = [
            f"{x(size):.1f},{y(rows[name]['rate'] * size * 8 / 1e9):.1f}"
            for size, rows in results.items()
            if name in rows
        ]
        line = f'points="{" ".join(points)}" fill="none" stroke="{colour}" stroke-width="2"'
        parts.append(f"<polyline {line}/>")
        place = f'x="{margin + width + 14}" y="{margin + index * 18}"'
        parts.append(f'<text {place} fill="{colour}">{name}</text>')
    path.write_text("".join(parts) + "</svg>\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sizes", type=int, nargs="*", default=SIZES)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each turn")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=list(CONTENDERS), choices=list(CONTENDERS))
    parser.add_argument("--plot", type=Path, default=ROOT / "docs" / "queue.svg")
    given = parser.parse_args()
    if not NET_QUEUE.exists():
        given.only = [name for name in given.only if not name.startswith("net-queue")]
    results: dict[int, dict[str, dict[str, float]]] = {}
    for size in given.sizes:
        turns: dict[str, list[dict[str, float]]] = {name: [] for name in given.only}
        for _ in range(given.rounds):
            for name in given.only:
                turn = measure_pair(name, size, given.seconds)
                if turn is not None:
                    turns[name].append(turn)
        results[size] = {name: middle(all_) for name, all_ in turns.items() if all_}
    BENCH.mkdir(exist_ok=True)
    (BENCH / "queue.json").write_text(json.dumps(results, indent=1), encoding="utf-8")
    if len(results) > 1:
        plot(results, given.plot)
    print(table(results))


main()
