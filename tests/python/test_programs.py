"""The programs of tests/programs.txt: tests without theirs are skipped, and the run says so."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import programs
import pytest

ROOT = Path(__file__).resolve().parents[2]
INSTALLER = ROOT / "tools" / "install-test-programs.sh"
# What the installer itself runs; with neither apt-get nor sudo it installs nothing.
COMMANDS = ["cat", "cut", "dirname", "grep", "id", "sh", "tr"]


def test_a_missing_program_skips_its_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(pytest.skip.Exception) as skipped:
        programs.require("nc")
    assert str(skipped.value) == "nc is not installed (apt-get install netcat-openbsd)"


def test_servers_outside_of_a_user_s_path_are_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", "/usr/bin")
    expected = shutil.which("nginx", path="/usr/sbin") or shutil.which("nginx", path="/usr/bin")
    assert programs.find("nginx") == expected
    monkeypatch.setenv("PATH", str(tmp_path))
    assert programs.find("nginx") is None


def test_the_summary_has_a_line_for_each_missing_program() -> None:
    nginx = "Skipped: nginx is not installed (apt-get install nginx)"
    go = "Skipped: go is not installed (apt-get install golang-go)"
    xdp = "Skipped: AF_XDP is not possible (needs root on Linux)"
    reasons = [nginx, go, xdp, "Skipped: there is no IPv6", nginx]
    reports = [SimpleNamespace(longrepr=("test.py", 1, reason)) for reason in reasons]
    assert list(programs.summary(reports)) == [
        "without AF_XDP: 1 skipped (needs root on Linux)",
        "without go: 1 skipped (apt-get install golang-go)",
        "without nginx: 2 skipped (apt-get install nginx)",
    ]


def test_the_summary_names_examples_that_did_not_run() -> None:
    line = "docs/c.md: blocks that do not run: 31 (console)"
    reports = [
        SimpleNamespace(user_properties=properties)
        for properties in ([], [("not run", line)], [("other", 1)])
    ]
    assert list(programs.unrun_blocks(reports)) == [line]


def test_the_installer_names_each_program_that_it_cannot_install(tmp_path: Path) -> None:
    for name in COMMANDS:
        found = shutil.which(name)
        assert found is not None
        (tmp_path / name).symlink_to(found)
    done = subprocess.run(
        [INSTALLER], env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=True
    )
    lines = done.stdout.splitlines()
    assert "Missing: nc; its tests are skipped (apt-get install netcat-openbsd)" in lines
    assert "Missing: lmdb.h; its tests are skipped (apt-get install liblmdb-dev)" in lines
    assert not any("systemd-analyze" in line or "testssl" in line for line in lines)
    assert done.stderr == ""
