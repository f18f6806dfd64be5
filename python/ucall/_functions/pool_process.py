"""A process of a pool: how it starts, and the signals that it outlasts.

It imports the module of its functions, which may make and run a server:
`ucall._workers.process_role` prevents that. Then it runs the hooks of `Server.on_process_start`.

A service manager, a terminal or a container sends signals to all processes of a server. Its pools
outlast them, so that the server drains: only the server ends them, or its death.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from multiprocessing import popen_spawn_posix, resource_tracker, spawn
from multiprocessing.context import SpawnContext, SpawnProcess
from multiprocessing.process import BaseProcess
from typing import Any

from ucall._workers import process_role

__all__ = ["PoolContext", "begin", "outlast_signals"]

#: An option of prctl(2).
_PR_SET_PDEATHSIG = 1
#: The signals that end a server, which a process of its pools outlasts.
_SIGNALS = (signal.SIGINT, signal.SIGTERM)

#: All threads share the environment.
_start_lock = threading.Lock()


class _Popen(popen_spawn_posix.Popen):
    """The handle of a process that outlasts SIGTERM."""

    def terminate(self) -> None:
        """Kills the process. The end of a program calls this for its daemons, and joins them."""
        self.kill()


class _Process(SpawnProcess):
    """A process that gets its role from its environment, and begins with `_SIGNALS` blocked."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        #: Variables that it has beside those of the server.
        self.environment: dict[str, str] = {}

    @staticmethod
    def _Popen(process: BaseProcess) -> Any:
        # Starts now, because its own start would unblock the signals.
        resource_tracker.ensure_running()
        variables = {process_role.POOL: "1", **getattr(process, "environment", {})}
        with _start_lock, _environment(variables):
            before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
            try:
                return _Popen(process)
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)


class PoolContext(SpawnContext):
    """Spawns processes: a forked one would have the server's ring without its threads."""

    Process = _Process

    def get_preparation_data(self, name: str) -> dict[str, Any]:
        return spawn.get_preparation_data(name)


@contextlib.contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def begin() -> None:
    """Begins a new process, whose functions have been unpickled.

    That has imported their modules, whose servers must not run. From here on, functions may run
    servers.
    """
    os.environ.pop(process_role.POOL, None)
    # A daemon could not start processes, and functions may.
    multiprocessing.current_process().daemon = False
    outlast_signals()
    _end_with_server()


def outlast_signals() -> None:
    """Leaves the signals that end a server to the server, which lets calls finish.

    SIGTERM gets a handler, because an ignored signal would be ignored by programs that functions
    start, too. It ends forked children, also those that it reaches before they can say so.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _outlast)
    os.register_at_fork(
        before=_block_sigterm, after_in_parent=_restore_mask, after_in_child=_end_by_sigterm
    )
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)


def _outlast(_number: int, _frame: object) -> None:
    """Handles SIGTERM."""


#: The signals that a thread had blocked before it forked.
_forking = threading.local()


def _block_sigterm() -> None:
    _forking.blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])


def _restore_mask() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _forking.blocked)


def _end_by_sigterm() -> None:
    if signal.getsignal(signal.SIGTERM) is _outlast:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _restore_mask()


def _end_with_server() -> None:
    """Has Linux end this process when the server's dies, whose successor starts its own.

    Otherwise its call would run to its end, and nobody would get the result.
    """
    if sys.platform == "linux":
        with contextlib.suppress(ImportError):
            import ctypes

            # It counts as dead when the thread dies that has started this process.
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
