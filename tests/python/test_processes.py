"""Functions that compute, in other processes."""

from __future__ import annotations

import errno
import json
import multiprocessing
import operator
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import forking
import pytest
from programs import require

import ucall
from harness import Wire, eventually, http, let_read, request

# `run` has no guard, although each process of the pool imports this script.
SCRIPT = """
import importlib, os, sys, time, ucall
engine = importlib.import_module("ucall." + sys.argv[1])
server = engine.Server(port=0, timeout_ms=120_000, timeouts=ucall.Timeouts(drain_timeout_s=3000))

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

server.on_startup(lambda: print(server.port))
server.run()
"""


@contextmanager
def running(
    path: Path, script: str, engine: str, *arguments: str
) -> Iterator[tuple[subprocess.Popen[str], int]]:
    path /= "script.py"
    path.write_text(script)
    process = forking.Python(
        [sys.executable, "-u", str(path), engine, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield process, int(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()


def test_functions_run_in_other_processes(tmp_path: Path, engine: str) -> None:
    with running(tmp_path, SCRIPT, engine) as (process, port):
        with Wire(port) as wire:
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
            assert json.loads(wire.line())["result"] != process.pid
            assert wire.error("die")["code"] == -32603
            assert wire.result("square", [3])[0] == 9
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        assert process.returncode == 0


STUCK = """
import importlib, os, sys, time, ucall
server = importlib.import_module("ucall." + sys.argv[1]).Server(
    port=0, timeouts=ucall.Timeouts(drain_timeout_s=3000)
)

@server(processes=2, timeout_ms=400)
def nap(seconds: float):
    time.sleep(seconds)
    return os.getpid()

@server(processes=2)
def pid():
    return os.getpid()

@server(processes=1)
def alone(seconds: float):
    time.sleep(seconds)
    return os.getpid()

@server(processes=1)
def wait_for(path: str):
    # Makes one file, and returns when there is another beside it.
    open(path + ".began", "w").close()
    while not os.path.exists(path):
        time.sleep(0.01)
    return os.getpid()

class Odd(Exception):
    def __init__(self, a, b):
        super().__init__("odd")

@server(processes=1)
def odd(what: str):
    if what == "raise":
        raise Odd(1, 2)
    if what == "interrupt":
        raise KeyboardInterrupt
    return (lambda: 1) if what == "lambda" else what

@server(processes=1)
def fork_and_spawn():
    import subprocess, multiprocessing
    forked = multiprocessing.get_context("fork").Process(target=int)
    forked.start()
    forked.join()
    stuck = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
    stuck.start()
    stuck.terminate()
    stuck.join(60)
    program = subprocess.Popen(["sleep", "600"])
    program.terminate()
    statuses = forked.exitcode, subprocess.call([sys.executable, "-c", ""])
    return [*statuses, stuck.exitcode, program.wait(60)]

server.on_startup(lambda: print(server.port))
server.run()
"""


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_stuck_process_is_killed_at_the_deadline_and_replaced(
    tmp_path: Path, engine: str
) -> None:
    with running(tmp_path, STUCK, engine) as (process, port), Wire(port) as wire:
        # In the same pool, without a deadline, because starting a process may take longer.
        first = wire.result("pid")
        assert is_alive(first)
        wire.send(request("nap", [60], id=1) + request("nap", [60], id=2))
        assert all(json.loads(wire.line())["error"]["code"] == -32001 for _ in range(2))
        assert eventually(lambda: not is_alive(first))
        second = wire.result("pid")
        assert second != first and is_alive(second)
        # A call in another process is not affected.
        wire.send(request("wait_for", [str(tmp_path / "told")], id=1))
        wire.send(request("nap", [60], id=2))
        assert json.loads(wire.line())["id"] == 2
        (tmp_path / "told").touch()
        assert json.loads(wire.line())["id"] == 1
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        assert process.returncode == 0


def test_a_callers_own_deadline_kills_nothing(tmp_path: Path, engine: str) -> None:
    with running(tmp_path, STUCK, engine) as (_, port), Wire(port) as wire:

        def call(name: str, *headers: str) -> Any:
            wire.send(http(request("wait_for", [str(tmp_path / name)]), *headers))
            return json.loads(wire.reply()[2])

        (tmp_path / "there").touch()
        pid = call("there")["result"]
        assert call("later", "Ucall-Timeout-Ms: 50")["error"]["code"] == -32001
        (tmp_path / "later").touch()
        assert call("there")["result"] == pid


def test_a_killed_process_fails_only_its_call(tmp_path: Path, engine: str) -> None:
    with running(tmp_path, STUCK, engine) as (process, port), Wire(port) as wire:
        (tmp_path / "there").touch()
        pid = wire.result("wait_for", [str(tmp_path / "there")])
        wire.send(request("wait_for", [str(tmp_path / "never")], id=1))
        assert eventually((tmp_path / "never.began").exists)
        os.kill(pid, signal.SIGKILL)
        assert json.loads(wire.line())["error"]["code"] == -32603
        assert wire.result("wait_for", [str(tmp_path / "there")]) != pid
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=60)
        assert "killed by signal 9" in log


def test_unpicklable_results_are_logged(tmp_path: Path, engine: str) -> None:
    with running(tmp_path, STUCK, engine) as (process, port), Wire(port) as wire:
        assert wire.error("odd", ["raise"])["code"] == -32603
        assert wire.error("odd", ["lambda"])["code"] == -32603
        assert wire.result("odd", ["text"]) == "text"
        assert wire.result("fork_and_spawn") == [0, 0, -signal.SIGTERM, -signal.SIGTERM]
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=60)
        assert "Odd: odd" in log and "lambda" in log


def test_an_interrupt_that_a_function_raises_fails_its_call_alone(
    tmp_path: Path, engine: str
) -> None:
    with running(tmp_path, STUCK, engine) as (_, port), Wire(port) as wire:
        assert wire.error("odd", ["interrupt"])["code"] == -32603
        assert wire.result("odd", ["text"]) == "text"


def test_the_program_exits_while_a_process_is_stuck(tmp_path: Path, engine: str) -> None:
    with running(tmp_path, STUCK, engine) as (process, port), Wire(port) as wire:
        pid = wire.result("alone", [0])
        wire.send(request("alone", [60]))
        let_read(port)
        process.send_signal(signal.SIGINT)
        # Two signals at once would merge. The first has arrived when calls are rejected.
        assert eventually(lambda: wire.error("nobody")["code"] == -32002)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        assert eventually(lambda: not is_alive(pid))


@pytest.mark.skipif(sys.platform != "linux", reason="the call runs to its end")
def test_a_process_ends_with_a_server_that_is_killed(tmp_path: Path, engine: str) -> None:
    with running(tmp_path, STUCK, engine) as (process, port), Wire(port) as wire:
        (tmp_path / "there").touch()
        pid = wire.result("wait_for", [str(tmp_path / "there")])
        wire.send(request("wait_for", [str(tmp_path / "never")]))
        assert eventually((tmp_path / "never.began").exists)
        process.kill()
        process.wait()
        has_ended = eventually(lambda: not is_running(pid), 30)
        (tmp_path / "never").touch()
        assert has_ended


def is_running(pid: int) -> bool:
    """Whether a process has not ended, reaped or not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def test_functions_unfit_for_processes_are_rejected() -> None:
    server = ucall.Server(port=0)

    async def coroutine() -> None: ...

    with pytest.raises(TypeError, match="coroutine"):
        server.add(coroutine, processes=2)
    with pytest.raises(ValueError, match="processes"):
        server.add(os.getpid, processes=-1)


def test_an_answer_that_was_not_read_is_not_for_the_next_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from ucall._functions import process_pool

    failures: list[Exception] = []
    receive = Connection._recv_bytes  # type: ignore[attr-defined]

    def receive_or_fail(self: Connection, *arguments: Any) -> Any:
        if failures:
            raise failures.pop()
        return receive(self, *arguments)

    monkeypatch.setattr(Connection, "_recv_bytes", receive_or_fail)
    pool = process_pool.Pool(1)
    negative = pool.submitter(operator.neg)
    try:
        assert negative(1).result(30) == -1
        failures.append(MemoryError())
        with pytest.raises(MemoryError):
            negative(2).result(30)
        assert negative(3).result(30) == -3
    finally:
        pool.close()


def test_a_process_that_is_ready_after_the_deadline_runs_the_next_call() -> None:
    from ucall._functions import process_pool

    others = set(multiprocessing.active_children())
    pool = process_pool.Pool(1)
    pid, nap = pool.submitter(os.getpid), pool.submitter(time.sleep, 1)
    try:
        # No process starts within the millisecond.
        with pytest.raises(TimeoutError):
            nap(60).result(30)
        [process] = set(multiprocessing.active_children()) - others
        assert pid().result(30) == process.pid
    finally:
        pool.close()


def interrupt_itself(signals: int) -> int:
    """What Ctrl-C in a terminal does to all processes of a program."""
    for _ in range(signals):
        os.kill(os.getpid(), signal.SIGINT)
        # An interpreter that handles the signal does it before the next statement.
        time.sleep(0)
    return signals


def test_a_running_call_continues_after_ctrl_c() -> None:
    from ucall._functions import process_pool

    pool = process_pool.Pool(1)
    try:
        assert pool.submitter(interrupt_itself)(3).result(60) == 3
    finally:
        pool.close()


def test_a_process_that_dies_between_calls_fails_none() -> None:
    from ucall._functions import process_pool

    others = set(multiprocessing.active_children())
    pool = process_pool.Pool(1)
    pid = pool.submitter(os.getpid)
    try:
        first = pid().result(30)
        [process] = set(multiprocessing.active_children()) - others
        process.kill()
        process.join()
        assert pid().result(30) != first
    finally:
        pool.close()


VARIABLES = """
import contextvars
from ucall._functions.process_pool import Pool

user = contextvars.ContextVar("user", default=None)

def visit(name):
    before = user.get()
    user.set(name)
    return before

if __name__ == "__main__":
    submit = Pool(1).submitter(visit)
    print(submit("alice").result(30), submit("bob").result(30))
"""


def test_no_call_sees_the_variables_of_another(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(VARIABLES)
    # The program ends without closing its pool.
    command = [sys.executable, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "None None\n"


def test_large_arrays_go_through_shared_memory() -> None:
    numpy = pytest.importorskip("numpy")
    from ucall._functions import process_pool

    large = numpy.arange(100_000, dtype="f8").reshape(100, 1000)
    packed = process_pool._pack(large)
    assert isinstance(packed, process_pool._SharedArray)
    assert (process_pool._unpack(packed) == large).all()
    with pytest.raises(FileNotFoundError):
        process_pool._unpack(packed)
    least = numpy.zeros(256 * 1024, "u1")
    packed = process_pool._pack(least)
    assert isinstance(packed, process_pool._SharedArray)
    assert (process_pool._unpack(packed) == least).all()
    small = least[1:]
    assert process_pool._pack(small) is small
    assert process_pool._pack("text") == "text"


def lose_a_result(path: str) -> None:
    """Ends like a process that is killed before the server has its result."""
    import numpy

    from ucall._functions import process_pool

    packed = process_pool._pack(numpy.zeros(1 << 20, "u1"))
    Path(path).write_text(packed.name)
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.skipif(sys.platform != "linux", reason="needs /dev/shm")
def test_the_result_of_a_killed_process_is_released(tmp_path: Path) -> None:
    pytest.importorskip("numpy")
    from ucall._functions import process_pool

    pool = process_pool.Pool(1)
    try:
        future = pool.submitter(lose_a_result)(str(tmp_path / "name"))
        with pytest.raises(RuntimeError, match="was killed by signal 9"):
            future.result(60)
        name = (tmp_path / "name").read_text()
        assert name and not Path(f"/dev/shm/{name}").exists()
    finally:
        pool.close()


def test_unused_shared_memory_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    numpy = pytest.importorskip("numpy")
    from ucall._functions import process_pool

    made: list[Path] = []
    original = process_pool._pack

    def packed(value: Any) -> Any:
        value = original(value)
        if isinstance(value, process_pool._SharedArray):
            made.append(Path("/dev/shm", value.name))
        return value

    monkeypatch.setattr(process_pool, "_pack", packed)
    large = numpy.ones(100_000)
    pool = process_pool.Pool(1)
    pid, total = pool.submitter(os.getpid), pool.submitter(numpy.sum)
    soon = pool.submitter(numpy.sum, 300)
    try:
        # One is killed at its deadline, before it reads its input, and one is cancelled.
        os.kill(pid().result(30), signal.SIGSTOP)
        killed, cancelled = soon(large), total(large)
        assert cancelled.cancel()
        with pytest.raises(TimeoutError):
            killed.result(30)
        next_pid = pid().result(30)
        assert len(made) == 1 and not made[0].exists()
        # The pool closes while one call runs and another waits.
        os.kill(next_pid, signal.SIGSTOP)
        at_process, _ = total(large), total(large)
        assert eventually(lambda: len(made) == 2)
        pool.close()
        with pytest.raises(RuntimeError):
            at_process.result(30)
        assert len(made) == 2 and not made[1].exists()
    finally:
        pool.close()


def test_arrays_are_pickled_without_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    numpy = pytest.importorskip("numpy")
    from ucall._functions import process_pool

    tried: list[os.stat_result] = []

    def full(descriptor: int, offset: int, size: int) -> None:
        tried.append(os.fstat(descriptor))
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "posix_fallocate", full)
    large = numpy.ones(100_000)
    assert process_pool._pack(large) is large
    inodes = {entry.inode() for entry in os.scandir("/dev/shm")}
    assert len(tried) == 1 and tried[0].st_size == large.nbytes and tried[0].st_ino not in inodes


LARGE = """
import numpy, os
from ucall._functions.process_pool import Pool

if __name__ == "__main__":
    large = numpy.ones(500_000)
    print((Pool(1).submitter(numpy.add)(large, large).result(30) == 2).all())
    print(os.listdir("/dev/shm"))
"""


def test_a_full_dev_shm_does_not_end_the_server(tmp_path: Path) -> None:
    pytest.importorskip("numpy")
    (tmp_path / "script.py").write_text(LARGE)
    small = [require("unshare"), "--map-root-user", "--mount", "sh", "-c"]
    mount = "mount -t tmpfs -o size=1m tmpfs /dev/shm"
    if subprocess.run([*small, mount], capture_output=True).returncode:
        pytest.skip("nothing may be mounted here")
    done = subprocess.run(
        [*small, f'{mount} && exec "$0" "$1"', sys.executable, str(tmp_path / "script.py")],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (0, "True\n[]\n"), done.stderr
