"""A test that fails by chance is run again, and listed; one that fails always fails the run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOL = ROOT / "tools" / "run-tests.py"
#: Fails as often as its argument says, by a file that counts.
FAILS = """
import os, pathlib, pytest

def fails(name, times):
    runs = pathlib.Path(name)
    ran = len(runs.read_text()) if runs.exists() else 0
    runs.write_text("x" * (ran + 1))
    return ran < times

def test_passes(): pass
"""
RUST = """
#[cfg(test)]
mod tests {
    fn fails(name: &str, times: usize) -> bool {
        let ran = std::fs::read_to_string(name).unwrap_or_default();
        std::fs::write(name, format!("{ran}x")).unwrap();
        ran.len() < times
    }
    #[test]
    fn passes() {}
    #[test]
    fn once() { assert!(!fails("once", 1)); }
    #[test]
    fn always() { assert!(!fails("always", ALWAYS)); }
}
"""


def _run(folder: Path, *arguments: str) -> tuple[int, str]:
    environment = {"PYTHONPATH": str(ROOT / "tests"), "CARGO_TARGET_DIR": str(folder / "t")}
    # Each run of pytest would import the plugins of all that is installed.
    environment |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "xdist.plugin"}
    done = subprocess.run(
        [sys.executable, str(TOOL), *arguments],
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=200,
    )
    return done.returncode, done.stdout + done.stderr


def _flaky(folder: Path) -> dict[str, int]:
    file = folder / ".bench" / "flaky.json"
    listed = json.loads(file.read_text()) if file.exists() else {}
    return {test: entry["times"] for test, entry in listed.items()}


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n  one_of\n  slow\n")
    return tmp_path


def test_what_passes_alone_is_flaky(suite: Path) -> None:
    test = """
def test_twice(): assert not fails("twice", 2)
@pytest.mark.parametrize("value", ["a b", "@c"])
def test_once(value): assert not fails(value, 1)
"""
    (suite / "test_it.py").write_text(FAILS + test)
    processes = ["--numprocesses=1", "--dist=worksteal"]
    code, output = _run(suite, "pytest", *processes, "test_it.py")
    assert code == 0, output
    once = {f"test_it.py::test_once[{value}]": 1 for value in ("a b", "@c")}
    assert _flaky(suite) == {"test_it.py::test_twice": 1} | once
    assert len((suite / "twice").read_text()) == 3
    code, output = _run(suite, "flaky")
    assert code == 0
    assert "flaky: 3" in output
    assert "test_it.py::test_twice: 1 times" in output


def test_what_fails_three_times_fails_the_run(suite: Path) -> None:
    (suite / "test_it.py").write_text(FAILS + "def test_it(): assert not fails('it', 3)\n")
    code, output = _run(suite, "pytest", "test_it.py")
    assert (code, _flaky(suite)) == (1, {}), output
    assert "FAILED 3 times: test_it.py::test_it" in output
    assert len((suite / "it").read_text()) == 3


def test_many_failures_are_not_run_again(suite: Path) -> None:
    test = "@pytest.mark.parametrize('n', range(21))\ndef test_it(n): assert not fails(f'{n}', 1)\n"
    (suite / "test_it.py").write_text(FAILS + test)
    code, output = _run(suite, "pytest", "test_it.py")
    assert (code, _flaky(suite)) == (1, {}), output


def test_an_import_that_fails_fails_the_run(suite: Path) -> None:
    (suite / "test_it.py").write_text("import no_such_module")
    code, output = _run(suite, "pytest", "test_it.py")
    assert code not in (0, 5), output


def test_a_dead_process_leaves_no_test_out(suite: Path) -> None:
    """The tests that its end has kept from running run, too, and may fail."""
    test = """
@pytest.mark.parametrize("n", range(20))
def test_it(n):
    if n == 0 and fails("dies", 1): os._exit(1)
    assert n != 19 or not fails("late", 9)
"""
    (suite / "test_it.py").write_text(FAILS + test)
    processes = ["--numprocesses=1", "--max-worker-restart=0"]
    code, output = _run(suite, "pytest", *processes, "test_it.py")
    assert "did not run" in output
    assert (code, _flaky(suite)) == (1, {"test_it.py::test_it[0]": 1}), output
    assert "FAILED 3 times: test_it.py::test_it[19]" in output
    assert len((suite / "late").read_text()) == 3


@pytest.mark.skipif(not shutil.which("cargo"), reason="needs cargo")
@pytest.mark.parametrize("times", [0, 3])
def test_rust(tmp_path: Path, times: int) -> None:
    package = '[package]\nname = "{}"\nedition = "2024"\n'
    (tmp_path / "Cargo.toml").write_text(package.format("it") + '[workspace]\nmembers = ["other"]')
    for folder, code in (("src", RUST.replace("ALWAYS", str(times))), ("other/src", "")):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "lib.rs").write_text(code)
    # Features of one package.
    other = package.format("other") + "[features]\nfull = []\n"
    (tmp_path / "other" / "Cargo.toml").write_text(other)
    status, output = _run(tmp_path, "cargo", "--offline", "--workspace", "--features=full")
    assert status == (1 if times else 0), output
    assert _flaky(tmp_path) == {"-p it --lib tests::once": 1}, output
    assert ("FAILED 3 times: -p it --lib tests::always" in output) == bool(times)
    assert len((tmp_path / "once").read_text()) == 2


@pytest.mark.skipif(not shutil.which("cargo"), reason="needs cargo")
def test_rust_that_does_not_compile_fails_the_run(tmp_path: Path) -> None:
    (tmp_path / "Cargo.toml").write_text('[package]\nname = "it"\nedition = "2024"\n')
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "lib.rs").write_text("fn")
    code, output = _run(tmp_path, "cargo", "--offline")
    assert code == 101, output
