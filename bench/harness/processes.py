"""Starts servers pinned to a core, waits until they listen, and always ends them, by pid."""

import contextlib
import functools
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import OUTPUT

START_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 10
LISTEN_SECONDS_MAX = 15
#: Of a server that works in several threads or processes: all cores, without that of the load where
#: there are more than two.
MANY_CORES = -1
#: Of a load that does not end.
OVERTIME_SECONDS = 12


class StartError(Exception):
    """The server ended, or printed nothing, before it announced its port."""


class LoadError(Exception):
    """A load without a result."""


@dataclass(frozen=True)
class Server:
    """A running server. `pid` is its own; a tool that wraps it has another."""

    pid: int
    port: int


@functools.cache
def cores() -> tuple[int, int]:
    """The server's core and the load's, which are the same one if there is only one.

    Found once, because this process later pins itself and then sees only its own core."""
    return available_cores()[0], available_cores()[-1]


@functools.cache
def available_cores() -> list[int]:
    return sorted(os.sched_getaffinity(0))


def start_pinned(command: Iterable[object], core: int, **how) -> subprocess.Popen:
    how = {"stdin": subprocess.DEVNULL, **how}
    return subprocess.Popen(list(map(str, command)), preexec_fn=lambda: pin_to(core), **how)


def pin_to(core: int) -> None:
    if core != MANY_CORES:
        os.sched_setaffinity(0, {core})
        return
    available = available_cores()
    os.sched_setaffinity(0, available[:-1] if len(available) > 2 else available)


def start_load(command: Iterable[object], **how) -> subprocess.Popen:
    """Starts a load on its core."""
    return start_pinned(command, cores()[1], **{"stdout": subprocess.PIPE, **how})


def run_load(command: Iterable[object], seconds: float, **how) -> str:
    """Runs a load on its core, ends it after a time limit, and returns its output."""
    process = start_load(command, stderr=subprocess.STDOUT, **how)
    try:
        output, _ = process.communicate(timeout=seconds + OVERTIME_SECONDS)
    finally:
        process.kill()
        process.wait()
    text = output.decode(errors="replace")
    if process.returncode:
        raise LoadError(text.strip()[-300:] or f"{process.args} failed")
    return text


@contextlib.contextmanager
def serving(command: Iterable[object], name: str, core: int | None = None) -> Iterator[Server]:
    """Runs the server during the block, on the servers' core unless another one is given. Its
    stderr goes to `.bench/NAME.log`."""
    log = OUTPUT / f"{name}.log"
    with log.open("wb") as errors:
        process = start_pinned(
            command, cores()[0] if core is None else core, stdout=subprocess.PIPE, stderr=errors
        )
    try:
        port = port_announced(process, log)
        yield Server(innermost_pid(process.pid), port)
    finally:
        stop(process)


@contextlib.contextmanager
def serving_on(
    command: Iterable[object],
    port: int,
    name: str,
    environment: Mapping[str, str] = {},
    seconds_max: float = LISTEN_SECONDS_MAX,
    core: int | None = None,
) -> Iterator[Server]:
    """Runs another project's server, which announces nothing, on a given port. `pid` is that of the
    first of its processes. All of them are killed if they do not end after SIGTERM."""
    log = OUTPUT / f"{name}.log"
    with log.open("wb") as output:
        process = start_pinned(
            command,
            cores()[0] if core is None else core,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, **environment},
        )
    try:
        wait_until_listening(process, port, log, seconds_max)
        yield Server(process.pid, port)
    finally:
        stop_group(process)


@contextlib.contextmanager
def running(command: Sequence[str], **how) -> Iterator[subprocess.Popen]:
    """Runs a program during the block, on any core, and kills it at the end."""
    process = subprocess.Popen(command, **how)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@contextlib.contextmanager
def broker(command: Sequence[str], port: int, name: str) -> Iterator[Server]:
    """Runs a broker, which listens at that port, on any core."""
    log = OUTPUT / f"{name}.log"
    with log.open("wb") as output, running(command, stdout=output, stderr=output) as process:
        wait_until_listening(process, port, log)
        yield Server(process.pid, port)


def nats_server(*options: str) -> contextlib.AbstractContextManager[Server]:
    port = free_port()
    command = [required("nats-server"), "-a", "127.0.0.1", "-p", str(port), *options]
    return broker(command, port, "nats-server")


def installed(program: str) -> str | None:
    """The path of a program; Debian has some in a folder that is not in every user's PATH."""
    return shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")


def required(program: str) -> str:
    return installed(program) or sys.exit(f"{program} is not installed")


def wait_until_listening(
    process: subprocess.Popen, port: int, log: Path, seconds_max: float = LISTEN_SECONDS_MAX
) -> None:
    deadline = time.monotonic() + seconds_max
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.02)
    raise StartError(f"does not listen: {last_line(log) or 'it printed nothing'}")


def stop_group(process: subprocess.Popen) -> None:
    """Ends every process of the server's process group."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.5)


def free_port() -> int:
    """A free port: the kernel hands out other ports before it repeats this one."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def port_announced(process: subprocess.Popen, log: Path) -> int:
    """Waits for the line `listening on PORT`."""
    words = first_line(process).split()
    if words[:2] != ["listening", "on"]:
        raise StartError(f"{process.args}: {last_line(log) or 'announced no port'}")
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
    """The pid of a server that strace or perf started as its only child."""
    with contextlib.suppress(OSError, IndexError):
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
    return pid


def stop(process: subprocess.Popen) -> None:
    """Ends the server, then the tool around it, which writes its report when its child has
    ended."""
    try:
        if not ended_by_sigterm(process):
            signal_quietly(innermost_pid(process.pid), signal.SIGKILL)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def ended_by_sigterm(process: subprocess.Popen) -> bool:
    """Sends the signal, and again each second that finds the server waiting: without a wakeup
    descriptor it can miss a signal that arrives just before it waits, and under valgrind often
    does. One that ends would be cut short by a second signal, and its count with it."""
    for second in range(STOP_SECONDS_MAX):
        pid = innermost_pid(process.pid)
        if process.poll() is None and (second == 0 or waits(pid)):
            signal_quietly(pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(1)
            return True
    return False


def waits(pid: int) -> bool:
    """Whether all threads of a process sleep."""
    try:
        stats = [it.read_text() for it in Path(f"/proc/{pid}/task").glob("*/stat")]
    except OSError:  # A thread has ended.
        return False
    return all(it.rpartition(")")[2].split()[0] == "S" for it in stats)


def signal_quietly(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
