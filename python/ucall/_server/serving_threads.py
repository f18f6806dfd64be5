"""Servers on threads: starting them, and stopping them when the program ends."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING
from weakref import WeakSet

from ucall import _forks

if TYPE_CHECKING:
    from ucall.server import Server

__all__ = ["check_not_suspended", "running", "start"]

#: Servers that run on any thread.
running: WeakSet[Server] = WeakSet()
# A forked child has none of its parent's threads.
_forks.in_child(running.clear)

#: Seconds that the end of the program waits for each running server.
_STOP_TIMEOUT_S = 10


def check_not_suspended(server: Server) -> None:
    """Raises RuntimeError if this thread keeps the worker of a bounded run. That accepts
    connections, too, and would answer none of them while another worker serves."""
    if server._core.is_suspended_here:
        raise RuntimeError("a bounded run keeps its connections: call stop() first")


def start(run: Callable[[Callable[[], object]], None], name: str) -> threading.Thread:
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
    return thread


@atexit.register
def _stop_all() -> None:
    """Stops the servers on other threads before the interpreter shuts down."""
    for server in list(running):
        server._core.stop(False)
        server._idle.wait(_STOP_TIMEOUT_S)
