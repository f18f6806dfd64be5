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
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from serving import NO_URING

from harness import HOST, Wire, eventually, free_port, program, request

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


@server.on_startup
def ready() -> None:
    # Its port is open. The first call may end the process.
    print("ready", flush=True)


server.start()
sys.stdin.read()
"""
CALLS_AT_ONCE = 20


def upstream_program(port: str, *arguments: str) -> Any:
    """An upstream on a port that one before it may have had a moment ago."""

    def is_free() -> bool:
        # A killed process with io_uring keeps its port for some milliseconds.
        with suppress(OSError), socket.create_server((HOST, int(port))):
            return True
        return False

    assert eventually(is_free)
    return program(UPSTREAM, port, *arguments)


class Load:
    """Calls ``up.run`` from one connection until it is stopped, each time with a new number."""

    def __init__(self, port: int, numbers: range, method: str = "up.run") -> None:
        self._port = port
        self._method = method
        #: The longest time that a reply took.
        self.slowest_s = 0.0
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
                begun = time.monotonic()
                wire.send(b"".join(request(self._method, [n], id=n) for n in numbers))
                replies = [json.loads(wire.line()) for _ in numbers]
                self.slowest_s = max(self.slowest_s, time.monotonic() - begun)
                assert sorted(reply["id"] for reply in replies) == numbers
                self.replies.update((reply["id"], reply) for reply in replies)
                # Errors may come at once.
                self._stops.wait(0.001)


def loads(port: int, method: str = "up.run") -> list[Load]:
    starts = range(0, 3 * 10**6, 10**6)
    return [Load(port, range(start, start + 10**6), method) for start in starts]


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


RELAY = """
import importlib, json, sys, ucall
engine, to, options = sys.argv[1:]
server = importlib.import_module(f"ucall.{engine}").Server(
    port=0, limits=ucall.Limits(max_held_bytes=8 << 20)
)
server.relay("up.*", to=to.split(), **json.loads(options))
server.start()
print(server.port)
sys.stdin.read()
"""
#: What the memory of a relay may grow by, whatever its upstreams do.
GROWTH_MAX = 40 << 20


def peak_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


class Relay:
    """A relay in a process of its own, whose memory and descriptors are bounded."""

    def __init__(self, process: Any) -> None:
        self._pid = process.pid
        self.port = int(process.stdout.readline())
        with Wire(self.port) as wire:
            wire.call("none")
        self._before = peak_bytes(self._pid)
        self._descriptors = self._count()

    def _count(self) -> int:
        return len(os.listdir(f"/proc/{self._pid}/fd"))

    def check(self) -> None:
        """After all callers have left and the upstreams are idle or gone."""
        assert peak_bytes(self._pid) - self._before < GROWTH_MAX
        # Connections to upstreams are closed after 4 s over HTTP; over raw TCP one may stay.
        assert eventually(lambda: self._count() <= self._descriptors + 2)


@contextmanager
def relay(*to: str, engine: str = "posix", **options: Any) -> Iterator[Relay]:
    if engine == "uring" and NO_URING:
        pytest.skip(NO_URING)
    with program(RELAY, engine, " ".join(to), json.dumps(options)) as process:
        yield Relay(process)


@contextmanager
def under_load(port: int, method: str = "up.run") -> Iterator[list[Load]]:
    running = loads(port, method)
    try:
        yield running
    finally:
        for load in running:
            load.stop()


CASES = pytest.mark.parametrize(("engine", "scheme"), [("posix", "tcp"), ("uring", "http")])
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
#: How long a call may take beyond its time, on a busy machine.
SLACK_S = 5.0


@on_linux
@CASES
@pytest.mark.slow
def test_no_call_runs_twice_when_its_upstream_is_killed(
    tmp_path: Path, engine: str, scheme: str
) -> None:
    log, upstream = tmp_path / "log", str(free_port())
    with relay(f"{scheme}://127.0.0.1:{upstream}", engine=engine, timeout_ms=20_000) as found:
        with under_load(found.port) as running:
            for _ in range(2):
                # It dies after it has run a call and before it replies.
                with upstream_program(upstream, str(log), "250") as process:
                    assert process.stdout.readline() == "ready\n"
                    assert process.wait(60) == -signal.SIGKILL
            with upstream_program(upstream, str(log), "-1") as process:
                assert process.stdout.readline() == "ready\n"
                assert has_progress(running)
        check(running, log, {-32005})
        assert any(reply["error"]["data"]["sent"] for reply in errors(running))
        # A connection that breaks is noticed at once, not at the deadline.
        assert max(load.slowest_s for load in running) < 20
        found.check()


@on_linux
@CASES
@pytest.mark.slow
def test_calls_to_a_frozen_upstream_end_in_time(tmp_path: Path, engine: str, scheme: str) -> None:
    log, upstream = tmp_path / "log", str(free_port())
    with (
        upstream_program(upstream, str(log), "-1") as process,
        relay(f"{scheme}://127.0.0.1:{upstream}", engine=engine, timeout_ms=300) as found,
    ):
        assert process.stdout.readline() == "ready\n"
        with under_load(found.port) as running:
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
        check(running, log, {-32001, -32003, -32005})
        assert max(load.slowest_s for load in running) < 0.3 + SLACK_S
        found.check()


@on_linux
@CASES
@pytest.mark.slow
def test_calls_to_a_slow_upstream_are_answered(tmp_path: Path, engine: str, scheme: str) -> None:
    log, upstream = tmp_path / "log", str(free_port())
    with (
        upstream_program(upstream, str(log), "-1") as process,
        relay(f"{scheme}://127.0.0.1:{upstream}", engine=engine) as found,
    ):
        assert process.stdout.readline() == "ready\n"
        with under_load(found.port) as running:
            try:
                for _ in range(50):
                    os.kill(process.pid, signal.SIGSTOP)
                    time.sleep(0.01)
                    os.kill(process.pid, signal.SIGCONT)
                    time.sleep(0.002)
                assert has_progress(running)
            finally:
                os.kill(process.pid, signal.SIGCONT)
        check(running, log, set())
        found.check()


@on_linux
@CASES
@pytest.mark.slow
def test_idempotent_calls_go_to_the_upstream_that_is_left(
    tmp_path: Path, engine: str, scheme: str
) -> None:
    """One of two upstreams is killed again and again: callers see no error at all."""
    log, ports = tmp_path / "log", [str(free_port()), str(free_port())]
    to = [f"{scheme}://127.0.0.1:{port}" for port in ports]
    with (
        upstream_program(ports[0], str(log), "-1") as stays,
        relay(*to, engine=engine, idempotent=["up.*"], max_failures=1) as found,
    ):
        assert stays.stdout.readline() == "ready\n"
        with under_load(found.port) as running:
            for _ in range(2):
                with upstream_program(ports[1], str(log), "250") as process:
                    assert process.stdout.readline() == "ready\n"
                    assert process.wait(60) == -signal.SIGKILL
            assert has_progress(running)
        assert not list(errors(running))
        runs = Counter(map(int, log.read_text().split()))
        assert runs.keys() >= {n for load in running for n in load.replies}
        found.check()


@on_linux
def test_calls_to_an_upstream_that_reads_nothing_hold_bounded_memory(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "deaf"))
        listener.listen(100)
        with relay(f"unix://{tmp_path}/deaf", timeout_ms=300) as found:

            def code(number: int) -> int:
                with Wire(found.port) as wire:
                    wire.send(request("up.run", ["x" * 2_000_000]))
                    return int(json.loads(wire.line())["error"]["code"])

            with ThreadPoolExecutor(30) as callers:
                codes = set(callers.map(code, range(60)))
            assert codes <= {-32001, -32003, -32005}
            found.check()
