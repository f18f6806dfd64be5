"""The official conformance suite for servers, of both eras."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from conftest import CLIENTS

SUITE = CLIENTS / "node_modules/@modelcontextprotocol/conformance/dist/index.js"
#: How many scenarios each specification requires. The suite's lists are frozen.
REQUIRED = {"2026-07-28": 37, "2025-11-25": 30}


@pytest.mark.parametrize("specification", REQUIRED)
def test_conformance(specification: str, url: str, node: Path, tmp_path: Path) -> None:
    command = [str(node), str(SUITE), "server", "--url", url, "--requirements", specification]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=250)
    summary = done.stdout.partition("=== SUMMARY ===")[2]
    print(summary)
    scored, _, unscored = summary.partition("Not scored for")
    lines = re.findall(r"(?m)^([✓✗]) (\S+): \d+ passed, (\d+) failed", scored)
    optional = set(re.findall(r"(?m)^  [✓✗] (\S+) \(", unscored))
    outcomes = {name: int(failed) for _, name, failed in lines if name not in optional}
    assert len(outcomes) == REQUIRED[specification], done.stdout + done.stderr
    assert not {name for name, failed in outcomes.items() if failed}, done.stdout
