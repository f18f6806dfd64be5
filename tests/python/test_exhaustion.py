"""Servers that run out: of descriptors, of memory, and of the kernel's goodwill, by its own word.

Real limits of the process where there are some (`prlimit`), and else errors that strace makes of
single system calls. Newcomers are refused or wait, those who are there are served, and when there
is room again all is as it was.
"""

from __future__ import annotations

import contextlib
import json
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from harness import Wire, eventually, http, let_rest, program, request

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="prlimit and strace are Linux's")

SERVED = """
import importlib, json, resource, sys
engine, descriptors, options = sys.argv[1:]
if descriptors != "0":
    resource.setrlimit(resource.RLIMIT_NOFILE, (int(descriptors),) * 2)
server = importlib.import_module(f"ucall.{engine}").Server(port=0, **json.loads(options))

@server
def add(a: int, b: int) -> int:
    return a + b

@server
def connections() -> int:
    return server.stats()["connections"]

print(server.port)
server.run()
"""
#: What keeps a connection from being idle, so that it is not closed for a newcomer.
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
    """Connections that have all begun a call. The kernel takes those that the server does not."""
    wires = []
    for _ in range(count):
        wires.append(stack.enter_context(Wire(port)))
        wires[-1].send(PARTIAL)
        # One that is known to have begun is not closed for the next.
        let_rest(process, wires[-1])
    return wires


def answers(wire: Wire) -> bool:
    """Whether the call that the wire has begun is answered, and closes it."""
    with wire:
        wire.send(REST)
        return bool(json.loads(wire.line())["result"] == 42)


def rests(process: Any) -> bool:
    """Whether the server does not spin."""
    before = processor_s(process)
    time.sleep(0.5)
    return processor_s(process) - before < 0.2


@pytest.mark.parametrize("late", [False, True], ids=["from the start", "later"])
def test_descriptors_run_out(engine: str, late: bool) -> None:
    """Under a low limit the server keeps within it; one that is drawn tight under it, it meets."""
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
            # io_uring's connections are in a table of its own, made when it starts.
            if not (late and engine == "uring"):
                wires[-1].socket.settimeout(0.3)
                wires[-1].send(REST)
                with pytest.raises(TimeoutError):
                    wires[-1].line()
            assert answers(established)
            # Each that ends makes room for another.
            assert all(answers(wire) for wire in wires[:-1])
            wires[-1].socket.close()
        with Wire(port) as wire:
            assert eventually(lambda: wire.result("connections") == 1)
            assert wire.result("add", [1, 2]) == 3
        assert eventually(lambda: descriptors_of(process) <= before)


def test_memory_runs_out(engine: str) -> None:
    """For a body there is none: its peer is told to come again, and others are served."""
    with served(engine, max_body_bytes=500_000_000) as (process, port):
        with Wire(port) as wire:
            assert wire.result("add", [1, 2]) == 3
        pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + (96 << 20)
        unlimited = resource.prlimit(process.pid, resource.RLIMIT_AS)
        resource.prlimit(process.pid, resource.RLIMIT_AS, (limit, unlimited[1]))
        large = http(b" " * (400 << 20))
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
    """Lets a system call of the server fail, by strace, while the block runs."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace is not installed")
    command = [strace, "-f", "-qq", "-o", "/dev/null", "-e", f"trace={call}"]
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
def test_accepting_fails(fault: str) -> None:
    """On epoll. io_uring accepts without a system call; the fake engine fails for it."""
    with served("posix") as (process, port), Wire(port) as established:
        # An idle one would be closed for a newcomer.
        established.send(PARTIAL)
        with failing(process, "accept4", fault, "1..3"), ExitStack() as stack:
            new_wires = connect_many(stack, process, port, 5)
            assert answers(established)
            # What fails for want of something is tried again when a second has passed.
            assert all(answers(wire) for wire in new_wires)
        with Wire(port) as wire:
            assert eventually(lambda: wire.result("connections") == 1)


@pytest.mark.parametrize("fault", ["ENOBUFS", "ENOMEM", "ECONNRESET", "EINTR"])
@pytest.mark.parametrize("call", ["recvfrom", "sendto"])
def test_one_call_of_a_connection_fails(call: str, fault: str) -> None:
    """On epoll: that connection ends, or goes on; no other hears of it."""
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
    """The kernel is short of something, or wants its completions read first: every other time."""
    with served(engine) as (process, port), Wire(port) as established:
        assert established.result("add", [1, 2]) == 3
        with failing(process, "io_uring_enter", fault, "2..100+2"):
            for _ in range(20):
                with Wire(port) as wire:
                    assert wire.result("add", [1, 2]) == 3
                assert established.result("add", [1, 2]) == 3
        assert eventually(lambda: established.result("connections") == 1)
