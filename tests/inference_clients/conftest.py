"""`server.py` in a process of its own, and the environment of the clients."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
#: What tools/install-inference.sh makes.
CLIENTS = ROOT / ".bench/inference"
PERF_ANALYZER = ROOT / ".bench/perf_analyzer"

# Ports and programs are those of the tests of Python.
sys.path.append(str(ROOT / "tests/python"))

from harness import HOST, listening_port  # noqa: E402

Run = Callable[..., str]


@pytest.fixture(scope="session", params=["posix", "uring"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a server without a scheme, as the clients want it, on each engine."""
    options = ["--port", "0", "--engine", request.param]
    command = [sys.executable, "-m", "ucall", "server:server", *options]
    pipes = {"stdin": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=HERE, **pipes) as process:
        try:
            yield f"{HOST}:{listening_port(process)}"
        finally:
            process.terminate()
            process.communicate()


@pytest.fixture
def run() -> Run:
    """Runs a program that succeeds, and returns what it printed."""

    def run(*command: object, **variables: str) -> str:
        done = subprocess.run(
            list(map(str, command)),
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


@pytest.fixture(scope="session")
def python() -> Path:
    """The interpreter of the environment of the clients."""
    found = CLIENTS / "bin/python"
    if not found.exists():
        pytest.skip("make test-inference installs the clients")
    return found
