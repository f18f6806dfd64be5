"""Ctrl-C and SIGTERM, in real processes."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
from typing import Any

import pytest

from harness import Wire, eventually, new_interpreter, program, request, without_address

SOURCE = """
import importlib, signal, sys, time, ucall
engine = importlib.import_module("ucall." + sys.argv[1])
server = engine.Server(
    port=0,
    timeouts=ucall.Timeouts(drain_timeout_s=3000),
    observability=ucall.Observability(slow_call_s=60),
)

@server
def sum(a: int, b: int):
    return a + b

@server
def sleep(seconds: float):
    print("sleeps")
    end = time.monotonic() + seconds
    # A signal that comes just before a sleep begins does not end it.
    while time.monotonic() < end:
        time.sleep(0.01)
    return "slept"

before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
server.on_startup(lambda: print(server.port))
server.run()
assert before == (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM))
assert signal.set_wakeup_fd(-1) == -1
print("returned")
"""

SIGNALS = [signal.SIGINT, signal.SIGTERM]


def _ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """The exit status and the error output."""
    output, errors = process.communicate(timeout=60)
    assert output.endswith("returned\n"), errors
    return process.returncode, without_address(errors)


@pytest.mark.parametrize("sent", SIGNALS)
def test_an_idle_server_stops_at_once(engine: str, sent: signal.Signals) -> None:
    with program(SOURCE, engine) as process:
        port = int(process.stdout.readline())
        with Wire(port) as wire:
            assert wire.result("sum", [1, 2]) == 3
            process.send_signal(sent)
            assert _ended(process) == (0, "")
            assert wire.rest() == b""


@pytest.mark.parametrize("sent", SIGNALS)
@pytest.mark.slow
def test_a_busy_server_stops_at_once(engine: str, sent: signal.Signals) -> None:
    with program(SOURCE, engine) as process:
        port = int(process.stdout.readline())
        calls = 0

        def load() -> None:
            nonlocal calls
            try:
                with Wire(port) as wire:
                    while wire.result("sum", [1, 2]) == 3:
                        calls += 1
            except (AssertionError, OSError, ValueError):
                pass

        threads = [threading.Thread(target=load) for _ in range(4)]
        for thread in threads:
            thread.start()
        assert eventually(lambda: calls > 100)
        process.send_signal(sent)
        assert _ended(process) == (0, "")
        for thread in threads:
            thread.join()


def test_ctrl_c_interrupts_the_function_that_runs(engine: str) -> None:
    with program(SOURCE, engine) as process, Wire(int(process.stdout.readline())) as wire:
        wire.send(request("sleep", [3000]))
        assert process.stdout.readline() == "sleeps\n"
        process.send_signal(signal.SIGINT)
        assert json.loads(wire.line())["error"]["code"] == -32007
        assert _ended(process) == (0, "")


def test_sigterm_lets_the_function_that_runs_finish(engine: str) -> None:
    with program(SOURCE, engine) as process, Wire(int(process.stdout.readline())) as wire:
        wire.send(request("sleep", [0.5]))
        assert process.stdout.readline() == "sleeps\n"
        process.send_signal(signal.SIGTERM)
        assert json.loads(wire.line())["result"] == "slept"
        assert _ended(process) == (0, "")


HANDLERS = """
import signal, sys, ucall
server = ucall.Server(port=0, timeouts=ucall.Timeouts(drain_timeout_s=3000))
seen = []
signal.signal(signal.SIGTERM, lambda *_: (seen.append("term"), server.stop()))
signal.signal(signal.SIGUSR1, lambda *_: print("usr1"))
server.run(max_cycles=0)
print(server.port)
server.run()
print(seen)
server.add(lambda: 1, name="one")
signal.signal(signal.SIGUSR1, lambda *_: 1 / 0)
print("again")
server.run()
"""


def test_signal_handlers_of_the_program_are_kept() -> None:
    with program(HANDLERS) as process, Wire(int(process.stdout.readline())) as wire:
        wire.error("nobody")
        process.send_signal(signal.SIGUSR1)
        assert process.stdout.readline() == "usr1\n"
        wire.error("nobody")
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "['term']\n"
        assert process.stdout.readline() == "again\n"
        process.send_signal(signal.SIGUSR1)
        assert "ZeroDivisionError" in process.communicate(timeout=60)[1]
        assert process.returncode == 1


BACKGROUND = """
import sys, threading, ucall
server = ucall.Server(
    port=0,
    timeouts=ucall.Timeouts(drain_timeout_s=3000),
    observability=ucall.Observability(slow_call_s=60),
)
server.add(lambda: 1, name="one")
server.on_startup(lambda: print(server.port))
if sys.argv[1] == "start":
    server.start()
else:
    threading.Thread(target=server.run, daemon=True).start()
sys.stdin.readline()
"""


@pytest.mark.parametrize("how", ["start", "thread"])
def test_a_background_server_stops_with_its_program(how: str) -> None:
    process: Any
    with new_interpreter(BACKGROUND, how) as process, Wire(int(process.stdout.readline())) as wire:
        assert wire.result("one") == 1
        _, errors = process.communicate(timeout=60)
        assert (process.returncode, without_address(errors)) == (0, "")


FORKING = """
import os, sys, ucall
server = ucall.Server(port=0, timeouts=ucall.Timeouts(drain_timeout_s=3000))
server.add(lambda: os.getpid(), name="pid")
server.start()
print(server.port)
if os.fork() == 0:
    sys.exit()
assert os.wait()[1] == 0
print("child ended")
sys.stdin.readline()
"""


def test_a_forked_child_does_not_affect_its_parents_server() -> None:
    with program(FORKING) as process, Wire(int(process.stdout.readline())) as wire:
        assert process.stdout.readline() == "child ended\n"
        assert wire.result("pid") == process.pid
