"""Compares ucall with the floor, in interleaved pairs: `make bench-quick`.

    python bench/quick.py [--rows headline,single] [--engines posix,uring] [--pairs N] [--seconds S]

Prints a table for each load, then the deterministic figures, and writes all of them to
`.bench/quick.json`. `bench/README.md` explains them.
"""

import argparse
import dataclasses
import json
import os
import platform
import shlex
import shutil
import signal
import sys
from collections.abc import Sequence

from harness import deterministic, load, processes, report, request
from harness.rows import OUTPUT, ROWS, Contender, Row, contenders, sum_server

FAILURES = (load.LoadError, processes.StartError, request.WrongReplyError, OSError)
DETERMINISTIC_ROWS = ("headline", "batch")


def names_of(known: Sequence[str]):
    """An argument's type: a list of known names, separated by commas."""

    def parse(text: str) -> list[str]:
        chosen = text.split(",")
        if unknown := set(chosen) - set(known):
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: not among {', '.join(known)}")
        return chosen

    return parse


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compares ucall with the floor.")
    parser.add_argument("--rows", type=names_of(tuple(ROWS)), default=list(ROWS))
    engines = ("posix", "uring")
    parser.add_argument("--engines", type=names_of(engines), default=list(engines))
    parser.add_argument("--pairs", type=int, help="by default 15 for the headline, 5 for others")
    parser.add_argument("--seconds", type=int, default=2, help="of each load (2)")
    parser.add_argument(
        "--ours",
        type=shlex.split,
        default=sum_server(),
        metavar="COMMAND",
        help="the server to measure; `--engine ENGINE --port 0` is added",
    )
    parser.add_argument("--no-deterministic", dest="deterministic", action="store_false")
    parser.add_argument("--only-deterministic", dest="timed", action="store_false")
    return parser.parse_args()


def print_line(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def usable(chosen: Sequence[Contender], row: Row, problems: list[str]) -> list[Contender]:
    """The contenders whose replies to a checked load are all right; others are reported."""
    good = []
    for contender in chosen:
        try:
            load.check(contender, row)
            good.append(contender)
        except FAILURES as error:
            problems.append(f"{row.name}: {contender.label}: {error}")
            print_line(f"LEFT OUT: {problems[-1]}")
    missing = {name for c in good for name in c.baselines} - {c.name for c in good}
    return [] if missing else good


def interleaved(
    chosen: Sequence[Contender], row: Row, pairs: int, seconds: int, problems: list[str]
) -> report.Series:
    """Runs rounds in which each contender is measured once. Every second round runs in reverse, so
    that the order has no effect. A round with a failure is dropped as a whole."""
    series: report.Series = {contender.name: [] for contender in chosen}
    for number in range(pairs):
        order = chosen if number % 2 == 0 else list(reversed(chosen))
        print_line(f"{row.name}: round {number + 1} of {pairs}")
        try:
            samples = {c.name: load.measure(c, row, seconds) for c in order}
        except FAILURES as error:
            problems.append(f"{row.name}, round {number + 1}: {error}")
            print_line(f"DROPPED: {problems[-1]}")
            continue
        for name, sample in samples.items():
            series[name].append(sample)
    return series


def measure_row(
    chosen: Sequence[Contender], row: Row, options: argparse.Namespace, problems: list[str]
) -> dict:
    """Measures, prints the table and returns the same for the JSON file."""
    good = usable(chosen, row, problems)
    series = interleaved(good, row, options.pairs or row.pairs, options.seconds, problems)
    if not good or not series[good[0].name]:
        problems.append(f"{row.name}: nothing was measured")
        return {}
    print(report.row_table(row, good, series, options.seconds), end="\n\n", flush=True)
    samples = {name: [dataclasses.asdict(s) for s in found] for name, found in series.items()}
    return {"figures": report.row_figures(good, series), "samples": samples}


def measure_deterministic(chosen: Sequence[Contender], row: Row) -> dict:
    found = {}
    for contender in chosen:
        print_line(f"{row.name}: instructions and system calls of {contender.label}")
        found[contender.name] = (contender, deterministic.figures(contender, row))
    print(report.figures_table(row, found), end="\n\n", flush=True)
    return {name: dataclasses.asdict(figures) for name, (_, figures) in found.items()}


def measure_all(options: argparse.Namespace, problems: list[str]) -> dict:
    chosen = contenders(options.engines, options.ours)
    rows = [ROWS[name] for name in options.rows]
    results: dict = {"machine": machine(), "rows": {}, "deterministic": {}}
    if options.timed:
        for row in rows:
            results["rows"][row.name] = measure_row(chosen, row, options, problems)
    if options.deterministic:
        for row in rows:
            if row.name in DETERMINISTIC_ROWS:
                results["deterministic"][row.name] = measure_deterministic(chosen, row)
    return results


def machine() -> dict:
    server_core, load_core = processes.cores()
    return {
        "kernel": platform.release().partition("-")[0],
        "architecture": platform.machine(),
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "server_core": server_core,
        "load_core": load_core,
    }


def check_tools() -> None:
    if not shutil.which("wrk"):
        sys.exit("wrk is missing: tools/install-bench-tools.sh installs it")
    if processes.cores()[0] == processes.cores()[1]:
        print_line("Only one core: server and load share it, so the figures are not reliable.")


def end_on_sigterm(*_) -> None:
    """Raises an exception, so that servers and loads are ended before exit."""
    sys.exit("stopped by SIGTERM")


def main() -> None:
    options = arguments()
    signal.signal(signal.SIGTERM, end_on_sigterm)
    check_tools()
    OUTPUT.mkdir(exist_ok=True)
    processes.pin_to(processes.cores()[1])
    problems: list[str] = []
    results = measure_all(options, problems)
    (OUTPUT / "quick.json").write_text(json.dumps({**results, "problems": problems}, indent=2))
    print(f"Written to {(OUTPUT / 'quick.json').relative_to(OUTPUT.parent)}.")
    if problems:
        sys.exit("\n".join(["Problems:", *problems]))


main()
