"""Functions that compute, in other processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import ucall
from harness import Wire, request

# No guard around `run`: each process of the pool imports this script too.
SCRIPT = """
import importlib, os, sys, time
server = importlib.import_module("ucall." + sys.argv[1]).Server(port=0, timeout_ms=20000)

@server(processes=2)
def square(a: int):
    return [a * a, os.getpid()]

@server(processes=2)
def fail(code: int):
    import ucall
    if code:
        raise ucall.RPCError(code, "no", {"a": 1})
    raise KeyError("x")

@server(processes=2)
def nap(seconds: float):
    time.sleep(seconds)
    return os.getpid()

@server(processes=2)
def die():
    os._exit(1)

@server
def sum(a: int, b: int):
    return a + b

print(server.port)
server.run()
"""


def test_functions_run_in_other_processes(tmp_path: Path, engine: str) -> None:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    process = subprocess.Popen(
        [sys.executable, "-u", str(path), engine],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        with Wire(int(process.stdout.readline()), timeout_s=30) as wire:
            wire.send(b"".join(request("square", [n], id=n) for n in range(20)))
            replies = [json.loads(wire.line()) for _ in range(20)]
            assert all(reply["result"][0] == reply["id"] ** 2 for reply in replies)
            pids = {reply["result"][1] for reply in replies}
            assert 1 <= len(pids) <= 2 and process.pid not in pids
            assert wire.error("fail", [5]) == {"code": 5, "message": "no", "data": {"a": 1}}
            assert wire.error("fail", [0])["code"] == -32603
            assert wire.error("square", ["x"])["code"] == -32602
            wire.send(request("nap", [0.3], id=1) + request("sum", [1, 2], id=2))
            assert json.loads(wire.line())["id"] == 2
            assert json.loads(wire.line())["result"] in pids
            assert wire.error("die")["code"] == -32603
            assert wire.result("square", [3])[0] == 9
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=15)
        assert process.returncode == 0
    finally:
        process.kill()
        process.wait()


def test_what_cannot_run_there_is_refused() -> None:
    server = ucall.Server(port=0)

    async def coroutine() -> None: ...

    def context(ctx: ucall.Context) -> None: ...

    for function in (coroutine, context):
        with pytest.raises(TypeError, match=function.__name__):
            server.add(function, processes=2)
    with pytest.raises(ValueError, match="processes"):
        server.add(os.getpid, processes=-1)


def test_large_arrays_go_through_shared_memory() -> None:
    numpy = pytest.importorskip("numpy")
    from ucall import _processes

    large = numpy.arange(100_000, dtype="f8").reshape(100, 1000)
    packed = _processes._packed(large)
    assert isinstance(packed, _processes._Shared)
    assert (_processes._unpacked(packed) == large).all()
    with pytest.raises(FileNotFoundError):
        _processes._unpacked(packed)
    small = numpy.arange(3)
    assert _processes._packed(small) is small
    assert _processes._packed("text") == "text"
