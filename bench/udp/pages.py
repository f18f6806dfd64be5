"""Writes the section of docs/udp.md from the samples of `make bench-udp`."""

import os
import platform
import statistics
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness.report import Spread
from harness.rows import ROOT
from render.interval import interval
from render.verdicts import outcome

PAGE = ROOT / "docs/udp.md"
BEGIN = "<!-- benchmark: written by make bench-udp -->"
END = "<!-- end of benchmark -->"

ECHO = "C, recvmmsg echo"
WITHOUT_SOCKETS = "ucall C, the same call without sockets"
#: A claim, the rows of its two sides, of which the times are added, and the most of the ratio.
Goal = tuple[str, list[str], list[str], float]
Results = dict[str, Any]


def goals() -> list[Goal]:
    found: list[Goal] = []
    for language in ("Python", "C"):
        for engine in ("posix", "io_uring"):
            server = f"ucall {language}, {engine}"
            sides = [f"{server}, UDP"], [f"{server}, raw TCP"]
            found.append((f"{language}, {engine}: UDP of raw TCP", *sides, 0.75))
    posix, uring = (["ucall C, posix, UDP"], ["ucall C, io_uring, UDP"])
    floor = [ECHO, WITHOUT_SOCKETS]
    found.append(("C, posix: of an echo and the same call without sockets", posix, floor, 1.15))
    found.append(("C: io_uring of posix", uring, posix, 1.15))
    uring, posix = (["ucall Python, io_uring, UDP"], ["ucall Python, posix, UDP"])
    found.append(("Python: io_uring of posix", uring, posix, 1.15))
    return found


def machine() -> dict[str, str]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(": ")[1] for line in lines if line.startswith("model name")), "")
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "cpu": f"{os.cpu_count()} cores ({model.strip() or platform.machine()})",
        "kernel": platform.release().partition("-")[0],
        "python": platform.python_version(),
    }


def cpu_times(results: Results, names: list[str]) -> list[float]:
    """The sums of each round; none if a row was not measured."""
    if any(name not in results["samples"] for name in names):
        return []
    rows = [[one["cpu_us"] for one in results["samples"][name]] for name in names]
    return [sum(times) for times in zip(*rows, strict=True)]


def ratio(results: Results, ours: list[str], theirs: list[str]) -> Spread | None:
    """The median of the rounds, with its 95% interval."""
    own, other = cpu_times(results, ours), cpu_times(results, theirs)
    return interval([a / b for a, b in zip(own, other, strict=True)]) if own and other else None


def tables(results: Results) -> str:
    lines = [
        "| | CPU µs/call | of the echo | calls/s |",
        "|---|---:|---:|---:|",
    ]
    for name, samples in results["samples"].items():
        cost, of_echo = interval(cpu_times(results, [name])), ratio(results, [name], [ECHO])
        rate = statistics.median(one["rate"] for one in samples)
        shown = f"{rate:,.0f}" if rate else ""
        assert cost is not None and of_echo is not None
        label = f"**{name}**" if name.startswith("ucall") else name
        cells = [label, cost.text("{:.2f}"), of_echo.text("{:.2f}"), shown]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "| CPU time of a call, ratio | at most | measured | |", "|---|---:|---:|---|"]
    for claim, ours, theirs, most in goals():
        found = ratio(results, ours, theirs)
        if found is not None:
            verdict = outcome(found, most=most, least=0)
            lines.append(f"| {claim} | {most} | {found.text('{:.2f}')} | {verdict} |")
    return "\n".join(lines)


def write(results: Results) -> None:
    """Replaces the text between the markers of the page."""
    about, rounds = results["machine"], len(results["samples"][ECHO])
    how = (
        f"{about['date']}, {about['cpu']}, Linux {about['kernel']}, CPython {about['python']}; "
        f"medians of {rounds} rounds of {results['seconds']:g} s, with their 95% intervals."
    )
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    _, after = rest.split(END)
    PAGE.write_text(f"{before}{BEGIN}\n{how}\n\n{tables(results)}\n{END}{after}", encoding="utf-8")
