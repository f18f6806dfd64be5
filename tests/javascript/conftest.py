"""Programs, servers and packages of the tests of `ucall.js`."""

from __future__ import annotations

import importlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import programs
import pytest
import served
from node import MODULE, PACKAGES, RunNode, Serve, package, system_node

import ucall


@pytest.fixture(scope="session", params=["installed", "playwright's"], name="node")
def _node(request: pytest.FixtureRequest) -> str:
    """The installed Node, and Playwright's, which has a WebSocket of its own."""
    if request.param == "installed":
        return system_node()
    reason = "make test-browser installs playwright"
    playwright = pytest.importorskip("playwright", reason=reason)
    return str(Path(playwright.__file__).parent / "driver" / "node")


@pytest.fixture(scope="session")
def run_node(node: str) -> RunNode:
    """Runs Node with arguments and environment variables, and returns its output."""
    package("ws")

    def run(*arguments: str | Path, **variables: object) -> str:
        added = {name: str(value) for name, value in variables.items()}
        done = subprocess.run(
            [node, "--test-reporter=tap", *arguments],
            capture_output=True,
            text=True,
            cwd=Path(__file__).parent,
            env={**os.environ, "NODE_PATH": str(PACKAGES), "UCALL_JS": str(MODULE), **added},
            timeout=250,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


# Chromium has no sandbox as root. It asks before a page that it takes for a public one, as those
# that the tests make, reaches this machine.
ARGUMENTS = ["--no-sandbox", "--disable-features=LocalNetworkAccessChecks"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    reason = "make test-browser installs playwright"
    api = pytest.importorskip("playwright.sync_api", reason=reason)
    chromium = programs.require("chromium")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(scope="session", params=["posix", "uring"])
def engine(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    try:
        importlib.import_module(f"ucall.{name}").Server(port=0)
    except ucall.EngineError as refused:
        pytest.skip(str(refused))
    return name


@pytest.fixture
def serve(engine: str) -> Iterator[Serve]:
    """Starts servers of the functions above, and stops them after the test."""
    started = []

    def start(**options: Any) -> ucall.Server:
        server: ucall.Server = importlib.import_module(f"ucall.{engine}").Server(
            port=0, **ucall.options.arguments(options)
        )
        served.add_to(server)
        server.start()
        started.append(server)
        return server

    yield start
    for server in started:
        server.stop()


@pytest.fixture
def peer() -> Iterator[int]:
    """The port of `peer.mjs`."""
    package("ws")
    command = [system_node(), Path(__file__).with_name("peer.mjs")]
    environment = {**os.environ, "NODE_PATH": str(PACKAGES)}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdin and process.stdout
        yield int(process.stdout.readline())
        process.stdin.close()
