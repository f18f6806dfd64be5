"""Helpers of the tests: bytes to a server and back, without a client library."""

from __future__ import annotations

import asyncio
import fcntl
import functools
import itertools
import os
import random
import re
import socket
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import forking
import pytest

from wire import HOST, Wire, request

__all__ = ["HOST", "Wire", "request"]

T = TypeVar("T")


def http(body: bytes, *headers: str, target: str = "/", method: str = "POST") -> bytes:
    """An HTTP request with a body."""
    lines = [f"{method} {target} HTTP/1.1", f"Host: {HOST}", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, *headers, "", ""]).encode() + body


def eventually(condition: Callable[[], bool], timeout_s: float = 60) -> bool:
    """Whether the condition becomes true within the time, which is long for slow machines.

    If an action must be fast, the condition performs it and returns whether it was fast, so that it
    is repeated until the machine is not busy.
    """
    start = time.monotonic()
    while not condition():
        waited_s = time.monotonic() - start
        if waited_s > timeout_s:
            return False
        # At first it only releases the interpreter lock. Later it sleeps a little of what it has
        # waited, so that tests that wait for long leave the processor to others.
        time.sleep(0 if waited_s < 0.0002 else min(max(waited_s / 20, 0.0005), 0.02))
    return True


def started(function: Callable[[], T]) -> Future[T]:
    """Runs a function in a thread that does not delay the end of the tests."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def in_asyncio(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Runs a test in an event loop of its own, because pytest has none."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        async def limited() -> None:
            async with asyncio.timeout(120):
                await test(*args, **kwargs)

        asyncio.run(limited())

    return run


def let_read(port: int) -> None:
    """Returns once the server has read all bytes sent before: it reads a later call after them."""
    with Wire(port) as wire:
        wire.error("nobody")


def let_rest(process: Any, *wires: Wire) -> bool:
    """Waits until the sent bytes have reached a server's process, and it is idle.

    Returns whether all connections are open: bytes do not reach the other side of a closed one.
    """
    for sender in (wire.socket for wire in wires):
        assert eventually(functools.partial(is_delivered_or_closed, sender))
    stat = Path(f"/proc/{process.pid}/stat")
    assert eventually(lambda: stat.read_text().rpartition(")")[2].split()[0] == "S")
    return all(is_established(wire.socket) for wire in wires)


def is_established(connected: socket.socket) -> bool:
    """Whether neither side has closed or reset a TCP connection, by the kernel's ``TCP_INFO``."""
    [state] = connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)
    return bool(state == 1)  # TCP_ESTABLISHED


def is_delivered_or_closed(sender: socket.socket) -> bool:
    return is_delivered(sender) or not is_established(sender)


def is_delivered(sender: socket.socket) -> bool:
    """Whether all sent bytes have reached the other side's kernel."""
    [unacknowledged] = struct.unpack("i", fcntl.ioctl(sender, termios.TIOCOUTQ, bytes(4)))
    return bool(unacknowledged == 0)


def refuses_descriptors(connected: socket.socket) -> bool:
    """Whether the other side of a Unix socket refuses descriptors; skips on an older Linux."""
    passes_rights = 83  # SO_PASSRIGHTS, of Linux 6.16
    try:
        connected.getsockopt(socket.SOL_SOCKET, passes_rights)
    except OSError:
        pytest.skip("this system hands over all that is sent")
    try:
        socket.send_fds(connected, [b" "], [connected.fileno()])
    except PermissionError:
        return True
    return False


#: Below the ephemeral ports; each test process has a thousand of its own.
_FIRST_PORT = 20_000 + 1000 * (int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % 10)
_ports = itertools.count(random.randrange(1000))


def free_port() -> int:
    """A port that no other caller gets, even before it is in use."""
    while True:
        port = _FIRST_PORT + next(_ports) % 1000
        with suppress(OSError), socket.create_server((HOST, port)):
            return port


def listening_port(process: Any) -> int:
    """The port of a program, from the line that its `run` writes to standard error."""
    line = process.stderr.readline()
    text = line if isinstance(line, str) else line.decode()
    found = re.search(r"listening on \w+://\S+?:(\d+)", text)
    assert found, text
    return int(found[1])


def without_address(errors: str) -> str:
    """The standard error of a program without the line of `run` that names the address."""
    return re.sub(r"(?m)^(ucall: )?listening on .*\n", "", errors)


@contextmanager
def program(source: str, *arguments: str) -> Iterator[Any]:
    """A Python program in a process of its own."""
    yield from _running(forking.Python, source, arguments)


@contextmanager
def new_interpreter(source: str, *arguments: str) -> Iterator[Any]:
    """The same in a child of this process that has imported nothing before, for what needs one."""
    yield from _running(subprocess.Popen, source, arguments)


def _running(start: Any, source: str, arguments: tuple[str, ...]) -> Iterator[Any]:
    command = [sys.executable, "-u", "-c", source, *arguments]
    pipe = subprocess.PIPE
    process = start(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def waits_for_a_lock(pid: int) -> bool:
    """Whether a process waits for a lock of a file, on Linux."""
    locks = Path("/proc/locks").read_text().splitlines()
    return any("->" in line and f" {pid} " in line for line in locks)


def send_line(process: Any) -> None:
    """Writes the line that a program waits for."""
    process.stdin.write("\n")
    process.stdin.flush()
