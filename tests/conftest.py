"""What all suites share: which variants run, and what the end of a run says did not."""

from __future__ import annotations

import programs
import pytest
from selection import pytest_addoption, pytest_collection_modifyitems

__all__ = ["pytest_addoption", "pytest_collection_modifyitems"]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in programs.summary(terminalreporter.stats.get("skipped", ())):
        terminalreporter.write_line(line)
    for line in programs.unrun_blocks(terminalreporter.stats.get("passed", ())):
        terminalreporter.write_line(line)
