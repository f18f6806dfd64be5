"""What all suites share: which variants run, and what the end of a run says did not."""

from __future__ import annotations

from pathlib import Path

import forked_children  # noqa: F401 - before what registers functions for forks, too
import programs
import pytest
import selection
from _pytest.unraisableexception import gc_collect_iterations_key
from outcomes import Outcomes
from products import (
    pytest_ignore_collect,
    pytest_make_collect_report,
    pytest_runtest_makereport,
)
from selection import pytest_collection_modifyitems

__all__ = [
    "pytest_collection_modifyitems",
    "pytest_ignore_collect",
    "pytest_make_collect_report",
    "pytest_runtest_makereport",
]


def pytest_addoption(parser: pytest.Parser) -> None:
    selection.pytest_addoption(parser)
    parser.addoption("--outcomes", type=Path, help="write here which tests failed or did not run")


def pytest_configure(config: pytest.Config) -> None:
    # Five collections of all objects would take two seconds of each test process.
    config.stash[gc_collect_iterations_key] = 1
    path = config.getoption("outcomes")
    # The processes of pytest-xdist report to the one that started them.
    if path and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Outcomes(path))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in programs.summary(terminalreporter.stats.get("skipped", ())):
        terminalreporter.write_line(line)
    for line in programs.unrun_blocks(terminalreporter.stats.get("passed", ())):
        terminalreporter.write_line(line)
