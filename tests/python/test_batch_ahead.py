"""Batches that wait in a process while it runs another one: what ends or changes them there."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from test_batch_process_faults import SCRIPT as FAULTS
from test_batch_process_faults import began, port_of, reply
from test_batch_processes import only, serving
from test_processes import is_running

from harness import Wire, eventually, request

ONE = """
@server.batch(processes=1, max_size=1, max_waiting=8)
def one(paths: list[str]) -> list[int]:
    wait_for(paths[0])
    return [os.getpid()]

@server
def connections() -> int:
    return server.stats()["connections"]

@server.batch(processes=2, max_size=1)
def either(paths: list[str]) -> list[int]:
    wait_for(paths[0])
    return [os.getpid()]

@server.batch(processes=1, max_size=1, max_waiting=1, warm_up=("",))
def slow(paths: list[str]) -> list[int]:
    if paths[0]:
        wait_for(paths[0])
    time.sleep(0.5)
    return [os.getpid()]

"""
SCRIPT = only(FAULTS).replace("@server\ndef sum", ONE + "@server\ndef sum")


def send(wire: Wire, method: str, path: Path, number: int, **meta: Any) -> None:
    """Sends a call; returns when the server has begun it, and so has formed its batch."""
    document = json.loads(request(method, [str(path)], id=number))
    wire.send(json.dumps(document | ({"_meta": meta} if meta else {})).encode() + b"\n")
    assert wire.result("sum", [1, 2]) == 3


def has_begun(path: Path) -> bool:
    return path.with_name(path.name + ".began").exists()


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    return [tmp_path / f"file{number}" for number in range(4)]


@pytest.mark.parametrize("how", ["cancels", "leaves", "deadline"])
def test_a_call_that_ends_in_a_batch_ahead_does_not_run(
    tmp_path: Path, paths: list[Path], engine: str, how: str
) -> None:
    with serving(tmp_path, engine, only(SCRIPT, "one")) as (_, wire), Wire(port_of(wire)) as other:
        send(wire, "one", paths[0], 10)
        began(paths[0])
        if how == "deadline":
            send(other, "one", paths[1], 11, timeout_ms=300)
            assert json.loads(other.line())["error"]["code"] == -32001
        else:
            send(other, "one", paths[1], 11)
        if how == "cancels":
            other.send(b'{"jsonrpc":"2.0","method":"$/cancelRequest","params":{"id":11}}\n')
            assert json.loads(other.line())["error"]["code"] == -32800
        elif how == "leaves":
            other.reset()
            assert eventually(lambda: wire.result("connections") == 1)
        send(wire, "one", paths[2], 12)
        paths[0].touch()
        began(paths[2])
        assert not has_begun(paths[1])
        paths[2].touch()
        assert {json.loads(wire.line())["id"] for _ in range(2)} == {10, 12}


def test_an_urgent_call_overtakes_a_batch_ahead(
    tmp_path: Path, paths: list[Path], engine: str
) -> None:
    with serving(tmp_path, engine, only(SCRIPT, "one")) as (_, wire):
        send(wire, "one", paths[0], 10)
        began(paths[0])
        send(wire, "one", paths[1], 11)
        send(wire, "one", paths[2], 12, priority=1)
        assert wire.result("connections") == 1  # The server has read the calls before.
        paths[0].touch()
        began(paths[2])
        assert not has_begun(paths[1])
        for path in paths:
            path.touch()
        assert [json.loads(wire.line())["id"] for _ in range(3)] == [10, 12, 11]


def test_a_batch_ahead_runs_once_when_its_process_dies(
    tmp_path: Path, paths: list[Path], engine: str
) -> None:
    with serving(tmp_path, engine, only(SCRIPT, "one")) as (_, wire):
        send(wire, "one", paths[0], 10)
        [pid] = began(paths[0])
        send(wire, "one", paths[1], 11)
        send(wire, "one", paths[2], 12)
        os.kill(pid, signal.SIGKILL)
        failed = json.loads(wire.line())
        assert (failed["id"], failed["error"]["code"]) == (10, -32007)
        for path in paths[1:3]:
            assert len(began(path)) == 1 and began(path) != [pid]
            path.touch()
        assert [json.loads(wire.line())["id"] for _ in range(2)] == [11, 12]
        assert [len(began(path)) for path in paths[1:3]] == [1, 1], "once"


@pytest.mark.parametrize("free", [0, 1])
def test_a_free_process_runs_what_is_ahead_in_another(
    tmp_path: Path, paths: list[Path], engine: str, free: int
) -> None:
    with serving(tmp_path, engine, only(SCRIPT, "either")) as (_, wire):
        for number in range(3):
            send(wire, "either", paths[number], 10 + number)
        pids = {began(paths[number])[0] for number in range(2)}
        assert len(pids) == 2 and not has_begun(paths[2])
        paths[free].touch()
        assert began(paths[2]) == began(paths[free])
        assert not paths[1 - free].exists()
        for path in paths:
            path.touch()
        assert sorted(json.loads(wire.line())["id"] for _ in range(3)) == [10, 11, 12]


def test_the_times_of_a_warm_up_in_a_process_say_when_to_retry(
    tmp_path: Path, paths: list[Path], engine: str
) -> None:
    with serving(tmp_path, engine, only(SCRIPT, "slow")) as (_, wire):
        send(wire, "slow", paths[0], 10)
        began(paths[0])
        send(wire, "slow", paths[1], 11)
        error = reply(wire, "slow", [str(paths[2])])["error"]
        assert error["code"] == -32003 and error["data"]["max_waiting"] == 1
        assert error["data"]["retry_after_ms"] >= 450, "not a guess"
        for path in paths:
            path.touch()
        assert [json.loads(wire.line())["id"] for _ in range(2)] == [10, 11]


LATER = """
@server(threads=True)
def extend() -> str:
    try:
        server.batch(processes=2)(later)
    except RuntimeError as failure:
        return str(failure)
    return "added"

def later(values: list[int]) -> list[int]:
    return [os.getpid()] * len(values)

"""


def test_a_function_whose_processes_do_not_start_is_not_added(tmp_path: Path, engine: str) -> None:
    marker = tmp_path / "script.py.raise"
    script = only(SCRIPT, "one").replace("@server\ndef sum", LATER + "@server\ndef sum")
    with serving(tmp_path, engine, script) as (process, wire):
        assert wire.result("sum", [1, 2]) == 3, "the other processes have started"
        marker.touch()
        for _ in range(2):
            assert "begin raised OSError: no device" in wire.result("extend", [])
            assert wire.error("later", [1])["code"] == -32601
        marker.unlink()
        assert wire.result("extend", []) == "added"
        pid = wire.result("later", [1])
        assert is_running(pid)
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=60)
        assert process.returncode == 0 and "Traceback" not in log
    assert eventually(lambda: not is_running(pid))
