"""Starts the host of the processes that workers share (`pool_host`), for the supervisor.

The first worker that asks has a host started. When workers are replaced, the next one that asks
gets a new host, and the old one ends with the old workers.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from ucall._workers import process_role

__all__ = ["Hosts", "exit_reason"]

log = logging.getLogger("ucall")

#: How long a host that has closed its socket may take to end.
_EXIT_S = 1.0


@dataclass(eq=False)
class _Host:
    process: subprocess.Popen[bytes]
    #: It ends when this is closed and its last worker has ended.
    control: socket.socket
    #: Those that live.
    workers: set[object] = field(default_factory=set)


class Hosts:
    """The host of the workers that ask from now on, and those of earlier workers.

    Args:
        command: The command line of a worker.
        stdin: Makes its standard input.
    """

    def __init__(self, command: list[str], stdin: Callable[[], int]) -> None:
        self._command = command
        self._stdin = stdin
        self._host: _Host | None = None
        self._retired: list[_Host] = []

    def connect(self, worker: object, key: str, descriptor: int) -> None:
        """Passes a socket of a worker to the host, which has the other end of it then, and closes
        it. A worker whose socket is closed asks again."""
        message = f"{key}\n".encode()
        try:
            host = self._running()
            try:
                socket.send_fds(host.control, [message], [descriptor])
            except BrokenPipeError:
                # It is about to end.
                with suppress(subprocess.TimeoutExpired):
                    host.process.wait(_EXIT_S)
                host = self._running()
                socket.send_fds(host.control, [message], [descriptor])
            host.workers.add(worker)
        except OSError as failure:
            log.error("the host of the workers' processes cannot be reached: %s", failure)
        os.close(descriptor)

    def _running(self) -> _Host:
        self.reap()
        if self._host is None:
            self._host = self._start()
        return self._host

    def _start(self) -> _Host:
        """Starts a host.

        Raises:
            OSError: Memory or descriptors are exhausted, or the program's file is missing.
        """
        ours, theirs = socket.socketpair()
        environment = {process_role.WORKER: str(theirs.fileno()), process_role.HOST: "1"}
        with theirs:
            try:
                process = subprocess.Popen(
                    self._command,
                    env=os.environ | environment,
                    pass_fds=[theirs.fileno()],
                    stdin=self._stdin(),
                    process_group=0,
                )
            except OSError:
                ours.close()
                raise
        ours.setblocking(False)
        return _Host(process, ours)

    def remove(self, worker: object) -> None:
        """A worker has ended."""
        if self._host is not None:
            self._host.workers.discard(worker)

    def retire(self) -> None:
        """Has the host end with its workers. The next worker that asks gets another one."""
        if self._host is not None:
            self._host.control.close()
            self._retired.append(self._host)
            self._host = None

    def retire_unused(self) -> None:
        """Has a host without workers end."""
        if self._host is not None and not self._host.workers:
            self.retire()

    def reap(self) -> None:
        """Handles the exits of hosts."""
        host = self._host
        if host is not None and host.process.poll() is not None:
            pid, how = host.process.pid, exit_reason(host.process)
            log.error("the host of the workers' processes (pid %d) %s", pid, how)
            self.retire()
        self._retired = [host for host in self._retired if host.process.poll() is None]

    def kill(self) -> None:
        """Kills all, and the kernel their processes."""
        self.retire()
        for host in self._retired:
            host.process.kill()
            host.process.wait()
        self._retired = []

    def pids(self) -> set[int]:
        """The process ids of all."""
        hosts = [*self._retired, *([self._host] if self._host is not None else [])]
        return {host.process.pid for host in hosts}


def exit_reason(process: subprocess.Popen[bytes]) -> str:
    """How a process has ended."""
    status = process.returncode
    if status is not None and status < 0:
        try:
            name = signal.Signals(-status).name
        except ValueError:  # Only two of the real-time signals have a name.
            name = f"signal {-status}"
        return f"was killed by {name}"
    return f"ended with status {status}"
