"""Other projects' clients of MCP: every client in both eras, over HTTP and stdio."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from conftest import CLIENTS, HERE

DIRECT = ("http", "stdio")
VERSIONS = {"auto": "2026-07-28", "legacy": "2025-11-25"}
INSPECTOR = CLIENTS / "node_modules/@modelcontextprotocol/inspector/clients/launcher/build/index.js"


PYTHON_SDK, FASTMCP, TYPESCRIPT_SDK = "python_sdk.py", "fastmcp_client.py", "typescript_sdk.mjs"
#: Two workers and a proxy make no difference to a client, so one of them calls them.
PAIRS = [
    *((client, target) for client in (PYTHON_SDK, FASTMCP, TYPESCRIPT_SDK) for target in DIRECT),
    *((PYTHON_SDK, target) for target in ("workers", "nginx")),
]


@pytest.fixture
def client(request: pytest.FixtureRequest) -> list[str]:
    program = HERE / "clients" / request.param
    runner: Path = request.getfixturevalue("node" if program.suffix == ".mjs" else "python")
    return [str(runner), str(program)]


def run(*command: str) -> Any:
    done = subprocess.run(command, capture_output=True, text=True, cwd=CLIENTS, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("mode", VERSIONS)
@pytest.mark.parametrize(("client", "target"), PAIRS, indirect=True)
def test_client(client: list[str], mode: str, target: list[str], tmp_path: Path) -> None:
    # In older versions a cancellation over HTTP names a request of a session, and there are none.
    can_cancel = mode == "auto" or len(target) > 1
    found = run(*client, mode, str(tmp_path / "cancelled") if can_cancel else "", *target)
    assert {"add", "wait", "test_simple_text"} <= set(found.pop("tools"))
    assert found == {
        "version": VERSIONS[mode],
        "added": {"result": 5},
        "is wrong": True,
        "wrong": "Invalid params: params.b: expected int, got str",
        "text": "This is the content of the static text resource.",
        "part": "123",
        "prompt": "Prompt with arguments: arg1='x', arg2='y'",
        "completed": ["test"],
        "greeted": "Hello, Ada!",
        "progress": [[0, 100], [50, 100], [100, 100]],
        "cancelled": "cancelled" if can_cancel else None,
    }


@pytest.mark.parametrize("era", ["modern", "legacy"])
@pytest.mark.parametrize("target", DIRECT, indirect=True)
def test_inspector(node: Path, era: str, target: list[str]) -> None:
    """The inspector's command line, each call of which is a process of its own."""

    def inspect(method: str, *options: str) -> Any:
        server = ["--server-url", *target] if len(target) == 1 else target
        ways = ["--protocol-era", era, "--format", "json", "--quiet"]
        found = run(
            str(node), str(INSPECTOR), "--cli", *server, *ways, "--method", method, *options
        )
        return found.get("result", found)

    assert "add" in [tool["name"] for tool in inspect("tools/list")["tools"]]
    called = inspect("tools/call", "--tool-name", "add", "--tool-arg", "a=2", "b=3")
    assert called["structuredContent"] == {"result": 5}
    [read] = inspect("resources/read", "--uri", "test://static-text")["contents"]
    assert read["text"] == "This is the content of the static text resource."
    prompt = inspect("prompts/get", "--prompt-name", "test_simple_prompt")
    assert prompt["messages"][0]["content"]["text"] == "This is a simple prompt for testing."
