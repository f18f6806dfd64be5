"""Contenders in turns, and what is said of their samples: medians, ratios, tables, pages.

A machine's speed drifts, so contenders run in turns, every second round in reverse order, and a
ratio is taken within a round.
"""

import functools
import json
import operator
import random
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import OUTPUT, ROOT

RESAMPLES = 2000
CONFIDENCE = 0.95

Sample = dict[str, float]
#: The samples of each contender in the order of the rounds; None for a round that failed.
Runs = dict[str, list[Sample | None]]


@dataclass(frozen=True)
class Spread:
    """The median, and a range around it: the quartiles, or a confidence interval."""

    median: float
    lower: float
    upper: float

    def text(self, form: str) -> str:
        lower, upper = form.format(self.lower), form.format(self.upper)
        return f"{form.format(self.median)} ({lower}..{upper})"


def spread(values: Sequence[float]) -> Spread | None:
    """The median with the quartiles."""
    if len(values) < 2:
        return Spread(values[0], values[0], values[0]) if values else None
    lower, median, upper = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(median, lower, upper)


def interval(values: Sequence[float]) -> Spread | None:
    """The median with its 95% interval, by bootstrap: the medians of resamples with replacement.
    The same for the same values."""
    return _interval(tuple(values)) if values else None


@functools.cache
def _interval(values: tuple[float, ...]) -> Spread:
    medians = sorted(statistics.median(pick(values)) for pick in _resamples(len(values)))
    tail = round(RESAMPLES * (1 - CONFIDENCE) / 2)
    return Spread(statistics.median(values), medians[tail], medians[-1 - tail])


@functools.cache
def _resamples(count: int) -> list[Callable[[Sequence[float]], Sequence[float]]]:
    """Functions, each of which picks as many of so many values, with replacement."""
    chosen = random.Random(count)
    picked = (chosen.choices(range(count), k=count) for _ in range(RESAMPLES))
    # Of one index, itemgetter would return the value alone.
    return [operator.itemgetter(*indices, *indices[: count == 1]) for indices in picked]


def log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def in_turns(
    contenders: Mapping[str, Callable[[], Sample | None]], rounds: int, what: str = ""
) -> Runs:
    """Measures each contender once a round."""
    runs: Runs = {name: [] for name in contenders}
    for number in range(rounds):
        log(f"{what}{': ' if what else ''}round {number + 1} of {rounds}")
        for name in list(contenders)[:: -1 if number % 2 else 1]:
            runs[name].append(contenders[name]())
    return runs


def values(runs: Runs, name: str, field: str) -> list[float]:
    return [it[field] for it in runs.get(name, []) if it and it.get(field) is not None]


def ratios(runs: Runs, name: str, base: str, field: str) -> list[float]:
    """The ratio to another contender in each round of both."""
    rounds = zip(runs.get(name, []), runs.get(base, []), strict=False)
    return [own[field] / other[field] for own, other in rounds if own and other]


@dataclass(frozen=True)
class Column:
    """The median of a field; with `base`, of its ratio to that contender. `kind` adds a range."""

    title: str
    field: str
    form: str = "{:.2f}"
    base: str | None = None
    kind: Callable[[Sequence[float]], Spread | None] | None = None

    def cell(self, runs: Runs, name: str) -> str:
        if self.base is not None:
            found = ratios(runs, name, self.base, self.field)
        else:
            found = values(runs, name, self.field)
        if not found:
            return ""
        if self.kind is None:
            return self.form.format(statistics.median(found))
        return self.kind(found).text(self.form)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown, with names aligned left and figures aligned right."""
    line = "|---|" + "---:|" * (len(header) - 1)
    return "\n".join(
        [f"| {' | '.join(header)} |", line, *(f"| {' | '.join(cells)} |" for cells in rows)]
    )


def table_of(runs: Runs, columns: Sequence[Column], title: str = "") -> str:
    """A row for each contender."""
    rows = [[name, *(column.cell(runs, name) for column in columns)] for name in runs]
    return table([title, *(column.title for column in columns)], rows)


def outcome(found: Spread, *, most: float = 0, least: float = 0) -> str:
    """A target is met, or missed, if the whole range is on that side of it."""
    is_met = found.upper <= most if most else found.lower >= least
    is_missed = found.lower > most if most else found.upper < least
    return "met" if is_met else "**missed**" if is_missed else "undecided"


def with_section(text: str, name: str, section: str) -> str:
    """A page with a new section between the markers of a target of make."""
    begin, end = f"<!-- figures: written by make {name} -->\n", "<!-- end of figures -->\n"
    before, found, rest = text.partition(begin)
    _, found_end, after = rest.partition(end)
    if not found or not found_end:
        raise ValueError(f"the page lacks the markers of make {name}")
    return f"{before}{begin}{section}\n{end}{after}"


def write_section(page: Path, name: str, section: str) -> None:
    page.write_text(with_section(page.read_text(), name, section))
    print(f"written to {page.relative_to(ROOT)}")


def written(results: object, indent: str = "") -> str:
    """JSON with a line for each contender, or what else has no members that are objects or lists.
    Numbers have ten digits, fewer of which any table shows."""
    if isinstance(results, dict) and any(isinstance(it, dict | list) for it in results.values()):
        members = (
            f"{json.dumps(str(name))}: {written(it, f'{indent} ')}" for name, it in results.items()
        )
        return f"{{\n{indent} " + f",\n{indent} ".join(members) + f"\n{indent}}}"
    shorter = json.loads(json.dumps(results), parse_float=lambda it: float(f"{float(it):.10g}"))
    return json.dumps(shorter)


def write(path: Path, results: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(written(results) + "\n")


def latest(name: str) -> Path:
    """The results of a section from which its page is written."""
    return ROOT / f"bench/results/{name}/latest.json"


def part(name: str) -> Path:
    """The results of a run that changes no page."""
    return OUTPUT / f"{name}.json"
