"""Tools whose caller leaves: they end in the newest version of MCP, and go on in older ones."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import forking
import pytest

from harness import Wire, eventually, http

NEWEST, OLDER = "2026-07-28", "2025-11-25"
KINDS = ["in_task", "in_thread", "in_process"]

# Each says how it has ended in the file of its param.
SCRIPT = """
import asyncio, importlib, os, sys, time
import ucall

server = importlib.import_module("ucall." + sys.argv[1]).Server(port=0, mcp=True)


def write(path: str, text: str) -> None:
    with open(path + ".new", "w") as file:
        file.write(text)
    os.rename(path + ".new", path)


@server
async def in_task(ctx: ucall.Context, path: str) -> None:
    ctx.progress(0)
    try:
        while not os.path.exists(path + ".go"):
            await asyncio.sleep(0.001)
        write(path, "finished")
    except asyncio.CancelledError:
        write(path, "cancelled")
        raise


def work(ctx: ucall.Context, path: str) -> None:
    ctx.progress(0)
    while not ctx.cancelled and not os.path.exists(path + ".go"):
        time.sleep(0.001)
    write(path, "cancelled" if ctx.cancelled else "finished")


@server(threads=True)
def in_thread(ctx: ucall.Context, path: str) -> None:
    work(ctx, path)


@server(processes=1)
def in_process(ctx: ucall.Context, path: str) -> None:
    work(ctx, path)


@server
def connections() -> int:
    return server.stats()["connections"]


server.on_startup(lambda: print(server.port))
server.run()
"""


@contextmanager
def running(folder: Path, engine: str) -> Iterator[int]:
    script = folder / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-u", str(script), engine]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with forking.Python(command, text=True, **pipes) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.kill()


def posted(name: str, path: Path, version: str) -> bytes:
    """A call that asks for progress."""
    meta: dict[str, Any] = {"progressToken": 1}
    headers = [f"MCP-Protocol-Version: {version}", "Accept: application/json, text/event-stream"]
    if version == NEWEST:
        meta["io.modelcontextprotocol/protocolVersion"] = version
        meta["io.modelcontextprotocol/clientCapabilities"] = {}
        headers += ["Mcp-Method: tools/call", f"Mcp-Name: {name}"]
    params = {"name": name, "arguments": {"path": str(path)}, "_meta": meta}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    return http(json.dumps(body).encode(), *headers, target="/mcp")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("version", [NEWEST, OLDER])
def test_a_caller_leaves(version: str, kind: str, engine: str, tmp_path: Path) -> None:
    path = tmp_path / "ended"
    with running(tmp_path, engine) as port, Wire(port) as other:
        with Wire(port) as wire:
            wire.send(posted(kind, path, version))
            assert b"notifications/progress" in wire.take_to(b"notifications/progress")
        if version == NEWEST:
            assert eventually(path.exists)
            assert path.read_text() == "cancelled"
        else:
            assert eventually(lambda: other.result("connections") == 1)
            path.with_name("ended.go").touch()
            assert eventually(path.exists)
            assert path.read_text() == "finished"
