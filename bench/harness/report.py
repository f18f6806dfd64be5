"""Medians, quartiles and ratios over pairs, as text."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harness.deterministic import Figures
from harness.load import Sample
from harness.rows import Contender, Row

# Samples of one contender, in the order of the rounds.
Series = dict[str, list[Sample]]


@dataclass(frozen=True)
class Metric:
    """A field of `Sample`, and its format."""

    field: str
    label: str
    format: str

    def values(self, samples: Sequence[Sample]) -> list[float]:
        return [value for sample in samples if (value := getattr(sample, self.field)) is not None]


METRICS = (
    Metric("calls_per_second", "calls/s", "{:,.0f}"),
    Metric("p50_us", "p50 µs", "{:.0f}"),
    Metric("p99_us", "p99 µs", "{:.0f}"),
    Metric("cpu_us_per_call", "CPU µs/call", "{:.3f}"),
    Metric("rss_mb", "RSS MB", "{:.1f}"),
    Metric("rss_peak_mb", "peak MB", "{:.1f}"),
)
RATIO = "{:.3f}"


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
    if not values:
        return None
    if len(values) == 1:
        return Spread(values[0], values[0], values[0])
    lower, median, upper = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(median, lower, upper)


Compare = Callable[[float, float], float]


def compared(
    metric: Metric, own: Sequence[Sample], floor: Sequence[Sample], compare: Compare
) -> Spread | None:
    """Compares within each pair, so drift of the machine affects both sides."""
    pairs = zip(metric.values(own), metric.values(floor), strict=True)
    return spread([compare(a, b) for a, b in pairs if b])


def ratio(own: float, floor: float) -> float:
    return own / floor


def difference(own: float, floor: float) -> float:
    return own - floor


def row_figures(contenders: Sequence[Contender], series: Series) -> dict:
    """The figures of the table, for the JSON file."""
    return {contender.name: contender_figures(contender, series) for contender in contenders}


def contender_figures(contender: Contender, series: Series) -> dict:
    own = series[contender.name]
    figures = {"values": {metric.field: spread_fields(metric.values(own)) for metric in METRICS}}
    for baseline in contender.baselines:
        figures[f"ratio to {baseline}"] = {
            metric.field: vars_of(compared(metric, own, series[baseline], ratio))
            for metric in METRICS
        }
    return figures


def spread_fields(values: Sequence[float]) -> dict | None:
    return vars_of(spread(values))


def vars_of(found: Spread | None) -> dict | None:
    return vars(found) if found else None


def row_table(row: Row, contenders: Sequence[Contender], series: Series, seconds: int) -> str:
    pairs = len(series[contenders[0].name])
    title = f"{row.name}: {row.label}; {pairs} pairs of {seconds} s; median (quartiles)"
    header = ["", *(metric.label for metric in METRICS)]
    lines = [header]
    for contender in contenders:
        lines += contender_lines(contender, contenders, series)
    return f"{title}\n{table(lines)}"


def contender_lines(
    contender: Contender, contenders: Sequence[Contender], series: Series
) -> list[list[str]]:
    own = series[contender.name]
    lines = [[contender.label, *(cell(spread(m.values(own)), m.format) for m in METRICS)]]
    labels = {other.name: other.label for other in contenders}
    for baseline in contender.baselines:
        floor = series[baseline]
        ratios = [cell(compared(m, own, floor, ratio), RATIO) for m in METRICS]
        above = [cell(compared(m, own, floor, difference), signed(m.format)) for m in METRICS]
        lines.append([f"  ratio to {labels[baseline]}", *ratios])
        lines.append([f"  minus {labels[baseline]}", *above])
    return lines


def signed(form: str) -> str:
    return form.replace("{:", "{:+")


def cell(found: Spread | None, form: str) -> str:
    return found.text(form) if found else "-"


def table(lines: Sequence[Sequence[str]]) -> str:
    """Aligns columns to their widest cell: names to the left, figures to the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            text.rjust(width) if index else text.ljust(width)
            for index, (text, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


Found = dict[str, tuple[Contender, Figures]]


def figures_table(row: Row, found: Found) -> str:
    floor = next((f.instructions for c, f in found.values() if not c.baselines), {})
    tools = ("callgrind", "perf")
    header = ["", *(title for tool in tools for title in (f"{tool} instr/call", "minus floor"))]
    lines = [[*header, "system calls/call"]]
    lines += [figures_line(c, f, floor, tools) for c, f in found.values()]
    notes = [note for _, figures in found.values() for note in figures.notes]
    title = f"{row.name}: user instructions and system calls a call, 1 connection"
    return "\n".join([title, table(lines), *notes])


def figures_line(
    contender: Contender, figures: Figures, floor: dict[str, float], tools: Sequence[str]
) -> list[str]:
    line = [contender.label]
    for tool in tools:
        line += instruction_cells(figures.instructions.get(tool), floor.get(tool))
    calls = (f"{name} {count:.3f}" for name, count in figures.system_calls.items())
    return [*line, ", ".join(calls) or "-"]


def instruction_cells(own: float | None, floor: float | None) -> list[str]:
    above = "-" if own is None or floor is None else f"{own - floor:+,.1f}"
    return ["-" if own is None else f"{own:,.1f}", above]
