"""Fails if a call of the C library takes more instructions or system calls: `make bench-gate`.

    python bench/gate.py [--write]

Compares user instructions and system calls a call, on both engines, with those in `gate.json`. They
hardly vary, however busy the machine is. Figures that no installed tool can count are named and
skipped. `--write` stores new figures; a commit that raises them says why.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from harness import deterministic
from harness.rows import OUTPUT, ROWS, Contender, contenders

STORED = Path(__file__).parent / "gate.json"
#: Compilers and C libraries of one version differ by less.
INSTRUCTIONS_TOLERANCE = 0.03
SYSTEM_CALLS_TOLERANCE = 0.02
ENGINES = ("posix", "uring")
OTHER_BUILDS = ("CARGO_PROFILE_RELEASE_LTO", "CARGO_PROFILE_RELEASE_CODEGEN_UNITS")


def ours() -> Iterator[tuple[str, Contender]]:
    for contender in contenders(ENGINES, [str(OUTPUT / "c-sum")]):
        if contender.baselines and contender.name.startswith("ours-"):
            yield contender.name.removeprefix("ours-"), contender


def figures_of(contender: Contender) -> tuple[dict[str, float], list[str]]:
    """The figures by name, and the reasons for missing ones."""
    found = deterministic.figures(contender, ROWS["single"])
    named = {f"instructions by {tool}": count for tool, count in found.instructions.items()}
    if found.system_calls:
        named["system calls"] = sum(found.system_calls.values())
    return {name: round(count, 2) for name, count in named.items()}, found.notes


def measured() -> tuple[dict[str, dict[str, float]], list[str]]:
    found: dict[str, dict[str, float]] = {}
    notes: list[str] = []
    for engine, contender in ours():
        found[engine], why = figures_of(contender)
        notes += why
    return found, notes


def tolerance(name: str) -> float:
    return SYSTEM_CALLS_TOLERANCE if name == "system calls" else INSTRUCTIONS_TOLERANCE


def compared(
    stored: dict[str, dict[str, float]], found: dict[str, dict[str, float]]
) -> Iterator[tuple[bool, str]]:
    """Yields for each stored figure whether it holds, and a line of output."""
    for engine, figures in stored.items():
        for name, most in figures.items():
            now = found.get(engine, {}).get(name)
            what = f"C, {engine}, {name} a call"
            if now is None:
                yield True, f"SKIPPED  {what}: not counted here"
                continue
            holds = now <= most * (1 + tolerance(name))
            word = "ok      " if holds else "DEARER  "
            change = f"{(now / most - 1):+.1%}"
            yield holds, f"{word} {what}: {now:,.2f}, stored {most:,.2f} ({change})"


def compiler() -> str:
    done = subprocess.run(["rustc", "--version"], capture_output=True, text=True, check=True)
    return done.stdout.split()[1]


def reason_to_skip(stored: dict) -> str | None:
    if os.environ.keys() & set(OTHER_BUILDS):
        return f"{' or '.join(OTHER_BUILDS)} is set: this is not the release build"
    if compiler() != stored["rustc"]:
        return f"gate.json is of rustc {stored['rustc']}, this is {compiler()}: use --write"
    return None


def write(found: dict[str, dict[str, float]]) -> None:
    content = {"rustc": compiler(), "figures": found}
    STORED.write_text(json.dumps(content, indent=2) + "\n")
    print(f"Written to {STORED.name}.")


def main() -> None:
    parser = argparse.ArgumentParser(description="Fails if a call in C costs more than before.")
    parser.add_argument("--write", action="store_true", help="store what is found")
    options = parser.parse_args()
    stored = json.loads(STORED.read_text()) if STORED.exists() else {}
    if not options.write and (reason := reason_to_skip(stored)):
        print(f"bench-gate SKIPPED: {reason}")
        return
    OUTPUT.mkdir(exist_ok=True)
    found, notes = measured()
    if options.write:
        write(found)
        return
    lines = list(compared(stored["figures"], found))
    print(*(text for _, text in lines), *(f"note: {note}" for note in notes), sep="\n")
    if not all(holds for holds, _ in lines):
        sys.exit("bench-gate: a call costs more than before. See bench/README.md.")


if __name__ == "__main__":
    main()
