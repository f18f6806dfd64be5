"""What all suites share: the end of a run lists missing programs, and examples that did not run."""

from __future__ import annotations

import programs
import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in programs.summary(terminalreporter.stats.get("skipped", ())):
        terminalreporter.write_line(line)
    for line in programs.unrun_blocks(terminalreporter.stats.get("passed", ())):
        terminalreporter.write_line(line)
