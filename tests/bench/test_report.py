"""The pages of a recorded run: complete, well-formed, and the same each time."""

import importlib
import json
import re
import xml.etree.ElementTree
from pathlib import Path

import pytest

from bench import ROOT
from bench.__main__ import SECTIONS as SECTION_NAMES
from bench.harness import figures
from bench.render import charts, page
from bench.sections import store
from bench.suite.servers import everyone


def test_the_page_has_every_table_and_no_placeholder_left(results):
    text = "".join(page.benchmarks_pages(results, everyone(), ["benchmarks-cpu.svg"]).values())
    assert not re.search(r"\{[a-z][\w -]*\}", text)
    for label in ("floor: C, epoll", "ucall Python, posix", "gRPC C++", "Robyn: does not listen"):
        assert label in text


def test_every_table_has_as_many_cells_in_each_row(results):
    text = "".join(page.benchmarks_pages(results, everyone(), []).values())
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        assert len({line.count("|") for line in table.splitlines()}) == 1, table


def test_only_the_marked_section_of_a_page_is_replaced(results):
    section = page.readme_section(results)
    begin, end = "<!-- figures: written by make bench-report -->", "<!-- end of figures -->"
    readme = f"before\n{begin}\nold\n{end}\nafter\n"
    once = figures.with_section(readme, "bench-report", section)
    assert once.startswith(f"before\n{begin}\n") and once.endswith(f"{end}\nafter\n")
    assert "old" not in once and "](docs/benchmarks-cpu.svg)" in once
    assert figures.with_section(once, "bench-report", section) == once


def test_a_page_without_markers_is_refused():
    with pytest.raises(ValueError, match="markers"):
        figures.with_section("nothing here", "bench-report", "section")


SECTIONS = [importlib.import_module(f"bench.sections.{name}") for name in SECTION_NAMES]
PAGES = [it for it in SECTIONS if hasattr(it, "PAGE")]


@pytest.mark.parametrize("section", PAGES, ids=lambda it: it.PAGE.name)
def test_the_page_of_a_section_has_its_markers(section):
    name = getattr(section, "TARGET", f"bench-{section.__name__.rpartition('.')[2]}")
    figures.with_section(section.PAGE.read_text(), name, "figures")


@pytest.mark.parametrize("path", sorted(Path(ROOT, "bench/results").glob("*/latest.json")), ids=str)
def test_the_stored_results_of_a_section_make_its_figures(path):
    section = importlib.import_module(f"bench.sections.{path.parent.name}")
    text = section.report(json.loads(path.read_text()))
    assert "|" in text and text in section.PAGE.read_text()


def test_the_figures_of_the_store_are_written_to_its_page(results):
    sample = {"cpu_us": 1.0, "reads": 2000.0, "writes": 0.0}
    twice = {**sample, "cpu_us": 2.0}
    samples = {}
    for row in store.ROWS:
        ours, theirs = (twice, sample) if row.name == "GET, depth 1" else (sample, twice)
        samples |= {f"{row.name}, ucall": [ours] * 5, f"{row.name}, Redis": [theirs] * 5}
    section = store.report(
        {
            "engine": "posix",
            "redis": "7.0.15",
            "machine": results.raw["machine"],
            "samples": samples,
        }
    )
    rows = {line.split(" | ")[0]: line for line in section.splitlines()}
    assert rows["| GET, 16 deep"].endswith("| 0.50 (0.50..0.50) | at most 1.00 | met |")
    assert rows["| GET, depth 1"].endswith("| 2.00 (2.00..2.00) | at most 0.70 | **missed** |")
    assert rows["| scan of 1,000, ZRANGE"].endswith("| at most 0.33 | **missed** |")


def test_charts_are_well_formed_and_to_scale(results):
    made = page.chart_files(results, everyone())
    assert "benchmarks-cpu.svg" in made
    for text in made.values():
        xml.etree.ElementTree.fromstring(text)
    assert ">floor: C, epoll<" in made["benchmarks-rate.svg"]
    assert ">floor: C, epoll<" not in made["benchmarks-cpu.svg"], "it is where the bars begin"
    two = charts.bars(
        "t", "n", "µs", [charts.Bar("a & b", "ours", 1, "1"), charts.Bar("c", "floor", 100, "100")]
    )
    widths = re.findall(r'height="14"', two), re.findall(r' width="([\d.]+)" height="14"', two)
    assert len(widths[0]) == 2 and float(widths[1][0]) < float(widths[1][1])
