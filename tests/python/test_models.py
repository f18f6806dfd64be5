"""`Server.model`: what each process that serves loads once, before its first call."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import forking
import pytest
from test_processes import is_running
from test_workers import supervised

import ucall
from harness import Wire, eventually, request


def new_server(engine: str) -> ucall.Server:
    server: ucall.Server = importlib.import_module(f"ucall.{engine}").Server(port=0)
    return server


@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "async"])
def test_a_model_is_loaded_once_between_the_startup_hooks(engine: str, is_async: bool) -> None:
    server = new_server(engine)
    seen: list[Any] = []

    def load(device: str | None) -> list[int]:
        seen.append(("load", device))
        return [2]

    async def load_async() -> list[int]:
        seen.append(("load", None))
        return [2]

    server.on_startup(lambda: seen.append("before"))
    model = server.model(load_async) if is_async else server.model(load)
    server.on_startup(lambda: seen.append(("after", model())))

    @server
    def double(value: int) -> int:
        return value * model()[0]

    @server(name="double.thread", threads=True)
    def double_in_thread(value: int) -> int:
        return value * model()[0]

    assert not model.is_loaded and "not loaded" in repr(model)
    assert model.__name__ == ("load_async" if is_async else "load")
    with pytest.raises(RuntimeError, match=r"is not loaded in this process.*in_processes"):
        model()
    for _ in range(2):
        with server, Wire(server.port) as wire:
            assert wire.result("double", [3]) == wire.result("double.thread", [3]) == 6
    assert seen == ["before", ("load", None), ("after", [2]), "before", ("after", [2])]
    assert model.is_loaded and ", loaded" in repr(model)


def test_a_server_does_not_start_without_its_model(engine: str) -> None:
    server = new_server(engine)

    @server.model
    def weights() -> int:
        raise FileNotFoundError("weights.bin")

    with pytest.raises(FileNotFoundError, match=r"weights\.bin"):
        server.start()
    assert not weights.is_loaded and "not running" in repr(server)


def test_unfit_models_are_rejected() -> None:
    server = ucall.Server(port=0)
    unfit: list[Any] = [5, lambda device, other: None, lambda *, device: None]
    for load in unfit:
        with pytest.raises(TypeError, match="expected"):
            server.model(load)


IN_PROCESSES = """
import importlib, os, sys, ucall
server = importlib.import_module("ucall." + sys.argv[1]).Server(
    port=0, observability=ucall.Observability(metrics=True)
)

def loaded(name: str, device: str | None) -> list:
    assert device is None
    if os.path.exists(__file__ + ".absent"):
        raise FileNotFoundError("no weights")
    with open(__file__ + ".log", "a") as log:
        print(name, os.getpid(), file=log)
    return [os.getpid()]

@server.model
def shared(device: str | None):
    return loaded("shared", device)

@server.on_process_start
def use():
    shared().append("used")

@server.model(in_processes=False)
async def own(device: str | None):
    return loaded("own", device)

@server(processes=2)
def in_process():
    try:
        own()
    except RuntimeError:
        return [os.getpid(), *shared()]

@server
def here():
    try:
        shared()
    except RuntimeError:
        return [os.getpid(), *own()]

@server
def loaded_models():
    lines = [it for it in server.metrics().splitlines() if it.startswith("ucall_loaded_models{")]
    return {name: int(count) for name, count in map(str.split, lines)}

server.on_startup(lambda: print("starts"))
server.on_shutdown(lambda: print("ends"))
if __name__ == "__main__":
    try:
        server.start()
        print(server.port, flush=True)
        sys.stdin.read()
    finally:
        server.stop()
"""


def loads(script: Path) -> list[tuple[str, int]]:
    lines = [line.split() for line in script.with_name("script.py.log").read_text().splitlines()]
    return [(name, int(pid)) for name, pid in lines]


def start(script: Path, engine: str) -> subprocess.Popen[str]:
    script.write_text(IN_PROCESSES)
    command = [sys.executable, "-u", str(script), engine]
    pipe = subprocess.PIPE
    return forking.Python(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def test_processes_have_loaded_their_models_before_the_server_listens(
    tmp_path: Path, engine: str
) -> None:
    script = tmp_path / "script.py"
    with start(script, engine) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == "starts\n"
        port = int(server.stdout.readline())
        found = loads(script)
        assert sorted(name for name, _ in found) == ["own", "shared", "shared"]
        assert [pid for name, pid in found if name == "own"] == [server.pid]
        pids = {pid for name, pid in found if name == "shared"}
        assert len(pids) == 2 and server.pid not in pids
        with Wire(port) as wire:
            assert wire.result("here") == [server.pid] * 2
            pid, *model = wire.result("in_process")
            assert pid in pids and model == [pid, "used"]
            counts = {f'ucall_loaded_models{{model="{name}"}}': 1 for name in ("own", "shared")}
            counts |= {'ucall_loaded_models{model="shared"}': 2}
            assert wire.result("loaded_models") == counts
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            assert eventually(lambda: not any(map(is_running, pids)))
            pid, *model = wire.result("in_process")
            assert pid not in pids and model == [pid, "used"]
            # One that has died is noticed by its next call.
            assert wire.result("loaded_models") == counts
        server.communicate("")
    assert len(loads(script)) == 4


def test_a_server_does_not_start_without_the_models_of_its_processes(
    tmp_path: Path, engine: str
) -> None:
    (tmp_path / "script.py.absent").touch()
    script = tmp_path / "script.py"
    script.write_text(IN_PROCESSES.replace("(in_processes=False)", "(in_processes=True)"))
    command = [sys.executable, "-u", str(script), engine]
    ran = forking.run(command, stdin=subprocess.DEVNULL, text=True)
    assert ran.stdout == "starts\n" and ran.returncode == 1
    assert "its process could not start: shared raised FileNotFoundError: no weights" in ran.stderr


WORKERS = """
import os, ucall
server = ucall.Server(port=0)

@server.model
def model():
    return f"{os.getpid()} of worker {server.worker.index}"

@server
def place():
    return [model(), f"{os.getpid()} of worker {server.worker.index}"]
"""


def test_each_worker_loads_the_model(tmp_path: Path, engine: str) -> None:
    with supervised(tmp_path, "--workers", "2", "--engine", engine, source=WORKERS) as it:
        it.wait_for(2)
        seen = set()

        def see() -> bool:
            model, place = it.call("place")
            assert model == place
            seen.add(model)
            return len(seen) == 2

        assert eventually(see)


def test_the_model_of_a_process_that_cannot_load_it_again_fails_its_call(
    tmp_path: Path, engine: str
) -> None:
    script = tmp_path / "script.py"
    with start(script, engine) as server:
        assert server.stdout is not None
        server.stdout.readline()
        with Wire(int(server.stdout.readline())) as wire:
            (tmp_path / "script.py.absent").touch()
            for _, pid in loads(script)[1:]:
                if pid != server.pid:
                    os.kill(pid, signal.SIGKILL)
                    assert eventually(lambda pid=pid: not is_running(pid))
            wire.send(request("in_process", id=1) + request("in_process", id=2))
            codes = [json.loads(wire.line())["error"]["code"] for _ in range(2)]
            assert codes == [-32603, -32603]
            (tmp_path / "script.py.absent").unlink()
            assert wire.result("in_process")[1:][-1] == "used"
        _, log = server.communicate("")
    assert "could not start: shared raised FileNotFoundError: no weights" in log
