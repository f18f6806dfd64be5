"""Prints the targets of two whole runs side by side, and whether their intervals overlap."""

import argparse
from collections.abc import Iterable, Iterator
from pathlib import Path

from bench.harness import figures
from bench.render.data import load_results
from bench.render.verdicts import NOT_MEASURED, Verdict, all_verdicts
from bench.suite.servers import everyone

OPTIONS = {"runs": {"type": Path, "nargs": 2, "help": "bench/results/ONE.json OTHER.json"}}


def interval(verdict: Verdict) -> tuple[float, float] | None:
    low, found, high = verdict.found.rstrip(")").partition("(")[2].partition("..")
    return (number(low), number(high)) if found else None


def number(text: str) -> float:
    return float(text.replace(",", ""))


def overlap(one: Verdict, other: Verdict) -> str:
    first, second = interval(one), interval(other)
    if not first or not second:
        return "-"
    return "yes" if first[0] <= second[1] and second[0] <= first[1] else "**no**"


def compared(one: Path, other: Path) -> list[list[str]]:
    both = [all_verdicts(load_results(path), everyone()) for path in (one, other)]
    return [
        [
            *(first.claim, first.asked),
            *(first.found, first.outcome, second.found, second.outcome),
            overlap(first, second),
        ]
        for first, second in matched(*both)
        if NOT_MEASURED not in (first.outcome, second.outcome)
    ]


def matched(one: Iterable[Verdict], other: Iterable[Verdict]) -> Iterator[tuple[Verdict, Verdict]]:
    """The verdicts of one claim; the nearest peer may be another one in the other run."""
    by_claim = {verdict.claim: verdict for verdict in other}
    for verdict in one:
        if verdict.claim in by_claim:
            yield verdict, by_claim[verdict.claim]


def run(options: argparse.Namespace) -> None:
    one, other = options.runs
    header = ["figure", "target", one.stem, "", other.stem, "", "overlap"]
    print(figures.table(header, compared(one, other)))
