"""Starts servers pinned to a core, tells when they answer, and always ends them, by pid."""

import contextlib
import functools
import os
import selectors
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

START_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 10
LISTEN_SECONDS_MAX = 15


class StartError(Exception):
    """The server ended, or stayed silent, before it said where it listens."""


@dataclass(frozen=True)
class Server:
    """A running server. `pid` is its own; a tool that wraps it has another."""

    pid: int
    port: int


@functools.cache
def cores() -> tuple[int, int]:
    """The server's core and the load's: the same one where there is only one.

    Looked up once, before this process pins itself and so narrows what it sees."""
    available = sorted(os.sched_getaffinity(0))
    return available[0], available[-1]


def start_pinned(command: Sequence[str], core: int, **how) -> subprocess.Popen:
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, preexec_fn=lambda: pin_to(core), **how
    )


def pin_to(core: int) -> None:
    os.sched_setaffinity(0, {core})


@contextlib.contextmanager
def serving(command: Sequence[str], log: Path, core: int) -> Iterator[Server]:
    """Runs the server while the block runs. Its stderr goes to `log`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as errors:
        process = start_pinned(command, core, stdout=subprocess.PIPE, stderr=errors)
    try:
        port = port_announced(process, log)
        yield Server(innermost_pid(process.pid), port)
    finally:
        stop(process)


@contextlib.contextmanager
def serving_on(
    command: Sequence[str], port: int, log: Path, core: int, environment: dict[str, str]
) -> Iterator[Server]:
    """Runs a server of others, which says nothing, on a port that it was told. `pid` is that of
    the first of its processes. All of them are ended by force if they do not end when asked."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        process = start_pinned(
            command,
            core,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, **environment},
        )
    try:
        wait_until_listening(process, port, log)
        yield Server(process.pid, port)
    finally:
        stop_group(process)


def wait_until_listening(process: subprocess.Popen, port: int, log: Path) -> None:
    deadline = time.monotonic() + LISTEN_SECONDS_MAX
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.02)
    raise StartError(f"does not listen: {last_line(log) or 'it said nothing'}")


def stop_group(process: subprocess.Popen) -> None:
    """Ends every process of the group that the server leads."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.5)


def free_port() -> int:
    """A port that nobody listens on: the kernel hands out others before this one comes again."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def port_announced(process: subprocess.Popen, log: Path) -> int:
    """Waits for the line `listening on PORT`."""
    words = first_line(process).split()
    if words[:2] != ["listening", "on"]:
        raise StartError(f"{process.args}: {last_line(log) or 'no word of where it listens'}")
    return int(words[2])


def first_line(process: subprocess.Popen) -> str:
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        if not selector.select(START_SECONDS_MAX):
            return ""
        return process.stdout.readline().decode(errors="replace")


def last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""


def innermost_pid(pid: int) -> int:
    """The server's pid under strace or perf, which start it as their only child."""
    with contextlib.suppress(OSError, IndexError):
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
    return pid


def stop(process: subprocess.Popen) -> None:
    """Ends the server, then what wraps it: that one reports when its child has ended."""
    try:
        if not ended_by_sigterm(process):
            signal_quietly(innermost_pid(process.pid), signal.SIGKILL)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def ended_by_sigterm(process: subprocess.Popen) -> bool:
    """Asks once a second: a server without a wakeup descriptor can miss a signal that comes just
    before it waits, and under valgrind often does."""
    for _ in range(STOP_SECONDS_MAX):
        if process.poll() is None:
            signal_quietly(innermost_pid(process.pid), signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(1)
            return True
    return False


def signal_quietly(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
