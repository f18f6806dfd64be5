"""Functions whose batches run in processes, registered anew while the server runs."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from test_batch_ahead import send
from test_batch_process_faults import SCRIPT as FAULTS
from test_batch_process_faults import began, port_of
from test_batch_processes import only, serving
from test_processes import is_running

import ucall
from harness import Wire, eventually, request

OWN = """
def own(paths: list[str]) -> list[int]:
    wait_for(paths[0])
    return [os.getpid()]

def register(processes: int | None):
    threads = processes is None or None
    server.batch(processes=processes, max_size=1, threads=threads)(own)

@server(threads=True)
def replace(processes: int | None) -> str:
    register(processes)
    return "replaced"

@server
def which() -> str:
    return ", ".join(thread.name for thread in threading.enumerate())

register(3)

"""
SCRIPT = only(FAULTS).replace("import importlib, os", "import importlib, threading, os")
SCRIPT = SCRIPT.replace("@server\ndef sum", OWN + "@server\ndef sum")


def test_processes_of_a_replaced_function_end_after_its_batches(
    tmp_path: Path, engine: str
) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    with serving(tmp_path, engine, SCRIPT) as (process, wire), Wire(port_of(wire)) as other:
        for number in range(5):  # Two of them wait.
            send(wire, "own", old, number)
        before = began(old, 3)
        assert other.result("replace", [1]) == "replaced"
        send(other, "own", new, 10)
        [after] = began(new)
        assert after not in before, "it waits for none of the old ones"
        assert all(is_running(pid) for pid in before)
        old.touch()
        replies = [json.loads(wire.line()) for _ in range(5)]
        assert {reply["result"] for reply in replies} == set(before)
        assert eventually(lambda: not any(is_running(pid) for pid in before))
        new.touch()
        assert json.loads(other.line())["result"] == after
        assert other.result("replace", [None]) == "replaced"
        # No call comes that would have the server look for it.
        assert eventually(lambda: not is_running(after))
        assert other.result("own", [str(new)]) == process.pid
        assert eventually(lambda: "ucall-retire" not in wire.result("which"))
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=60)
        assert process.returncode == 0 and "failed" not in log and "Traceback" not in log


@pytest.mark.parametrize("end", ["cancel", "deadline"])
def test_processes_of_a_replaced_function_end_with_its_last_call(
    tmp_path: Path, engine: str, end: str
) -> None:
    """A call that waits for a batch, which no batch takes."""
    path = tmp_path / "there"
    path.touch()
    script = SCRIPT.replace("max_size=1, threads", "max_size=2, max_wait_ms=50_000, threads")
    script = script.replace("return [os.getpid()]", "return [os.getpid() for _ in paths]")
    with serving(tmp_path, engine, script) as (_, wire), Wire(port_of(wire)) as other:
        send(wire, "own", path, 0)
        wire.send(request("own", [str(path)], id=1) + b"\n")
        pids = {json.loads(wire.line())["result"] for _ in range(2)}
        send(wire, "own", path, 2, **({"timeout_ms": 1000} if end == "deadline" else {}))
        assert other.result("replace", [1]) == "replaced"
        if end == "cancel":
            wire.send(request("$/cancelRequest", {"id": 2}, id=...) + b"\n")
        code = {"cancel": -32800, "deadline": -32001}[end]
        assert json.loads(wire.line())["error"]["code"] == code
        assert eventually(lambda: not any(is_running(pid) for pid in pids), 30)


def test_a_server_ends_with_calls_of_a_replaced_function(tmp_path: Path, engine: str) -> None:
    old = tmp_path / "old"
    with serving(tmp_path, engine, SCRIPT) as (process, wire):
        send(wire, "own", old, 1)
        [pid] = began(old)
        assert wire.result("replace", [1]) == "replaced"
        process.send_signal(signal.SIGTERM)
        assert eventually(lambda: wire.error("nobody")["code"] == -32002)
        old.touch()
        assert json.loads(wire.line())["result"] == pid
        process.communicate(timeout=60)
        assert process.returncode == 0
    assert eventually(lambda: not is_running(pid))


def double(values: list[int]) -> list[int]:
    return [2 * value for value in values]


def test_a_function_replaced_before_the_start_is_not_loaded() -> None:
    server = ucall.Server(port=0)
    for processes in (1, 1, 2):
        server.batch(double, processes=processes)
        [pool] = server._functions.pools._of_batches
        assert [it.name for it in pool.functions] == ["double"]
        assert len(pool.devices) == processes
