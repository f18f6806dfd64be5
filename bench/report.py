"""Writes the pages of benchmarks, their charts and the README's section from the results of runs.

    python bench/report.py [RESULTS.json | --pages]

`make bench-report` runs it on the newest of bench/results: of `make bench`, and of `make
bench-peers` if there is one. It measures nothing. The pages of a partial run go to .bench/report,
and change no page of the project. With `--pages` it writes what git does not have, for `make docs`.
"""

import sys
from pathlib import Path

from harness.rows import OUTPUT, ROOT
from render import page
from render.data import load_results
from suite.servers import everyone

RESULTS = ROOT / "bench/results"
#: The page and the chart to which the README refers.
IN_GIT = {"benchmarks.md", page.CPU_CHART.file}


def newest() -> tuple[Path, Path | None]:
    peers = sorted(RESULTS.glob("*-peers.json"))
    found = sorted(set(RESULTS.glob("*.json")) - set(peers))
    if not found:
        sys.exit("no results: make bench measures them")
    return found[-1], peers[-1] if peers else None


def main() -> None:
    for_docs = sys.argv[1:] == ["--pages"]
    given = RESULTS if for_docs or not sys.argv[1:] else Path(sys.argv[1]).resolve()
    is_whole = RESULTS in (given, given.parent)
    path, peers = newest() if is_whole else (given, None)
    results, servers = load_results(path, peers), everyone()
    docs = ROOT / "docs" if is_whole else OUTPUT / "report"
    docs.mkdir(exist_ok=True)
    charts = page.chart_files(results, servers)
    pages = page.benchmarks_pages(results, servers, list(charts))
    for name, text in (charts | pages).items():
        if not for_docs or name not in IN_GIT:
            (docs / name).write_text(text)
    if is_whole and not for_docs:
        readme = ROOT / "README.md"
        section = page.readme_section(results, servers)
        readme.write_text(page.with_section(readme.read_text(), section))
    if for_docs:
        return
    print(f"{docs.relative_to(ROOT)}/benchmarks*.md and {len(charts)} charts, from {path.name}")


main()
