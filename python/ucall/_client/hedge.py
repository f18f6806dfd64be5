"""Hedged calls: they are sent again when there is no reply in the time of nearly all calls."""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeAlias, TypeVar

__all__ = ["Hedge", "Latencies", "Wait", "first_result"]

T = TypeVar("T")
#: Waits until one of these futures is done, or for some seconds; returns those that are done, and
#: the others.
Wait: TypeAlias = Callable[[set[Any], float | None], Awaitable[tuple[set[Any], set[Any]]]]
_Work: TypeAlias = tuple[Future[Any], Callable[[], Any]]

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
        self._threads: _Threads | None = None
        self._process = 0

    def submit(self, attempt: Callable[[], T]) -> Future[T]:
        """Runs an attempt."""
        if self._threads is None or self._process != os.getpid():
            # A forked child has none of its parent's threads.
            self._threads, self._process = _Threads(), os.getpid()
        return self._threads.submit(attempt)

    def close(self) -> None:
        """Ends the threads, each after its attempt. The next call starts new ones."""
        threads, self._threads = self._threads, None
        if threads is not None:
            threads.close()


class _Threads:
    """Daemon threads: unlike those of an executor, they do not delay the end of the process until
    the slower attempts have ended. They end when this object is collected."""

    def __init__(self) -> None:
        self._work: SimpleQueue[_Work | None] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._lock = threading.Lock()
        self._count = 0
        self.close = weakref.finalize(self, self._work.put, None)
        self.close.atexit = False

    def submit(self, attempt: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        self._work.put((future, attempt))
        if self._idle.acquire(blocking=False):
            return future
        with self._lock:
            may_start = self._count < _THREADS_MAX
            self._count += may_start
        if may_start:
            threading.Thread(
                target=_run, args=(self._work, self._idle), name="ucall-client-hedge", daemon=True
            ).start()
        return future


def _run(work: SimpleQueue[_Work | None], idle: threading.Semaphore) -> None:
    while (item := work.get()) is not None:
        future, attempt = item
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(attempt())
            except BaseException as error:
                future.set_exception(error)
        del item, future, attempt
        idle.release()
    work.put(None)  # For the next thread.


def _may_have_run(error: BaseException) -> bool:
    return getattr(error, "may_have_run", True)


async def first_result(
    begin: Callable[[], Any],
    delays_s: Iterable[float],
    may_hedge: Callable[[], Awaitable[bool]],
    wait: Wait,
) -> Any:
    """The first result of an attempt, and of further ones that begin while there is none, after
    those of these delays that end when another one is allowed. Cancels the others; raises if all
    fail."""
    begun = {begin()}
    try:
        for delay_s in delays_s:
            done, running = await wait(begun, delay_s)
            if done:
                break
            if await may_hedge():
                begun.add(begin())
        running = begun
        while True:
            done, running = await wait(running, None)
            succeeded = [it for it in done if it.exception() is None]
            if succeeded:
                return succeeded[0].result()
            if not running:
                raise max((it.exception() for it in begun), key=_may_have_run)
    finally:
        for future in begun:
            future.cancel()
