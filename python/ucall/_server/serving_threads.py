"""Servers on threads: starting them, and stopping them when the program ends."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING
from weakref import WeakSet

from ucall import _forks

if TYPE_CHECKING:
    from ucall import _core

__all__ = ["ServingThread", "check_not_suspended", "running"]

#: Seconds that the end of the program waits for each running server.
_STOP_TIMEOUT_S = 10


class ServingThread:
    """The thread of a server that `ucall.Server.start` has started, if any."""

    def __init__(self, core: _core.Server) -> None:
        self.core = core
        #: Locked while the thread starts.
        self.starting = threading.Lock()
        #: Set while the server does not run, on whatever thread.
        self.idle = threading.Event()
        self.idle.set()
        self._thread: threading.Thread | None = None

    @property
    def is_alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    @property
    def was_started(self) -> bool:
        return self._thread is not None

    def start(self, run: Callable[[Callable[[], object]], None], name: str) -> None:
        """Starts a thread that calls ``run(on_start)``; returns after ``on_start``, or raises."""
        started = threading.Event()
        failures: list[BaseException] = []

        def serve() -> None:
            try:
                run(started.set)
            except BaseException as failure:
                if started.is_set():
                    raise
                failures.append(failure)
            finally:
                started.set()

        # A daemon: the program joins other threads before it runs `_stop_all`.
        thread = threading.Thread(target=serve, name=name, daemon=True)
        thread.start()
        started.wait()
        if failures:
            raise failures[0]
        self._thread = thread

    def join(self) -> None:
        """Waits for the end of the thread, unless it is this one or serves this call."""
        is_own = self._thread is threading.current_thread() or self.core.is_running_here
        if self._thread is not None and not is_own:
            self._thread.join()


#: Those of servers that run on any thread.
running: WeakSet[ServingThread] = WeakSet()
# A forked child has none of its parent's threads.
_forks.in_child(running.clear)


def check_not_suspended(core: _core.Server) -> None:
    """Raises RuntimeError if this thread keeps the worker of a bounded run. That accepts
    connections, too, and would answer none of them while another worker serves."""
    if core.is_suspended_here:
        raise RuntimeError("a bounded run keeps its connections: call stop() first")


@atexit.register
def _stop_all() -> None:
    """Stops the servers on other threads before the interpreter shuts down."""
    for thread in list(running):
        thread.core.stop(False)
        thread.idle.wait(_STOP_TIMEOUT_S)
