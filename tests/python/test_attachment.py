"""Native calls run detached from the interpreter: work that needs Python runs beside them.

The programs run in Python's development mode, whose allocator aborts on memory errors and on calls
by a detached thread.
"""

from __future__ import annotations

import select
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from harness import Wire, eventually, http, listening_port, new_interpreter, request, send_line

BEGIN = """
import ctypes, gc, importlib, os, signal, sys, threading, time
import ucall
from ucall._server import launch
Server = importlib.import_module("ucall." + sys.argv[1]).Server
"""


@contextmanager
def served(source: str, engine: str, tmp_path: Path) -> Iterator[tuple[Any, int]]:
    """A process of a program that serves a store, and its port, which it prints or `run` does."""
    with new_interpreter(BEGIN + source, engine, str(tmp_path / "kv")) as process:
        is_printed = "print(server.port)" in source
        yield process, int(process.stdout.readline()) if is_printed else listening_port(process)


@pytest.fixture(autouse=True)
def _development_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONDEVMODE", "1")


REPLACES = """
server = Server(port=0)
server.store("kv", sys.argv[2])

def version(number):
    def version() -> int:
        return number
    return version

server.add(version(0))
server.start()
print(server.port)
is_over = threading.Event()
threading.Thread(target=lambda: (sys.stdin.readline(), is_over.set())).start()
number = 0
while not is_over.is_set():
    number += 1
    server.add(version(number))
print("replaced" if number > 1 else "none")
server.stop()
"""


def test_functions_are_replaced_while_calls_run(engine: str, tmp_path: Path) -> None:
    with served(REPLACES, engine, tmp_path) as (process, port), Wire(port) as wire:
        newest = 0
        for _ in range(1000):
            assert wire.result("kv.get", ["a"]) is None
            before, newest = newest, wire.result("version")
            assert newest >= before
        send_line(process)
        output, errors = process.communicate(timeout=60)
        assert (output, errors, process.returncode) == ("replaced\n", "", 0)


IDENTIFIES = """
class User:
    freed = 0
    def __del__(self):
        # Only the server's thread drops users, so the count is exact.
        User.freed += 1
        if User.freed == 50:
            print("freed")

server = Server(port=0, auth=lambda ctx: User())
server.store("kv", sys.argv[2])
is_over = threading.Event()

def collect():
    while not is_over.is_set():
        gc.collect()

gc.set_threshold(1)
server.start()
threading.Thread(target=collect).start()
print(server.port)
sys.stdin.readline()
is_over.set()
server.stop()
"""


def test_users_of_native_calls_are_freed(engine: str, tmp_path: Path) -> None:
    with served(IDENTIFIES, engine, tmp_path) as (process, port), Wire(port) as other:
        wires = [Wire(port) for _ in range(51)]
        for wire in wires:
            wire.send(http(request("kv.put", ["a", 1])))
        for wire in wires:
            assert wire.reply()[0] == 200
        assert other.result("kv.get", ["a"])["value"] == 1
        for wire in wires:
            # The turn of its end has native calls alone, so the thread stays detached.
            wire.socket.close()
            assert other.result("kv.get", ["a"])["value"] == 1
        assert process.stdout.readline() == "freed\n"
        send_line(process)
        output, errors = process.communicate(timeout=60)
        assert (output, errors, process.returncode) == ("", "", 0)


SIGNALLED = """
server = Server(port=0)
server.store("kv", sys.argv[2])
signal.signal(signal.SIGUSR1, lambda *_: print("handled"))
beats = 0

def beat():
    global beats
    # Not before a call: the test would read the line together with the port.
    beats += server.stats()["calls"] > 0
    if beats == 3:
        print("beats")

server._core.set_callbacks(lambda: print("drains"), beat, 0.01)
launch.report_to_service_manager = lambda *_: None
server.run()
print("returned")
"""


def test_native_calls_hold_up_no_signal_and_no_heartbeat(engine: str, tmp_path: Path) -> None:
    with served(SIGNALLED, engine, tmp_path) as (process, port), Wire(port) as wire:

        def has_written() -> bool:
            assert wire.result("kv.get", ["a"]) is None
            return bool(select.select([process.stdout], [], [], 0)[0])

        def call_until(line: str) -> None:
            """Makes native calls until the program has written a line."""
            assert eventually(has_written)
            assert process.stdout.readline() == line

        call_until("beats\n")
        process.send_signal(signal.SIGUSR1)
        call_until("handled\n")
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
        assert (output, errors, process.returncode) == ("drains\nreturned\n", "", 0)


OUTLIVES = """
server = Server(port=0, auth=lambda ctx: object())
server.store("kv", sys.argv[2])
while server.stats()["calls"] == 0:
    server.run(max_cycles=1)
# An exit hook would end the worker of a server. Its core alone is never freed.
ctypes.pythonapi.Py_IncRef(ctypes.py_object(server._core))
del server
gc.collect()
print("ends")
"""


def test_a_worker_between_two_runs_may_outlive_the_interpreter(engine: str, tmp_path: Path) -> None:
    with served(OUTLIVES, engine, tmp_path) as (process, port), Wire(port) as wire:
        # A raw connection keeps its user, over HTTP the user goes with the request.
        wire.send(request("kv.get", ["a"]))
        output, errors = process.communicate(timeout=60)
        assert (output, errors, process.returncode) == ("ends\n", "", 0)


FLOODED = """
import functools

# It runs without bytecode, at whose start the interpreter would let other threads run.
work = functools.partial(sum, range(1000))
server = Server(port=0)
server.add(work, name="work")

def step():
    sys.stdin.readline()
    for _ in range(20):
        time.sleep(0)
    print("stepped")

threading.Thread(target=step).start()
server.run()
"""


@contextmanager
def flooded(port: int, call: bytes) -> Iterator[None]:
    """Sends a notification on several connections, faster than a server runs it."""
    wires = [Wire(port) for _ in range(4)]

    def send(wire: Wire) -> None:
        with suppress(OSError):
            while True:
                wire.send(call * 1000)

    threads = [threading.Thread(target=send, args=(wire,)) for wire in wires]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for wire in wires:
            wire.socket.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join()


def test_a_worker_that_never_waits_lets_other_threads_run(engine: str, tmp_path: Path) -> None:
    with (
        served(FLOODED, engine, tmp_path) as (process, port),
        flooded(port, request("work", id=...)),
    ):
        send_line(process)
        assert process.stdout.readline() == "stepped\n"
