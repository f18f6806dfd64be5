"""Upstreams of relayed calls that are killed, frozen, slowed and started again under load."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from serving import Serve

from harness import Wire, eventually, free_port, program, request

UPSTREAM = """
import os, signal, sys
import ucall

log = os.open(sys.argv[2], os.O_CREAT | os.O_APPEND | os.O_WRONLY)
server = ucall.Server(port=int(sys.argv[1]))


@server(name="up.run")
def run(n: int) -> int:
    os.write(log, b"%d\\n" % n)
    if n % 1000 == int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)
    return n


server.start()
print("ready")
sys.stdin.read()
"""
CALLS_AT_ONCE = 20


class Load:
    """Calls ``up.run`` from one connection until it is stopped, each time with a new number."""

    def __init__(self, port: int, numbers: range) -> None:
        self._port = port
        self._numbers = iter(numbers)
        self._stops = threading.Event()
        #: The reply to each call.
        self.replies: dict[int, dict[str, Any]] = {}
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        self._stops.set()
        self._thread.join()

    def results(self) -> int:
        return sum("result" in reply for reply in list(self.replies.values()))

    def _run(self) -> None:
        with Wire(self._port) as wire:
            while not self._stops.is_set():
                numbers = [next(self._numbers) for _ in range(CALLS_AT_ONCE)]
                wire.send(b"".join(request("up.run", [n], id=n) for n in numbers))
                replies = [json.loads(wire.line()) for _ in numbers]
                assert sorted(reply["id"] for reply in replies) == numbers
                self.replies.update((reply["id"], reply) for reply in replies)


def loads(port: int) -> list[Load]:
    return [Load(port, range(start, start + 10**6)) for start in range(0, 3 * 10**6, 10**6)]


def has_progress(running: list[Load]) -> bool:
    """Whether each load gets further results within the time."""
    before = [load.results() for load in running]
    return eventually(
        lambda: all(load.results() > count for load, count in zip(running, before, strict=True))
    )


def errors(running: list[Load]) -> Iterator[dict[str, Any]]:
    replies = (reply for load in running for reply in load.replies.values())
    return (reply for reply in replies if "error" in reply)


def check(running: list[Load], log: Path, codes: set[int]) -> None:
    """Each call has one reply, and no call has run twice or without need."""
    runs = Counter(map(int, log.read_text().split()))
    assert set(runs.values()) == {1}
    replies = {n: reply for load in running for n, reply in load.replies.items()}
    for n, reply in replies.items():
        if "result" in reply:
            assert reply["result"] == n and n in runs
        else:
            assert reply["error"]["code"] in codes, reply
            if reply["error"]["code"] == -32005 and not reply["error"]["data"]["sent"]:
                assert n not in runs


SCHEMES = pytest.mark.parametrize("scheme", ["tcp", "http"])


@SCHEMES
def test_no_call_runs_twice_when_its_upstream_is_killed(
    serve: Serve, tmp_path: Path, scheme: str
) -> None:
    log, upstream = tmp_path / "log", str(free_port())
    server = serve()
    server.relay("up.*", to=f"{scheme}://127.0.0.1:{upstream}")
    running = loads(server.port)
    try:
        for _ in range(4):
            # It dies after it has run a call and before it replies.
            with program(UPSTREAM, upstream, str(log), "250") as process:
                assert process.stdout.readline() == "ready\n"
                assert process.wait(60) == -signal.SIGKILL
        with program(UPSTREAM, upstream, str(log), "-1") as process:
            assert process.stdout.readline() == "ready\n"
            assert has_progress(running)
    finally:
        for load in running:
            load.stop()
    check(running, log, {-32005})
    assert any(reply["error"]["data"]["sent"] for reply in errors(running))


@SCHEMES
def test_calls_to_a_frozen_upstream_end_in_time(serve: Serve, tmp_path: Path, scheme: str) -> None:
    log, upstream = tmp_path / "log", str(free_port())
    server = serve()
    server.relay("up.*", to=f"{scheme}://127.0.0.1:{upstream}", timeout_ms=300)
    with program(UPSTREAM, upstream, str(log), "-1") as process:
        assert process.stdout.readline() == "ready\n"
        running = loads(server.port)
        try:
            for _ in range(2):
                assert has_progress(running)
                os.kill(process.pid, signal.SIGSTOP)
                before = [len(load.replies) for load in running]
                assert eventually(
                    lambda before=before: all(  # type: ignore[misc]
                        len(load.replies) > count + 2 * CALLS_AT_ONCE
                        for load, count in zip(running, before, strict=True)
                    )
                )
                os.kill(process.pid, signal.SIGCONT)
            assert has_progress(running)
        finally:
            os.kill(process.pid, signal.SIGCONT)
            for load in running:
                load.stop()
    check(running, log, {-32001, -32003, -32005})


RELAY = """
import sys, ucall
server = ucall.Server(port=0, max_held_bytes=8 << 20)
server.relay("up.*", to=sys.argv[1], timeout_ms=300)
server.start()
print(server.port)
sys.stdin.read()
"""


def peak_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_calls_to_an_upstream_that_reads_nothing_hold_bounded_memory(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "deaf"))
        listener.listen(100)
        with program(RELAY, f"unix://{tmp_path}/deaf") as relay:
            port = int(relay.stdout.readline())
            before = peak_bytes(relay.pid)

            def code(number: int) -> int:
                with Wire(port) as wire:
                    wire.send(request("up.run", ["x" * 2_000_000]))
                    return int(json.loads(wire.line())["error"]["code"])

            with ThreadPoolExecutor(30) as callers:
                codes = set(callers.map(code, range(60)))
            assert codes <= {-32001, -32003, -32005}
            assert peak_bytes(relay.pid) - before < 40 << 20


@SCHEMES
def test_calls_to_a_slow_upstream_are_answered(serve: Serve, tmp_path: Path, scheme: str) -> None:
    log, upstream = tmp_path / "log", str(free_port())
    server = serve()
    server.relay("up.*", to=f"{scheme}://127.0.0.1:{upstream}")
    with program(UPSTREAM, upstream, str(log), "-1") as process:
        assert process.stdout.readline() == "ready\n"
        running = loads(server.port)
        try:
            for _ in range(50):
                os.kill(process.pid, signal.SIGSTOP)
                time.sleep(0.01)
                os.kill(process.pid, signal.SIGCONT)
                time.sleep(0.002)
            assert has_progress(running)
        finally:
            os.kill(process.pid, signal.SIGCONT)
            for load in running:
                load.stop()
    check(running, log, set())
