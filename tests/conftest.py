"""What all suites share: the list of missing programs at the end of a run."""

from __future__ import annotations

import programs
import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in programs.summary(terminalreporter.stats.get("skipped", ())):
        terminalreporter.write_line(line)
