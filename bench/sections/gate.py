"""Fails if a call takes more instructions or system calls than stored.

Compares user instructions and system calls a call, in C and in Python, for three shapes of
requests, with those in `gate.json`. They hardly vary, however busy the machine is. It also fails
where a tool is missing, and where `gate.json` has no figures for this compiler and this Python:
`--write` adds them. A commit that raises figures says why. Instructions by perf are named and
skipped where the machine does not grant its counters.
"""

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from bench import ROOT
from bench.harness import shapes
from bench.suite import exact, servers

STORED = ROOT / "bench/gate.json"
#: Compilers and C libraries of one version differ by less.
INSTRUCTIONS_TOLERANCE = 0.03
SYSTEM_CALLS_TOLERANCE = 0.02
OPTIONS = {"--write": {"action": "store_true", "help": "store what is found"}}
OTHER_BUILDS = ("CARGO_PROFILE_RELEASE_LTO", "CARGO_PROFILE_RELEASE_CODEGEN_UNITS")
#: What counts instructions and system calls.
TOOLS = ("valgrind", "strace")
COUNTED_BY_HARDWARE = "instructions by perf"

#: Figures by what is counted, for each server and shape.
Figures = dict[str, dict[str, float]]


def requests() -> dict[str, list[bytes]]:
    """What is sent in turn, by the shape's name."""
    wrk = shapes.requests("wrk")
    others = (request for request in wrk if len(request) != len(wrk[0]))
    other = min(others, key=lambda request: abs(len(request) - len(wrk[0])))
    return {
        "the same request": wrk[:1],
        "lengths that alternate": [wrk[0], other],
        "Chromium": shapes.requests("chromium"),
    }


def measured() -> tuple[Figures, list[str]]:
    """The figures, and the reasons for missing ones."""
    found: Figures = {}
    notes: list[str] = []
    for server in servers.ours("http"):
        _, language, engine = server.name.split("-")
        for shape, sent in requests().items():
            figures = exact.figures(server, sent)
            found[f"{language.title()}, {engine}, {shape}"] = named(figures)
            notes += figures.notes
    return found, notes


def named(figures: exact.Figures) -> dict[str, float]:
    counts = {f"instructions by {tool}": count for tool, count in figures.instructions.items()}
    if figures.system_calls:
        counts["system calls"] = sum(figures.system_calls.values())
    return {name: round(count, 2) for name, count in counts.items()}


def tolerance(name: str) -> float:
    return SYSTEM_CALLS_TOLERANCE if name == "system calls" else INSTRUCTIONS_TOLERANCE


def compared(stored: Figures, found: Figures) -> Iterator[tuple[bool, str]]:
    """Yields for each stored figure whether it holds, and a line of output."""
    for server, figures in stored.items():
        for name, most in figures.items():
            now = found.get(server, {}).get(name)
            what = f"{server}: {name} a call"
            if now is None:
                may_lack = name == COUNTED_BY_HARDWARE
                yield may_lack, f"{'SKIPPED ' if may_lack else 'MISSING '} {what}: not counted here"
                continue
            holds = now <= most * (1 + tolerance(name))
            word = "ok      " if holds else "DEARER  "
            change = f"{(now / most - 1):+.1%}"
            yield holds, f"{word} {what}: {now:,.2f}, stored {most:,.2f} ({change})"


def lower(found: Figures, again: Figures) -> Figures:
    """The lower one of each figure: a run may do what another does not, such as a collection."""
    return {
        server: {name: min(it, again.get(server, {}).get(name, it)) for name, it in counts.items()}
        for server, counts in found.items()
    }


def build() -> str:
    """The versions and the processor on which the figures depend."""
    done = subprocess.run(["rustc", "--version"], capture_output=True, text=True, check=True)
    rust, python = done.stdout.split()[1], platform.python_version()
    return f"rustc {rust}, CPython {python}, {platform.machine()}{_simd()}"


def _simd() -> str:
    """The instructions that memchr and simdutf choose under callgrind, which has no AVX-512."""
    processors = Path("/proc/cpuinfo")  # Of Linux alone.
    text = processors.read_text() if processors.exists() else ""
    return " with AVX2" if re.search(r"^flags\s.*\bavx2\b", text, re.MULTILINE) else ""


def reason_to_fail(stored: dict[str, Figures], writes: bool = False) -> str | None:
    if os.environ.keys() & set(OTHER_BUILDS):
        return f"{' or '.join(OTHER_BUILDS)} is set: this is not the release build"
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        return f"{' and '.join(missing)} not found: apt-get install {' '.join(missing)}"
    if build() not in stored and not writes:
        known = "; ".join(stored)
        return f"gate.json has figures of {known}; this is {build()}: BENCH_FLAGS=--write adds them"
    return None


def write(stored: dict[str, Figures], found: Figures) -> None:
    STORED.write_text(json.dumps(stored | {build(): found}, indent=2) + "\n")
    print(f"Written to {STORED.name}.")


def run(options: argparse.Namespace) -> None:
    stored = json.loads(STORED.read_text()) if STORED.exists() else {}
    if reason := reason_to_fail(stored, options.write):
        sys.exit(f"bench-gate: {reason}")
    found, notes = measured()
    if options.write:
        write(stored, found)
        return
    if not all(holds for holds, _ in compared(stored[build()], found)):
        print("Some calls take more than stored: counting again")
        found = lower(found, measured()[0])
    lines = list(compared(stored[build()], found))
    reasons = [f"note: {note}" for note in dict.fromkeys(notes)]
    print(*(text for _, text in lines), *reasons, sep="\n")
    if not all(holds for holds, _ in lines):
        sys.exit("bench-gate: a call costs more than before. See bench/README.md.")
