"""Processes of `processes=N`: what they begin with, and what does not end them."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from test_processes import is_alive, is_running, running

import ucall
from harness import Wire, eventually, request

SIGNALLED = """
import importlib, os, sys, time, ucall

def wait_for(path):
    # Makes one file, and returns when there is another beside it.
    open(path + ".began", "w").write(str(os.getpid()))
    while not os.path.exists(path):
        time.sleep(0.01)

if __name__ == "__mp_main__":
    wait_for(__file__ + ".import")
server = importlib.import_module("ucall." + sys.argv[1]).Server(
    port=0, timeouts=ucall.Timeouts(drain_timeout_s=3000)
)

@server(processes=1)
def burn(path: str):
    wait_for(path)
    return "burned"

server.on_startup(lambda: print(server.port))
server.run()
"""


def test_signals_to_all_processes_leave_their_calls(tmp_path: Path, engine: str) -> None:
    """A service manager that ends a whole group, as systemd does by default."""
    imported, called = tmp_path / "script.py.import", tmp_path / "call"
    with running(tmp_path, SIGNALLED, engine) as (process, port), Wire(port) as wire:
        wire.send(request("burn", [str(called)]))
        pid = int(let_begin(imported))
        for number in (signal.SIGTERM, signal.SIGINT):
            os.kill(pid, number)
        imported.touch()
        assert int(let_begin(called)) == pid
        for each in (pid, process.pid):
            os.kill(each, signal.SIGTERM)
        assert eventually(lambda: wire.error("nobody")["code"] == -32002)
        called.touch()
        assert json.loads(wire.line())["result"] == "burned"
        process.communicate(timeout=60)
        assert process.returncode == 0 and eventually(lambda: not is_alive(pid))


def let_begin(path: Path) -> str:
    """Waits until a process waits for the file; returns what it has written."""
    began = path.with_name(path.name + ".began")
    assert eventually(lambda: began.exists() and bool(began.read_text()))
    return began.read_text()


HOOKS = """
import asyncio, importlib, os, sys
server = importlib.import_module("ucall." + sys.argv[1]).Server(port=0)
state = []

@server.on_startup
def begin():
    state.append("startup")

@server.on_process_start
def load(number: int):
    state.append(number)

@server.on_process_start
async def connect():
    await asyncio.sleep(0)
    state.append("connected")

@server.on_process_start
def may_fail(path: str = __file__ + ".absent"):
    if os.path.exists(path):
        import ucall
        raise ucall.RPCError(7, "no model")

@server(processes=2)
def loaded():
    return [os.getpid(), *state]

server.on_startup(lambda: print(server.port))
server.run()
"""


def test_hooks_run_in_each_process_before_its_first_call(tmp_path: Path, engine: str) -> None:
    with running(tmp_path, HOOKS, engine) as (process, port), Wire(port) as wire:

        def both() -> list[list[Any]]:
            """The replies of both processes, which start for these calls."""
            wire.send(request("loaded", id=1) + request("loaded", id=2))
            return sorted(
                (json.loads(wire.line())["result"] for _ in range(2)), key=lambda it: it[1]
            )

        (absent := tmp_path / "script.py.absent").touch()
        assert wire.error("loaded") == {"code": -32603, "message": "Internal error"}
        absent.unlink()
        pids: list[int] = []
        for _ in range(2):
            replies = both()
            assert [state for _, *state in replies] == [[0, "connected"], [1, "connected"]]
            assert wire.result("loaded")[1:] in ([0, "connected"], [1, "connected"])
            assert not {pid for pid, *_ in replies} & set(pids)
            pids = [pid for pid, *_ in replies]
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            assert eventually(lambda pids=pids: not any(map(is_running, pids)))
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=60)
        assert "its process could not start: may_fail raised" in log
        assert "no model" in log and "in may_fail" in log


def test_unfit_hooks_of_processes_are_rejected() -> None:
    server = ucall.Server(port=0)
    unfit: list[Any] = [5, lambda number, other: None, lambda *, number: None]
    for hook in unfit:
        with pytest.raises(TypeError, match="expected"):
            server.on_process_start(hook)
