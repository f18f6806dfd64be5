"""Writes docs/benchmarks.md, its chart and the README's section from the results of whole runs.

They are the newest of bench/results: of `make bench`, and of `make bench-peers` if there is one.
The pages of a partial run go to .bench/report, and change no page of the project. With `--pages` it
writes what git does not have, for `make docs`: the page of all benchmarks, and its charts.
"""

import argparse
import sys
from pathlib import Path

from bench import OUTPUT, ROOT
from bench.harness import figures
from bench.render import page
from bench.render.data import load_results
from bench.suite.servers import everyone

RESULTS = ROOT / "bench/results"
OPTIONS = {
    "results": {"type": Path, "nargs": "?", "help": "those of a partial run"},
    "--pages": {"action": "store_true", "help": "write what git does not have"},
}
#: The page and the chart to which the README refers.
IN_GIT = {"benchmarks.md", page.CPU_CHART.file}


def newest() -> tuple[Path, Path | None]:
    peers = sorted(RESULTS.glob("*-peers.json"))
    found = sorted(set(RESULTS.glob("*.json")) - set(peers))
    if not found:
        sys.exit("no results: make bench measures them")
    return found[-1], peers[-1] if peers else None


def run(options: argparse.Namespace) -> None:
    write(options.results, options.pages)


def write(path: Path | None = None, for_docs: bool = False) -> None:
    """Writes the pages of these results, if they are partial; else those of the newest."""
    is_whole = path is None or path.parent == RESULTS
    path, peers = newest() if is_whole else (path, None)
    results, servers = load_results(path, peers), everyone()
    docs = ROOT / "docs" if is_whole else OUTPUT / "report"
    docs.mkdir(exist_ok=True)
    charts = page.chart_files(results, servers)
    pages = page.benchmarks_pages(results, servers, list(charts))
    for name, text in (charts | pages).items():
        if not for_docs or name not in IN_GIT:
            (docs / name).write_text(text)
    if for_docs:
        return
    if is_whole:
        section = page.readme_section(results)
        figures.write_section(ROOT / "README.md", "bench-report", section)
    print(f"{docs.relative_to(ROOT)}/benchmarks*.md and {len(charts)} charts, from {path.name}")
