"""Renders docs/benchmarks.md and docs/benchmarks-all.md, their charts, and the section between the
markers of README.md."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.harness.figures import Spread
from bench.render import charts, tables
from bench.render.data import Results
from bench.suite import machine
from bench.suite.servers import Server

#: Templates beside this file, of the pages in docs/. Git has the first alone, and its chart.
PAGES = ("benchmarks.md", "benchmarks-all.md")


def machine_line(results: Results) -> str:
    return machine.text(results.raw["machine"])


def modes_line(results: Results) -> str:
    """In which modes of the machine the samples were taken."""
    costs = results.calibrations
    if not costs:
        return "The machine's mode was not recorded."
    low, high = results.usual_mode
    share = sum(low <= cost <= high for cost in costs) / len(costs)
    return (
        f"A call of the floor cost {low:.2f} to {high:.2f} µs in the machine's usual mode, in "
        f"which {share:.0%} of the samples were taken ({costs[0]:.2f} to {costs[-1]:.2f} in all); "
        "rates and times are those of that mode."
    )


def readme_section(results: Results) -> str:
    day = results.raw["file"][:10]
    return (
        f"![{CPU_CHART.title}](docs/{CPU_CHART.file})\n\n"
        "CPU time of a call of `sum` at 32 clients on one core, as a ratio to the cheapest C "
        "program that can answer. [The benchmarks](docs/benchmarks.md) say how it was measured, on "
        f"{day}, with all figures."
    )


@dataclass(frozen=True)
class Chart:
    """One bar a server: its `metric` under `load`, with `of_floor` as a ratio to the floor's."""

    file: str
    title: str
    note: str
    unit: str
    load: str
    metric: str
    form: str
    more_is_better: bool = False
    of_floor: bool = False

    def drawn(self, results: Results, servers: Sequence[Server]) -> str:
        """The chart without servers whose calls failed, or "" if there are no figures."""
        found = [
            charts.Bar(server.label, server.family, spread.median, self.form.format(spread.median))
            for server in tables.present(results, servers, self.load)
            if server.protocol != "raw" and not results.errors(server.name, self.load)
            if (spread := self._figure(results, server))
        ]
        found.sort(key=lambda bar: bar.value, reverse=self.more_is_better)
        least = 1.0 if self.of_floor else None
        return charts.bars(self.title, self.note, self.unit, found, least) if found else ""

    def _figure(self, results: Results, server: Server) -> Spread | None:
        if not self.of_floor:
            return results.values(server.name, self.load, self.metric)
        if server.family == "floor":
            return None
        return results.to_floor(server.name, self.load, self.metric)


CPU_CHART = Chart(
    file="benchmarks-cpu.svg",
    title="CPU time of a call, as a ratio to the floor",
    note="The floor, at 1, is a C program that reads, and writes a fixed reply. 32 clients",
    unit="ratio to the floor's CPU time",
    load="c32",
    metric="cpu_us_per_call",
    form="{:.2f}",
    of_floor=True,
)
CHARTS = (
    CPU_CHART,
    Chart(
        file="benchmarks-rate.svg",
        title="Calls a second, one core",
        note="32 clients; at the highest rates the load generator uses its whole core",
        unit="calls a second",
        load="c32",
        metric="calls_per_second",
        form="{:,.0f}",
        more_is_better=True,
    ),
    Chart(
        file="benchmarks-tail.svg",
        title="Tail latency at 20,000 calls a second",
        note="p99.9, from the time a call was due",
        unit="µs",
        load="rate-20000",
        metric="p999_us",
        form="{:,.0f}",
    ),
)


def chart_files(results: Results, servers: Sequence[Server]) -> dict[str, str]:
    """The charts by file name, without those that have no figures."""
    made = {chart.file: chart.drawn(results, servers) for chart in CHARTS}
    return {name: text for name, text in made.items() if text}


def benchmarks_pages(
    results: Results, servers: Sequence[Server], charts_made: Sequence[str]
) -> dict[str, str]:
    """The pages by file name."""
    versions = results.raw["machine"]["versions"]
    problems = results.raw["problems"]
    parts = {
        "machine": machine_line(results),
        "modes": modes_line(results),
        "rejected": f"{results.raw.get('rejected', 0):,}",
        "minutes": f"{results.raw['minutes']:g}",
        "file": results.raw["file"],
        "problems": "\n".join(f"- {text}" for text in problems) or "None.",
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
        "cpu_chart": CPU_CHART.title,
        "charts": "\n\n".join(
            f"![{chart.title}]({chart.file})" for chart in CHARTS[1:] if chart.file in charts_made
        ),
    }

    def filled(place: re.Match) -> str:
        """A part, or a table: a function of `tables`, and perhaps the load of which it is."""
        name, *load = place[1].split()
        return parts[name] if name in parts else getattr(tables, name)(results, servers, *load)

    pages = {name: (Path(__file__).parent / name).read_text() for name in PAGES}
    return {
        name: _without_empty_tables(re.sub(r"\{([a-z][\w -]*)\}", filled, text))
        for name, text in pages.items()
    }


def _without_empty_tables(page: str) -> str:
    """Removes the sections without figures, and lists them at the end."""
    head, *sections = page.split("\n## ")
    empty = [section for section in sections if "|---" in section and not _has_figures(section)]
    kept = [section for section in sections if section not in empty]
    if empty:
        titles = ", ".join(section.partition("\n")[0] for section in empty)
        kept.append(f"Not measured in this run\n{titles}.\n")
    return "\n## ".join([head, *kept])


def _has_figures(section: str) -> bool:
    """Whether any row of the section's tables has a figure after its name."""
    lines = [line for line in section.splitlines() if line.startswith("|")]
    headers = {at - 1 for at, line in enumerate(lines) if line.startswith("|---")}
    rows = [line for at, line in enumerate(lines) if at not in headers]
    cells = [cell.strip() for row in rows for cell in row.strip("|").split("|")[1:]]
    return any(cell and cell != "-" and not set(cell) <= set("-:") for cell in cells)
