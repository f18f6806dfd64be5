"""Servers without descriptors or memory, and with system calls that fail.

Uses limits of the process (`prlimit`) where they exist, otherwise errors that strace injects into
single system calls. New connections are refused or wait, existing ones are served, and once
resources are free again the server works as before.
"""

from __future__ import annotations

import contextlib
import json
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from programs import require

from harness import Wire, eventually, http, let_rest, program, request

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="prlimit and strace are Linux's")

SERVED = """
import importlib, json, resource, sys, ucall
engine, descriptors, options = sys.argv[1:]
if descriptors != "0":
    resource.setrlimit(resource.RLIMIT_NOFILE, (int(descriptors),) * 2)
server = importlib.import_module(f"ucall.{engine}").Server(
    port=0, **ucall.options.arguments(json.loads(options))
)

@server
def add(a: int, b: int) -> int:
    return a + b

@server
def connections() -> int:
    return server.stats()["connections"]

server.on_startup(lambda: print(server.port))
server.run()
"""
#: The start of a request, which keeps a connection from being evicted as idle.
CALL = request("add", [40, 2])
PARTIAL, REST = CALL[:20], CALL[20:]


@contextmanager
def served(engine: str, descriptors: int = 0, **options: Any) -> Iterator[tuple[Any, int]]:
    """A server in a process of its own, which has time for slow peers, and its port."""
    options |= {"head_timeout_s": 3000, "body_timeout_s": 3000, "idle_timeout_s": 3000}
    with program(SERVED, engine, str(descriptors), json.dumps(options)) as process:
        yield process, int(process.stdout.readline())


def descriptors_of(process: Any) -> int:
    return len(list(Path(f"/proc/{process.pid}/fd").iterdir()))


def processor_s(process: Any) -> float:
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def connect_many(stack: ExitStack, process: Any, port: int, count: int) -> list[Wire]:
    """Connections that have all begun a call; the kernel queues those not accepted yet."""
    wires = []
    for _ in range(count):
        wires.append(stack.enter_context(Wire(port)))
        wires[-1].send(PARTIAL)
        # A connection with a begun request is not evicted for the next one.
        assert let_rest(process, wires[-1])
    return wires


def answers(wire: Wire) -> bool:
    """Completes the call begun on the wire; returns whether it is answered, and closes the wire."""
    with wire:
        wire.send(REST)
        return bool(json.loads(wire.line())["result"] == 42)


def rests(process: Any) -> bool:
    """Whether the server uses no CPU time while idle."""
    before = processor_s(process)
    time.sleep(0.5)
    return processor_s(process) - before < 0.2


@pytest.mark.parametrize("late", [False, True], ids=["from the start", "later"])
def test_descriptors_run_out(engine: str, late: bool) -> None:
    """The server stays within a low descriptor limit, and survives one that is lowered later."""
    with served(engine, 0 if late else 64) as (process, port), ExitStack() as stack:
        with Wire(port) as established:
            assert established.result("add", [1, 2]) == 3
            before = descriptors_of(process)
            if late:
                limit = before + 5
                resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (limit, limit))
            established.send(PARTIAL)
            wires = connect_many(stack, process, port, 100)
            assert rests(process)
            # io_uring keeps connections in a table of its own, which it makes when it starts.
            if not (late and engine == "uring"):
                wires[-1].socket.settimeout(0.3)
                wires[-1].send(REST)
                with pytest.raises(TimeoutError):
                    wires[-1].line()
            assert answers(established)
            # Each connection that closes admits another.
            assert all(answers(wire) for wire in wires[:-1])
            wires[-1].socket.close()
        with Wire(port) as wire:
            assert eventually(lambda: wire.result("connections") == 1)
            assert wire.result("add", [1, 2]) == 3
        assert eventually(lambda: descriptors_of(process) <= before)


def test_memory_runs_out(engine: str) -> None:
    """Without memory for a body its client gets a 503, and other clients are served."""
    with served(engine, max_body_bytes=200_000_000) as (process, port):
        with Wire(port) as wire:
            assert wire.result("add", [1, 2]) == 3
        pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + (96 << 20)
        unlimited = resource.prlimit(process.pid, resource.RLIMIT_AS)
        resource.prlimit(process.pid, resource.RLIMIT_AS, (limit, unlimited[1]))
        large = http(b" " * (150 << 20))
        for _ in range(3):
            with Wire(port) as wire:
                with contextlib.suppress(OSError):
                    wire.send(large)
                assert wire.reply()[0] == 503
            with Wire(port) as wire:
                assert wire.result("add", [1, 2]) == 3
        resource.prlimit(process.pid, resource.RLIMIT_AS, unlimited)
        with Wire(port) as wire:
            wire.send(http(CALL + b" " * (100 << 20)))
            assert json.loads(wire.reply()[2])["result"] == 42


@contextmanager
def failing(process: Any, call: str, fault: str, when: str) -> Iterator[None]:
    """Makes a system call of the server fail, with strace, during the block."""
    command = [require("strace"), "-f", "-qq", "-o", "/dev/null", "-e", f"trace={call}"]
    command += ["-e", f"inject={call}:error={fault}:when={when}", "-p", str(process.pid)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as tracer:
        try:
            if not eventually(lambda: is_traced(process)):
                tracer.kill()
                pytest.skip(f"strace may not: {tracer.stderr and tracer.stderr.read()}")
            yield
        finally:
            tracer.send_signal(signal.SIGINT)
            tracer.wait(60)


def is_traced(process: Any) -> bool:
    status = Path(f"/proc/{process.pid}/status").read_text()
    [tracer] = [line.split()[1] for line in status.splitlines() if line.startswith("TracerPid")]
    return tracer != "0"


ACCEPTING = ["EMFILE", "ENFILE", "ENOBUFS", "ENOMEM", "ECONNABORTED", "EINTR"]


@pytest.mark.parametrize("fault", ACCEPTING)
@pytest.mark.slow
def test_accepting_fails(fault: str) -> None:
    """On epoll. io_uring accepts without a system call; the fake engine fails for it."""
    with served("posix") as (process, port), Wire(port) as established:
        # An idle connection would be evicted for a new one.
        established.send(PARTIAL)
        with failing(process, "accept4", fault, "1..3"), ExitStack() as stack:
            new_wires = connect_many(stack, process, port, 5)
            assert answers(established)
            # The server retries an accept that failed for lack of resources after a second.
            assert all(answers(wire) for wire in new_wires)
        with Wire(port) as wire:
            assert eventually(lambda: wire.result("connections") == 1)


@pytest.mark.parametrize("fault", ["ENOBUFS", "ENOMEM", "ECONNRESET", "EINTR"])
@pytest.mark.parametrize("call", ["recvfrom", "sendto"])
def test_one_call_of_a_connection_fails(call: str, fault: str) -> None:
    """On epoll: that connection closes, or continues; other connections are not affected."""
    with served("posix") as (process, port), Wire(port) as established:
        assert established.result("add", [1, 2]) == 3
        with failing(process, call, fault, "1"), Wire(port) as unlucky:
            unlucky.send(CALL)
            try:
                line = unlucky.line()
            except ConnectionError:
                line = b""
            assert (line == b"") if fault != "EINTR" else (json.loads(line)["result"] == 42)
            assert established.result("add", [1, 2]) == 3
        assert eventually(lambda: established.result("connections") == 1)


@pytest.mark.parametrize("fault", ["EAGAIN", "EBUSY", "EINTR", "ETIME"])
@pytest.mark.parametrize("engine", ["uring"], indirect=True)
def test_entering_the_ring_fails(engine: str, fault: str) -> None:
    """Every other io_uring_enter fails with a lack of resources, or of room for completions."""
    with served(engine) as (process, port), Wire(port) as established:
        assert established.result("add", [1, 2]) == 3
        with failing(process, "io_uring_enter", fault, "2..100+2"):
            for _ in range(20):
                with Wire(port) as wire:
                    assert wire.result("add", [1, 2]) == 3
                assert established.result("add", [1, 2]) == 3
        assert eventually(lambda: established.result("connections") == 1)
