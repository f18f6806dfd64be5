"""Node, the packages of npm, and the module under test."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import programs
import pytest

import ucall

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ROOT / ".bench/conformance"
#: The installed module, as the server serves it.
MODULE = Path(ucall.__file__).parent / "static" / "ucall.js"
TOKEN = "s3cret"
#: The types of two fixtures.
RunNode = Callable[..., str]
Serve = Callable[..., ucall.Server]


def package(name: str) -> Path:
    """The folder of a package of npm; skips the test without it."""
    found = PACKAGES / name
    if not (found / "package.json").exists():
        pytest.skip(f"make test-javascript gets {name}, by npm")
    return found


def system_node() -> str:
    node = programs.require("node")
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=True)
    found = re.match(r"v(\d+)", version.stdout)
    if not found or int(found[1]) < 20:
        pytest.skip(f"Node {version.stdout.strip()} is older than 20")
    return node
