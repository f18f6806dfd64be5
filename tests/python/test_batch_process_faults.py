"""Processes of batches that die, hang, or write what they should not."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import forking
import pytest
from test_batch_processes import call_all, only, serving
from test_processes import is_running

from harness import Wire, eventually, request

SCRIPT = """
import importlib, os, socket, stat, sys, time
import numpy as np
import ucall
server = importlib.import_module("ucall." + sys.argv[1]).Server(
    port=0, timeouts=ucall.Timeouts(drain_timeout_s=3000)
)
here = __file__

def wait_for(path):
    # Makes one file, and returns when there is another beside it.
    open(path + ".began", "a").write(f"{os.getpid()} ")
    while not os.path.exists(path):
        time.sleep(0.01)

@server.on_process_start
def begin(number: int):
    if os.path.exists(here + ".hang"):
        wait_for(here + ".go")
    if os.path.exists(here + ".exit"):
        os._exit(3)
    if os.path.exists(here + ".raise"):
        raise OSError("no device")

@server.batch(processes=2)
def pid(values: list[int]) -> list[int]:
    return [os.getpid()] * len(values)

@server.batch(processes=2)
def block(paths: list[str]) -> list[int]:
    wait_for(paths[0])
    return [os.getpid()] * len(paths)

@server.batch(processes=2, idempotent=True)
def again(paths: list[str]) -> list[int]:
    wait_for(paths[0])
    return [os.getpid()] * len(paths)

@server.batch(processes=1, timeout_ms=1000)
def late(seconds: list[float]) -> list[int]:
    time.sleep(max(seconds))
    return [os.getpid()] * len(seconds)

@server.batch(processes=2, idempotent=True, timeout_ms=1000)
def hang(seconds: list[float]) -> list[int]:
    open(here + ".hung", "a").write(f"{os.getpid()} ")
    time.sleep(max(seconds))
    return [os.getpid()] * len(seconds)

def sockets():
    for name in os.listdir("/proc/self/fd"):
        try:
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                yield int(name)
        except OSError:
            pass

@server.batch(processes=1)
def spoil(texts: list[str]) -> list[int]:
    if texts[0] == "exit":
        os._exit(7)
    for descriptor in list(sockets()):
        try:
            os.write(descriptor, texts[0].encode())
        except OSError:
            pass
    return [os.getpid()] * len(texts)

@server.batch(processes=1)
def fork(values: list[int]) -> list[int]:
    if (child := os.fork()) == 0:
        time.sleep(600)
    open(here + ".child", "w").write(str(child))
    os._exit(0)

@server.batch(processes=1, parallel=2, max_size=1)
def pair(paths: list[str]) -> list[int]:
    wait_for(paths[0])
    return [os.getpid()]

@server.batch(processes=1, max_size=4)
def total(rows: np.ndarray) -> list[float]:
    return [float(row.sum()) for row in rows]

@server
def sum(a: int, b: int) -> int:
    return a + b

server.on_startup(lambda: print(server.port))
server.run()
"""


def began(path: Path, count: int = 1) -> list[int]:
    """Waits until this many batches wait for the file; returns the processes that run them."""
    file = path.with_name(path.name + ".began")
    assert eventually(lambda: file.exists() and len(file.read_text().split()) >= count)
    return [int(pid) for pid in file.read_text().split()]


def test_a_killed_process_fails_its_batch_alone_and_is_replaced(
    tmp_path: Path, engine: str
) -> None:
    path = tmp_path / "there"
    script = only(SCRIPT, "pid", "block")
    with serving(tmp_path, engine, script) as (process, wire), Wire(port_of(wire)) as other:
        wire.send(request("block", [str(path)], id=1) + request("block", [str(path)], id=2))
        [pid] = began(path)
        survivor = other.result("pid", [1])
        assert survivor != pid
        os.kill(pid, signal.SIGKILL)
        for _ in range(2):
            error = json.loads(wire.line())["error"]
            assert error["code"] == -32007 and "killed by signal 9" in error["data"]
        path.touch()
        other.send(request("block", [str(path)], id=1) + request("block", [str(path)], id=2))
        found = {json.loads(other.line())["result"] for _ in range(2)}
        assert pid not in found
        assert eventually(lambda: pid_of_both(wire, survivor))
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=60)
    assert f"(pid {pid}) was killed by signal 9: 2 calls failed" in log


def port_of(wire: Wire) -> int:
    port: int = wire.socket.getpeername()[1]
    return port


def pid_of_both(wire: Wire, survivor: int) -> bool:
    """Whether both processes run batches, one of them a new one."""
    found = {wire.result("pid", [1]) for _ in range(20)}
    return found != {survivor} or len(found) == 2


def test_a_batch_that_ran_too_long_runs_in_no_other_process(tmp_path: Path, engine: str) -> None:
    with serving(tmp_path, engine, only(SCRIPT, "hang")) as (process, wire):
        assert wire.call("hang", [600])["error"]["code"] == -32001
        # The other process has never had the batch.
        assert wire.result("hang", [0]) > 0
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    hung = next(tmp_path.glob("*.hung")).read_text().split()
    assert len(hung) == 2, "once for each call"


def test_the_batch_of_an_idempotent_function_runs_once_more(tmp_path: Path, engine: str) -> None:
    path = tmp_path / "there"
    with serving(tmp_path, engine, only(SCRIPT, "again")) as (_, wire):
        wire.send(request("again", [str(path)], id=1) + request("again", [str(path)], id=2))
        [first] = began(path)
        os.kill(first, signal.SIGKILL)
        second = began(path, 2)[-1]
        assert second != first
        path.touch()
        assert [json.loads(wire.line())["result"] for _ in range(2)] == [second] * 2
        path.unlink()
        path.with_name("there.began").unlink()
        wire.send(request("again", [str(path)], id=1))
        os.kill(began(path)[0], signal.SIGKILL)
        os.kill(began(path, 2)[1], signal.SIGKILL)
        assert json.loads(wire.line())["error"]["code"] == -32007, "not a third time"


def test_a_batch_past_the_deadline_of_its_function_kills_the_process(
    tmp_path: Path, engine: str
) -> None:
    with serving(tmp_path, engine, only(SCRIPT, "late")) as (process, wire):
        first = wire.result("late", [0])
        wire.send(request("late", [600], id=1))
        assert json.loads(wire.line())["error"]["code"] == -32001
        assert eventually(lambda: not is_running(first))
        assert eventually(lambda: "result" in reply(wire, "late", [0]))
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=60)
    assert "was killed at the deadline of its batch" in log


def reply(wire: Wire, method: str, params: list[Any]) -> dict[str, Any]:
    wire.send(request(method, params))
    found: dict[str, Any] = json.loads(wire.line())
    return found


@pytest.mark.parametrize("text", ["hello\n", "ucallmsg", "x" * 5000, "exit"])
def test_a_process_that_writes_to_its_socket_is_replaced(
    tmp_path: Path, engine: str, text: str
) -> None:
    with serving(tmp_path, engine, only(SCRIPT, "spoil")) as (process, wire):
        error = reply(wire, "spoil", [text])["error"]
        assert error["code"] == -32007 and "its process" in error["data"]
        # Its successor has no bytes of it.
        assert wire.result("sum", [1, 2]) == 3
        assert reply(wire, "spoil", ["exit"])["error"]["data"].endswith("ended with status 7")
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        assert process.returncode == 0


@pytest.mark.skipif(sys.platform != "linux", reason="needs a descriptor of the process")
def test_a_child_that_keeps_the_socket_hides_no_end(tmp_path: Path, engine: str) -> None:
    with serving(tmp_path, engine, only(SCRIPT, "fork")) as (_, wire):
        error = reply(wire, "fork", [1])["error"]
        assert "ended with status 0" in error["data"]
        os.kill(int((tmp_path / "script.py.child").read_text()), signal.SIGKILL)


def test_a_server_does_not_start_without_its_processes(tmp_path: Path, engine: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(only(SCRIPT, "pid"))
    for suffix, reason in [("exit", "ended with status 3"), ("raise", "begin raised OSError: no")]:
        marker = script.with_name(f"script.py.{suffix}")
        marker.touch()
        ran = forking.run([sys.executable, "-u", str(script), engine], text=True)
        assert ran.returncode == 1 and f"its process {reason}" in ran.stderr.replace(
            "could not start: ", ""
        )
        marker.unlink()


def test_a_successor_that_cannot_start_fails_calls_only_if_there_is_no_other(
    tmp_path: Path, engine: str
) -> None:
    marker = tmp_path / "script.py.raise"
    with serving(tmp_path, engine, only(SCRIPT, "pid")) as (process, wire):
        first = wire.result("pid", [1])
        marker.touch()
        os.kill(first, signal.SIGKILL)
        assert eventually(lambda: not is_running(first))
        second = wire.result("pid", [1])
        assert second != first
        os.kill(second, signal.SIGKILL)
        assert eventually(lambda: not is_running(second))
        # It waits for the next attempt of either.
        assert reply(wire, "pid", [1])["error"]["code"] in (-32603, -32007)
        assert reply(wire, "pid", [1])["error"]["code"] == -32603
        marker.unlink()
        assert eventually(lambda: "result" in reply(wire, "pid", [1]))
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=60)
    assert "begin raised OSError: no device" in log


def test_a_successor_that_hangs_delays_calls_to_their_deadlines(
    tmp_path: Path, engine: str
) -> None:
    with serving(tmp_path, engine, only(SCRIPT, "pid", "late")) as (process, wire):
        first = wire.result("late", [0])
        (tmp_path / "script.py.hang").touch()
        os.kill(first, signal.SIGKILL)
        assert eventually(lambda: reply(wire, "late", [0]).get("error", {}).get("code") == -32001)
        assert wire.result("pid", [1]), "the processes of other functions"
        (tmp_path / "script.py.go").touch()
        assert eventually(lambda: "result" in reply(wire, "late", [0]))
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        assert process.returncode == 0


@pytest.mark.parametrize("how", ["batches", "calls"])
def test_a_process_whose_start_hangs_is_killed(tmp_path: Path, engine: str, how: str) -> None:
    source = only(SCRIPT, *(["pid"] if how == "batches" else []))
    source = source.replace("drain_timeout_s=3000", "process_start_timeout_s=4")
    if how == "calls":
        source = source.replace("@server\ndef", "@server(processes=1)\ndef")
    hang = tmp_path / "script.py.hang"
    with serving(tmp_path, engine, source) as (process, wire):
        if how == "batches":
            os.kill(wire.result("pid", [1]), signal.SIGKILL)
            os.kill(wire.result("pid", [1]), signal.SIGKILL)
            hang.touch()
            assert eventually(lambda: reply(wire, "pid", [1])["error"]["code"] == -32603)
        else:
            hang.touch()
            assert wire.error("sum", [1, 2])["code"] == -32603
        hang.unlink()
        method, params = ("pid", [1]) if how == "batches" else ("sum", [1, 2])
        assert eventually(lambda: "result" in reply(wire, method, params))
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=60)
    assert "was not ready after 4 s, process_start_timeout_s, and was killed" in log


def test_a_drain_waits_for_batches(tmp_path: Path, engine: str) -> None:
    path = tmp_path / "there"
    with serving(tmp_path, engine, only(SCRIPT, "block")) as (process, wire):
        wire.send(request("block", [str(path)], id=1))
        [pid] = began(path)
        for each in (pid, process.pid):
            os.kill(each, signal.SIGTERM)
        assert eventually(lambda: wire.error("nobody")["code"] == -32002)
        path.touch()
        assert json.loads(wire.line())["result"] == pid
        process.communicate(timeout=60)
        assert process.returncode == 0 and eventually(lambda: not is_running(pid))


@pytest.mark.skipif(sys.platform != "linux", reason="the batch runs to its end")
def test_processes_end_with_a_server_that_is_killed(tmp_path: Path, engine: str) -> None:
    path = tmp_path / "there"
    script = only(SCRIPT, "pid", "block", "late")
    with serving(tmp_path, engine, script) as (process, wire):
        pids = {wire.result(name, [arg]) for name, arg in [("late", 0), ("pid", 1)]}
        wire.send(request("block", [str(path)]))
        pids |= set(began(path))
        process.kill()
        process.wait()
        assert eventually(lambda: not any(map(is_running, pids)), 30)


def test_the_next_batch_waits_in_the_process_that_runs_one(tmp_path: Path, engine: str) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    with serving(tmp_path, engine, only(SCRIPT, "pair")) as (_, wire):
        wire.send(request("pair", [str(one)], id=1) + request("pair", [str(two)], id=2))
        [pid] = began(one)
        os.kill(pid, signal.SIGKILL)
        assert json.loads(wire.line())["error"]["code"] == -32007
        # The second was in its socket, and not begun: no other call fails.
        assert began(two) != [pid]
        two.touch()
        assert json.loads(wire.line())["id"] == 2


LIMITED = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))\n"


@pytest.mark.skipif(sys.platform != "linux", reason="there is no shared memory")
def test_without_shared_memory_batches_go_through_the_socket(tmp_path: Path, engine: str) -> None:
    """As with a batch that is larger than the memory that the system has left."""
    row = list(range(200_000))
    with serving(tmp_path, engine, LIMITED + only(SCRIPT, "total")) as (_, wire):
        for _ in range(3):
            assert call_all(wire, "total", [row, row]) == [float(sum(row))] * 2


#: The seconds of the test under load; `make test-batch-kills` takes a minute.
KILL_SECONDS = float(os.environ.get("UCALL_BATCH_KILL_SECONDS", "1"))
CALLERS = 8


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_processes_killed_under_load_lose_their_batches_alone(tmp_path: Path, engine: str) -> None:
    row = [1.5] * 8_000
    script = only(SCRIPT, "pid", "total").replace("processes=2", "processes=1")
    with serving(tmp_path, engine, script) as (process, wire):
        stop = threading.Event()
        results: list[str] = []

        def call() -> None:
            with Wire(port_of(wire)) as caller:
                while not stop.is_set():
                    found = reply(caller, "total", [row])
                    expected = found.get("result") == 12_000.0
                    code = found.get("error", {}).get("code")
                    results.append("" if expected else str(code or found))

        threads = [threading.Thread(target=call) for _ in range(CALLERS)]
        for thread in threads:
            thread.start()
        kills, sizes, until = 0, [], time.monotonic() + KILL_SECONDS
        while len(sizes) < 5 or time.monotonic() < until:
            answered = len(results)
            assert eventually(lambda answered=answered: len(results) > answered + 2 * CALLERS)
            # Of these some serve other functions.
            for pid in children_of(process.pid):
                os.kill(pid, signal.SIGKILL)
                kills += 1
            sizes.append(held_by(process.pid))
            time.sleep(min(2, KILL_SECONDS / 6))
        stop.set()
        for thread in threads:
            thread.join(60)
        lost = [it for it in results if it]
        print(f"{engine}: {len(results)} calls, {kills} processes killed, {len(lost)} calls lost")
        print("descriptors, mappings and resident bytes:", *sizes)
        assert set(lost) <= {"-32007"}, "no other error"
        # Each process of this function has had one batch, of four calls at most.
        assert len(lost) <= 4 * kills and len(results) > 10 * len(lost)
        # All calls go on: none waits for an answer that was lost.
        assert call_all(wire, "total", [row, row]) == [12_000.0] * 2
        descriptors, mapped, resident = zip(*sizes, strict=True)
        # The first kills come while some processes start.
        assert max(descriptors) <= max(descriptors[:3]) + 16
        assert max(mapped) <= max(mapped[:3]) + 16
        assert max(resident) <= max(resident[:3]) + 64_000_000
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        assert process.returncode == 0


def children_of(pid: int) -> list[int]:
    """The processes that run batches, which have imported their module."""
    text = Path(f"/proc/{pid}/task/{pid}/children")
    found = set(text.read_text().split())
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found |= set((task / "children").read_text().split())
    spawned = "spawn_main"
    return [int(it) for it in found if spawned in command_of(int(it))]


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except FileNotFoundError:
        return ""


def held_by(pid: int) -> tuple[int, int, int]:
    """The descriptors of a process, its mappings of shared memory, and its resident bytes."""
    descriptors = len(os.listdir(f"/proc/{pid}/fd"))
    mapped = Path(f"/proc/{pid}/maps").read_text().count("memfd:ucall")
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return descriptors, mapped, pages * os.sysconf("SC_PAGE_SIZE")
