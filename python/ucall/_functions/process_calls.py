"""The calls of a pool of processes, and the limit on those that wait for one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from ucall._core import Context
from ucall._functions.process_context import CancellableFuture
from ucall.errors import RPCError

__all__ = ["PoolCall", "WaitingCalls"]


class WaitingCalls:
    """The calls of one function that wait for a process."""

    def __init__(self, calls_max: int) -> None:
        self._calls_max = calls_max
        self._lock = threading.Lock()
        self._futures: set[Future[Any]] = set()
        #: A moving average of the time of a call in its process.
        self._average_s = 0.001

    def add(self, future: Future[Any]) -> None:
        """Counts a call until it begins or is cancelled.

        Raises:
            RPCError: As many calls wait as may.
        """
        with self._lock:
            if len(self._futures) >= self._calls_max:
                retry_after_ms = round(min(max(self._average_s * 1e3, 1), 10_000))
                data = {"retry_after_ms": retry_after_ms, "max_waiting": self._calls_max}
                raise RPCError(-32003, "Overloaded", data)
            self._futures.add(future)
        future.add_done_callback(self.discard)

    def discard(self, future: Future[Any]) -> None:
        """Counts a call no longer."""
        with self._lock:
            self._futures.discard(future)

    def record(self, seconds: float) -> None:
        """A call has taken this long."""
        with self._lock:
            self._average_s += (seconds - self._average_s) / 16


@dataclass
class PoolCall:
    """A call, and the future of its result."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    named: dict[str, Any]
    deadline: float | None
    #: The argument that is its context.
    context: Context | None = None
    #: Counts it while it waits for a process, if its function has a limit of these calls.
    waiting: WaitingCalls | None = None
    future: CancellableFuture = field(default_factory=CancellableFuture)
