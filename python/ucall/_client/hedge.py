"""Hedged calls: a second server is asked when the first is slower than nearly all calls."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TypeVar

__all__ = ["Hedge", "Latencies"]

T = TypeVar("T")

_THREADS_MAX = 128


class Latencies:
    """The times of the last calls.

    The 95th percentile is computed once in 32 calls, from the first 32 on.
    """

    _KEPT = 512
    _INTERVAL = 32

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=self._KEPT)
        self._added = 0
        #: ``None`` while too few calls are known.
        self.p95: float | None = None

    def add(self, seconds: float) -> None:
        """Adds the time of a call."""
        self._seconds.append(seconds)
        self._added += 1
        if self._added % self._INTERVAL == 0:
            ordered = sorted(self._seconds)
            self.p95 = ordered[len(ordered) * 95 // 100]


class Hedge:
    """Runs the attempts of synchronous calls, each in a thread, because a thread that waits for a
    reply cannot send another request."""

    def __init__(self) -> None:
        self.latencies = Latencies()
        self._threads: ThreadPoolExecutor | None = None
        self._process = 0

    def run(self, attempt: Callable[[], T], delay_s: float, may_hedge: Callable[[], bool]) -> T:
        """Runs an attempt, and another one if the first has no result after a delay. Returns the
        first result; raises if both fail."""
        threads = self._executor()
        futures = {threads.submit(attempt)}
        done, running = wait(futures, timeout=delay_s)
        if running and may_hedge():
            futures.add(threads.submit(attempt))
            done, running = wait(futures, return_when=FIRST_COMPLETED)
        while running and all(it.exception() is not None for it in done):
            done, running = wait(futures)
        return _best(done or futures)

    def _executor(self) -> ThreadPoolExecutor:
        if self._threads is None or self._process != os.getpid():
            # A forked child has none of its parent's threads.
            self._threads = ThreadPoolExecutor(_THREADS_MAX, "ucall-client-hedge")
            self._process = os.getpid()
        return self._threads


def _best(futures: set[Future[T]]) -> T:
    succeeded = (it for it in futures if it.exception() is None)
    return next(succeeded, next(iter(futures))).result()
