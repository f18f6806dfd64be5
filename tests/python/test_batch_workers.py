"""Workers that share the processes of batches: one model a device, whatever dies."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_batch_process_faults import began
from test_processes import is_running
from test_workers import Load, Supervised, supervised, supervising

import ucall
from harness import HOST, Wire, eventually, request

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

APP = """
import asyncio, os, time
import ucall

server = ucall.Server(
    port=0,
    timeouts=ucall.Timeouts(drain_timeout_s=3000),
    observability=ucall.Observability(metrics=True),
)

def wait_for(path):
    # Makes one file, and returns when there is another beside it.
    open(path + ".began", "a").write(f"{os.getpid()} ")
    while not os.path.exists(path):
        time.sleep(0.01)

@server.model
def model(device: str | None) -> str:
    if os.path.exists("hold"):
        wait_for("go")
    if os.path.exists("raise"):
        raise OSError("no device")
    open("loads", "a").write(f"{device}:{os.getpid()}:{os.getppid()} ")
    return device

@server
def pid() -> int:
    return os.getpid()

@server
def sum(a: int, b: int) -> int:
    return a + b

@server
async def pause(seconds: float) -> int:
    await asyncio.sleep(seconds)
    return os.getpid()

@server.batch(devices=["a", "b"])
def where(texts: list[str]) -> list:
    return [[os.getpid(), model(), server.worker.count, text, 1] for text in texts]

@server.batch(devices=["a", "b"])
def block(paths: list[str]) -> list[int]:
    wait_for(paths[0])
    return [os.getpid()] * len(paths)

@server.batch(devices=["a", "b"], idempotent=True)
def again(paths: list[str]) -> list[int]:
    wait_for(paths[0])
    return [os.getpid()] * len(paths)

@server.batch(devices=["a", "b"], timeout_ms=1000)
def late(seconds: list[float]) -> list[int]:
    time.sleep(max(seconds))
    return [os.getpid()] * len(seconds)
"""
# Apart, because each process that imports NumPy takes a tenth of a second.
ARRAYS = """
import numpy as np

@server.batch(devices=["a", "b"])
def double(rows: np.ndarray) -> np.ndarray:
    rows *= 2
    return rows
"""


class Loaded:
    """A model in a process."""

    def __init__(self, text: str) -> None:
        self.device, pid, host = text.split(":")
        self.pid, self.host = int(pid), int(host)


def loads(folder: Path, count: int) -> list[Loaded]:
    """Waits until this many models were loaded."""
    file = folder / "loads"
    assert eventually(lambda: file.exists() and len(file.read_text().split()) >= count)
    return [Loaded(text) for text in file.read_text().split()]


@contextmanager
def serving(
    folder: Path, engine: str, source: str = APP
) -> Iterator[tuple[Supervised, list[Wire]]]:
    """Two workers, and a connection to each."""
    supervisor = supervised(folder, "--workers", "2", "--engine", engine, source=source)
    with supervisor as it, it.wires(2) as wires:
        yield it, list(wires.values())


def test_workers_share_one_process_a_device(tmp_path: Path, engine: str) -> None:
    path = tmp_path / "there"
    with serving(tmp_path, engine) as (it, [one, two]):
        loaded = loads(tmp_path, 2)
        devices = {load.pid: load.device for load in loaded}
        assert sorted(devices.values()) == ["a", "b"], "once a device"
        one.send(request("block", [str(path)]))
        [busy] = began(path)
        # The process that runs nothing gets the batches of both workers.
        for wire in (one, two):
            other = Wire(it.port) if wire is one else two
            for number in range(5):
                pid, device, count, text, _ = other.result("where", [f"t{number}"])
                assert pid in devices and pid != busy
                assert (device, count, text) == (devices[pid], 1, f"t{number}")
        two.send(request("block", [str(path)]))
        assert set(began(path, 2)) == set(devices), "each of them runs one"
        path.touch()
        assert {json.loads(wire.line())["result"] for wire in (one, two)} == set(devices)
        it.stop()
        assert len(loads(tmp_path, 2)) == 2
    assert eventually(lambda: not any(is_running(pid) for pid in (*devices, loaded[0].host)))


def test_arrays_of_workers_arrive_as_they_are(tmp_path: Path, engine: str) -> None:
    with serving(tmp_path, engine, APP + ARRAYS) as (it, _):
        with ucall.client.Client(f"tcp://{HOST}:{it.port}") as client:
            for items in (8, 100_000, 300_000):
                rows = [np.arange(items, dtype="f4") + number for number in range(4)]
                client.double(rows[0][:4])  # It learns that the server takes arrays.
                with client.batch() as calls:
                    doubled = [calls.double(row) for row in rows]
                for row, twice in zip(rows, doubled, strict=True):
                    assert (twice.numpy == row * 2).all()
        it.stop()


def test_a_process_that_dies_is_replaced_once_for_all_workers(tmp_path: Path, engine: str) -> None:
    path = tmp_path / "there"
    with serving(tmp_path, engine) as (it, [one, two]):
        one.send(request("block", [str(path)]))
        [victim] = began(path)
        two.send(request("block", [str(path)]))
        assert len(began(path, 2)) == 2
        os.kill(victim, signal.SIGKILL)
        error = json.loads(one.line())["error"]
        assert error["code"] == -32007 and "killed by signal 9" in error["data"]
        assert len(loads(tmp_path, 3)) == 3, "a successor, and no other one"
        path.touch()
        assert json.loads(two.line())["result"] not in (victim, None)
        one.send(request("late", [600], id=1))
        assert json.loads(one.line())["error"]["code"] == -32001
        assert len(loads(tmp_path, 4)) == 4
        assert eventually(lambda: two.result("where", ["x"])[3] == "x")
        it.stop()
        assert "(pid " + str(victim) + ") was killed by signal 9: 1 calls failed" in it.text()


def test_a_worker_that_dies_ends_no_process(tmp_path: Path, engine: str) -> None:
    path = tmp_path / "there"
    with serving(tmp_path, engine) as (it, [one, two]):
        loaded = loads(tmp_path, 2)
        victim, other = one.result("pid"), two.result("pid")
        two.send(request("block", [str(path)], id=1))
        began(path)
        one.send(request("block", [str(path)], id=1))
        began(path, 2)
        one.send(request("block", [str(path) + "-not"], id=2))
        os.kill(victim, signal.SIGKILL)
        it.wait_for(3)
        path.touch()
        assert json.loads(two.line())["result"] in [load.pid for load in loaded]
        assert not Path(str(path) + "-not.began").exists(), "it had not begun, and nobody waits"
        with Wire(it.port) as wire:
            assert wire.result("where", ["x"])[3] == "x"
        assert eventually(lambda: it.call("pid") not in (victim, other))
        assert len(loads(tmp_path, 2)) == 2, "no model was loaded again"
        it.stop()


def test_a_call_that_waits_in_the_host_leaves_with_its_caller(tmp_path: Path, engine: str) -> None:
    path, gone, last = (tmp_path / name for name in ("there", "gone", "last"))
    with serving(tmp_path, engine) as (it, [one, two]):
        for number, wire in enumerate((one, two), 1):
            wire.send(request("block", [str(path)]))
            began(path, number)
        for caller, of_caller in ((one, gone), (two, last)):
            caller.send(request("block", [str(of_caller)], id=7))
            assert caller.result("sum", [1, 2]) == 3, "it was sent to the host"
        one.send(b'{"jsonrpc":"2.0","method":"$/cancelRequest","params":{"id":7}}\n')
        assert json.loads(one.line())["error"]["code"] == -32800
        path.touch()
        began(last)
        last.touch()
        assert not Path(str(gone) + ".began").exists()
        it.stop()


def test_workers_outlast_the_host_of_their_processes(tmp_path: Path, engine: str) -> None:
    path = tmp_path / "there"
    with serving(tmp_path, engine) as (it, [one, two]):
        loaded = loads(tmp_path, 2)
        one.send(request("block", [str(path)]))
        began(path)
        two.send(request("again", [str(path)]))
        began(path, 2)
        os.kill(loaded[0].host, signal.SIGKILL)
        error = json.loads(one.line())["error"]
        assert error["code"] == -32007 and "host" in error["data"]
        assert len(began(path, 3)) == 3, "the idempotent one runs once more"
        path.touch()
        successors = loads(tmp_path, 4)[2:]
        assert json.loads(two.line())["result"] in [load.pid for load in successors]
        assert eventually(lambda: not any(is_running(load.pid) for load in loaded))
        assert len({load.host for load in successors}) == 1
        assert sorted(load.device for load in successors) == ["a", "b"], "once for both workers"
        for wire in (one, two):
            assert wire.result("where", ["x"])[3] == "x"
        it.stop()
        assert f"(pid {loaded[0].host}) was killed by SIGKILL" in it.text()


@pytest.mark.slow
def test_a_rolling_restart_has_new_processes_and_loses_nothing(tmp_path: Path, engine: str) -> None:
    with serving(tmp_path, engine) as (it, [wire, _]):
        first = loads(tmp_path, 2)
        assert wire.result("where", ["x"])[4] == 1
        with Load(it.port) as load:
            (tmp_path / "app.py").write_text(APP.replace("text, 1]", "text, 2]"))
            it.process.send_signal(signal.SIGHUP)
            it.wait_for(4)
            load.more()
        assert load.wrong == []
        assert eventually(lambda: it.call("where", ["x"])[4] == 2)
        second = loads(tmp_path, 4)
        assert len(second) == 4, "once a device for all successors"
        wire.socket.close()
        old = [first[0].host, *(load.pid for load in first)]
        assert eventually(lambda: not any(map(is_running, old)))
        # The next successor does not start: its host is left by nobody but it.
        (tmp_path / "raise").touch()
        it.process.send_signal(signal.SIGHUP)
        assert eventually(lambda: "no worker is replaced" in it.text()), it.text()
        assert it.call("where", ["x"])[4] == 2
        it.stop()


@pytest.mark.parametrize("victim", ["supervisor", "drain"])
def test_nothing_is_left(tmp_path: Path, engine: str, victim: str) -> None:
    path = tmp_path / "there"
    with serving(tmp_path, engine) as (it, [one, two]):
        loaded = loads(tmp_path, 2)
        workers = [wire.result("pid") for wire in (one, two)]
        one.send(request("block", [str(path)]))
        began(path)
        if victim == "supervisor":
            it.process.kill()
        else:
            # As a service manager does, to all of them.
            for pid in (it.process.pid, loaded[0].host, *(load.pid for load in loaded)):
                os.kill(pid, signal.SIGTERM)
        assert eventually(lambda: two.call("nobody").get("error", {}).get("code") == -32002)
        path.touch()
        assert json.loads(one.line())["result"] in [load.pid for load in loaded]
        it.process.wait()
        ids = [*workers, loaded[0].host, *(load.pid for load in loaded)]
        assert eventually(lambda: not any(map(is_running, ids)))


def test_workers_do_not_start_without_their_processes(tmp_path: Path, engine: str) -> None:
    (tmp_path / "raise").touch()
    arguments = "-m", "ucall", "app:server", "--port", "0", "--workers", "2", "--engine", engine
    (tmp_path / "app.py").write_text(APP)
    with supervising(tmp_path, *arguments) as it:
        assert it.process.wait(60) == 1
        assert "model raised OSError: no device" in it.text()
        assert "no worker was ever ready" in it.text()


def test_a_stop_while_models_load_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "hold").touch()
    with supervised(tmp_path, "--workers", "2", source=APP) as it:
        [pid, *_] = began(tmp_path / "go", 2)
        it.process.send_signal(signal.SIGTERM)
        (tmp_path / "go").touch()
        it.process.wait(60)
        assert eventually(lambda: not is_running(pid))


SCRIPT = """
import logging, os
import ucall
logging.basicConfig(level=logging.INFO)
server = ucall.Server(port=0)

@server.batch(processes=1)
def where(texts: list[str]) -> list:
    return [[os.getpid(), server.worker.count, text] for text in texts]

@server
def pid() -> int:
    return os.getpid()

@server.batch(processes=1, timeout_ms=500)
def extra(texts: list[str]) -> list:
    return texts

server.run(workers=2)
print("served", flush=True)
"""


def test_a_script_with_workers_shares_processes(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    with supervising(tmp_path, "script.py") as it, it.wires(2) as wires:
        found = {tuple(wire.result("where", ["x"])) for wire in wires.values()}
        assert len(found) == 1 and next(iter(found))[1:] == (1, "x")
        it.stop()


OTHERS = SCRIPT.replace(
    "@server.batch(processes=1, timeout_ms",
    """
if server.worker.index == 1:
    @server.batch(processes=1)
    def only(texts: list[str]) -> list:
        return texts

@server.batch(processes=1, timeout_ms""",
)


def test_a_worker_with_other_functions_says_so(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(OTHERS)
    with supervising(tmp_path, "script.py") as it:
        assert eventually(lambda: "has other functions" in it.text()), it.text()


LATE = SCRIPT.replace(
    "@server\ndef pid",
    """
@server(threads=True)
def extend() -> str:
    try:
        server.batch(processes=3)(later)
    except RuntimeError as failure:
        return str(failure)
    return "added"

def later(texts: list[str]) -> list:
    return texts

@server
def pid""",
)


def test_functions_of_shared_processes_are_registered_before_the_start(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(LATE)
    with supervising(tmp_path, "script.py") as it, it.wires(2) as wires:
        for wire in wires.values():
            assert "registers before run()" in wire.result("extend", [])
            assert wire.error("later", ["x"])["code"] == -32601
            assert wire.result("where", ["x"])[2] == "x"
        it.stop()


def counted(wire: Wire, name: str) -> Any:
    wire.send(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
    _, _, body = wire.reply()
    lines = [line for line in body.decode().splitlines() if line.startswith(name)]
    return [line.rpartition(" ")[2] for line in lines]


def test_shared_processes_are_counted_once(tmp_path: Path, engine: str) -> None:
    with supervised(tmp_path, "--workers", "2", "--engine", engine, source=APP) as it:
        it.wait_for(2)
        with Wire(it.port) as wire:
            assert counted(wire, 'ucall_loaded_models{model="model"}') == ["2"]
        it.stop()
