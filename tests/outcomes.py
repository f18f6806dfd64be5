"""Records which tests failed and which did not run, for tools/run-tests.py."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest


class Outcomes:
    """Writes `{"failed": […], "unfinished": […]}` at the end: ids, as the command line takes them.

    A test process that dies leaves tests unfinished, which no report names.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._collected: dict[str, None] = {}
        self._finished: set[str] = set()
        self._failed: dict[str, None] = {}

    def _collect(self, ids: Iterable[str]) -> None:
        self._collected.update(dict.fromkeys(ids))

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._collect(item.nodeid for item in session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: list[str]) -> None:
        self._collect(ids)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed[report.nodeid] = None
        # A report of a process that died has the phase "???".
        if report.when != "setup" and report.when != "call":
            self._finished.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        unfinished = [id for id in self._collected if id not in self._finished]
        text = json.dumps({"failed": list(self._failed), "unfinished": unfinished})
        self._path.write_text(text, encoding="utf-8")
