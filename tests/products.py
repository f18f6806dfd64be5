"""Skips the tests of products, such as queues, that the package is built without.

The files of a product have its name. Of all others, those tests are skipped that fail by the error
that names the missing feature.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from pathlib import Path

import programs
import pytest

#: See `features.rs` of ucall-python.
_MISSING = re.compile(r"this build of ucall has no .*: it was built without the feature `(\w+)`")
#: A file or folder of one product.
_PRODUCT = re.compile(r"(?:test_)?(compression|queue|relay|store|xdp)(?:_|\.py$|$)")
#: The tests of the package. Those of C have a library with all features.
_FOLDERS = {Path(__file__).with_name(name) for name in ("conformance", "python")}


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    found = _PRODUCT.match(collection_path.name)
    if found is None or _FOLDERS.isdisjoint(collection_path.parents):
        return None
    from ucall import _core

    return None if found[1] in _core.FEATURES else True


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _skip_if_missing(report, collector)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _skip_if_missing(report, item)
    return report


def _skip_if_missing(
    report: pytest.CollectReport | pytest.TestReport, node: pytest.Collector | pytest.Item
) -> None:
    found = _MISSING.search(report.longreprtext + report.capstderr) if report.failed else None
    if found is None:
        return
    from ucall import _core

    if (feature := found[1]) not in _core.FEATURES:
        report.outcome = "skipped"
        report.longrepr = (str(node.path), 0, programs.reason_of_feature(feature))
