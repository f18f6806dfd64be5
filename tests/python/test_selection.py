"""Which variants of a test run: one of both engines, unless both are asked for."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import selection

ROOT = Path(__file__).resolve().parents[2]
TOOL = ROOT / "tools" / "engines-changed.sh"
SUITE = """
import pytest

@pytest.fixture(params=["posix", "uring"])
def engine(request):
    return request.param

@pytest.fixture(params=["plain", "TLS"])
def security(request):
    return request.param

@pytest.mark.parametrize("number", range(40))
def test_one(engine, number): ...

@pytest.mark.one_of("engine", "security")
@pytest.mark.parametrize("number", range(40))
def test_pairs(engine, security, number): ...

@pytest.mark.one_of()
def test_compares(engine): ...

@pytest.mark.slow
def test_slow(engine, security): ...

def test_no_engine(security): ...
"""
#: Collects once for each list of arguments, and prints the lists of names.
COLLECTS = """
import contextlib, io, json, sys
import pytest

class Seen:
    def pytest_collection_finish(self, session):
        self.names = [item.nodeid.partition("::")[2] for item in session.items]

def collected(*arguments):
    with contextlib.redirect_stdout(io.StringIO()):
        pytest.main(["--collect-only", *arguments], [seen := Seen()])
    return seen.names

print(json.dumps([collected(*arguments) for arguments in json.loads(sys.argv[1])]))
"""
OPTIONS = {
    "default": ["test_it.py"],
    "both": ["--both-engines", "test_it.py"],
    "changed": ["--engines-changed", "test_it.py"],
    "changed, in the list": ["--engines-changed", "python/test_hooks.py"],
    "first": ["--first-variants", "test_it.py"],
    "by keyword": ["-k", "test_one and uring", "test_it.py"],
    "by name": ["test_it.py::test_one"],
    "posix by name": ["test_it.py::test_one[posix-7]"],
    "uring by name": ["test_it.py::test_one[uring-7]"],
}
Names = dict[str, list[str]]
ONE_OF_EACH = {
    "test_one": 40,
    "test_pairs": 40,
    "test_compares": 2,
    "test_slow": 2,
    "test_no_engine": 2,
}
PLUGINS = ["-p", "selection", "-p", "no:cacheprovider"]


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("suite")
    (folder / "test_it.py").write_text(SUITE)
    (folder / "python").mkdir()
    (folder / "python" / "test_hooks.py").write_text(SUITE)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n  one_of\n  slow\n")
    return folder


@pytest.fixture(scope="module")
def names(suite: Path) -> Names:
    """The names of the tests that each list of arguments selects."""
    arguments = [[*PLUGINS, *given] for given in OPTIONS.values()]
    command = [sys.executable, "-c", COLLECTS, json.dumps(arguments)]
    paths = {"PYTHONPATH": str(ROOT / "tests"), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    how: dict[str, Any] = {"cwd": suite, "capture_output": True, "text": True, "timeout": 200}
    done = subprocess.run(command, env=os.environ | paths, **how)
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(zip(OPTIONS, json.loads(done.stdout), strict=True))


def _counts(names: list[str]) -> dict[str, int]:
    return Counter(name.partition("[")[0] for name in names)


def test_a_test_runs_on_one_engine(names: Names) -> None:
    assert _counts(names["default"]) == ONE_OF_EACH
    found = [re.fullmatch(r"test_one\[(\w+)-(\d+)\]", name) for name in names["default"]]
    engines = Counter(it[1] for it in found if it)
    assert set(engines) == {"posix", "uring"}
    assert min(engines.values()) > 10
    assert sorted(int(it[2]) for it in found if it) == [*range(40)]


def test_pairs_cover_every_combination(names: Names) -> None:
    found = [re.fullmatch(r"test_pairs\[(\w+-\w+)-(\d+)\]", name) for name in names["default"]]
    pairs = Counter(it[1] for it in found if it)
    assert set(pairs) == {"posix-plain", "posix-TLS", "uring-plain", "uring-TLS"}
    assert min(pairs.values()) > 3
    assert sorted(int(it[2]) for it in found if it) == [*range(40)]


def test_both_engines_by_the_option(names: Names) -> None:
    twice = {"test_one": 80, "test_pairs": 160, "test_slow": 4}
    assert _counts(names["both"]) == ONE_OF_EACH | twice


def test_each_engine_once_after_a_change_of_engines(names: Names) -> None:
    twice = {"test_one": 80, "test_pairs": 80, "test_slow": 4}
    assert _counts(names["changed"]) == ONE_OF_EACH | twice
    found = [re.fullmatch(r"test_pairs\[(\w+)-(\w+)-\d+\]", name) for name in names["changed"]]
    assert Counter(it[1] for it in found if it) == {"posix": 40, "uring": 40}
    assert min(Counter(it[1] + it[2] for it in found if it).values()) > 3


def test_files_in_the_list_stay_on_one_engine(names: Names) -> None:
    assert _counts(names["changed, in the list"]) == ONE_OF_EACH


def test_the_listed_files_exist() -> None:
    assert [it for it in selection.listed_files() if not (ROOT / "tests" / it).exists()] == []


def test_both_engines_by_the_name_of_the_test(names: Names) -> None:
    assert _counts(names["by name"]) == {"test_one": 80}
    assert names["posix by name"] == ["test_one[posix-7]"]
    assert names["uring by name"] == ["test_one[uring-7]"]


def test_one_engine_by_a_keyword(names: Names) -> None:
    assert names["by keyword"] == [f"test_one[uring-{number}]" for number in range(40)]


def test_the_first_variant_of_a_slow_test(names: Names) -> None:
    assert _counts(names["first"]) == ONE_OF_EACH | {"test_slow": 1}


class _Item:
    """What the selection reads of an item."""

    def __init__(self, number: int, engine: str) -> None:
        self.name = f"test_it[{engine}-{number}]"
        self.nodeid = "test_it.py"
        self.parent = self.callspec = self
        self.params = {"engine": engine, "number": number}

    def get_closest_marker(self, name: str) -> None:
        return None


def test_without_io_uring_all_run_on_the_other_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "_allows_uring", lambda: False)
    items = [_Item(number, engine) for number in range(20) for engine in ("posix", "uring")]
    kept = selection.one_of_each(items)  # type: ignore[arg-type]
    assert [*kept] == items[::2]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A commit with the tool and a file of each kind."""
    for name in ("tools/engines-changed.sh", "crates/ucall-engine/src/lib.rs", "README.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    who = ["-c", "user.name=test", "-c", "user.email=test@localhost"]
    for command in (["init"], ["add", "."], [*who, "commit", "--message", "begin"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True, capture_output=True)
    return tmp_path


def _changed(repository: Path, since: str) -> tuple[int, str]:
    command = ["tools/engines-changed.sh", since]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True)
    assert done.stderr == ""
    return done.returncode, done.stdout


def test_a_change_of_an_engine_is_seen(repository: Path) -> None:
    (repository / "README.md").write_text("changed")
    assert _changed(repository, "HEAD") == (1, "")
    (repository / "crates/ucall-engine/src/lib.rs").write_text("changed")
    assert _changed(repository, "HEAD") == (0, "crates/ucall-engine/src/lib.rs\n")


def test_an_unknown_commit_changes_all(repository: Path) -> None:
    assert _changed(repository, "HEAD~7") == (0, "all: HEAD~7 is no commit here\n")


def test_the_files_of_engines_exist() -> None:
    listed = TOOL.read_text().partition("FILES=(\n")[2].partition("\n)")[0].split()
    assert listed
    assert [name for name in listed if not (ROOT / name).exists()] == []
