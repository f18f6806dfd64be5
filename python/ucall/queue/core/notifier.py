"""The thread that calls the callbacks of one communicator. There is none until there is one."""

from __future__ import annotations

import concurrent.futures
import contextlib
import logging
import threading
import uuid
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ucall._core import QueueCore
    from ucall.queue.core.future import Future

__all__ = ["Notifier"]

_IDLE_S = 1.0
_NAME = "ucall-queue-calls"


class Notifier:
    """Waits for futures to be done, and for sessions to begin and end."""

    def __init__(self, core: QueueCore) -> None:
        self._core = weakref.ref(core)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._watched = 0
        #: While somebody waits for futures, nobody need keep the communicator.
        self._core_reference: QueueCore | None = None
        self.on_start: list[Callable[[uuid.UUID], object]] = []
        self.on_end: list[Callable[[uuid.UUID], object]] = []

    def watch(self, future: Future) -> None:
        """Has the future's `_finish` called once it is done."""
        core = self._core()
        if core is None:
            # What was put arrives all the same, and nothing but the future tells when.
            threading.Thread(target=_wait_for, args=(future,), name=_NAME, daemon=True).start()
            return
        with self._lock:
            self._watched += 1
            self._core_reference = core
        core._watch(future)
        self.start()

    def start(self) -> None:
        """Starts the thread, unless it runs."""
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name=_NAME, daemon=True)
                self._thread = thread
                thread.start()

    def _run(self) -> None:
        while self._turn():
            pass

    def _turn(self) -> bool:
        """Waits for changes and calls for them; False once there is nothing left to wait for."""
        core = self._core()
        if core is None:
            return False
        futures, sessions = core._next_changes(_IDLE_S)
        if core._is_closed and not futures and not sessions:
            with self._lock:
                # Whoever has added something meanwhile saw this thread, and started none.
                futures, sessions = core._next_changes(0)
                if not futures and not sessions:
                    self._thread = None
                    return False
        del core
        for future in futures:
            _call(future._finish)  # type: ignore[attr-defined]
        for began, peer in sessions:
            for callback in list(self.on_start if began else self.on_end):
                _call(callback, peer)
        with self._lock:
            self._watched -= len(futures)
            if not self._watched:
                self._core_reference = None
        return True


def _wait_for(future: Future) -> None:
    # How it ends is told by the future itself.
    with contextlib.suppress(concurrent.futures.CancelledError):
        future.exception()
    _call(future._finish)


def _call(callback: Callable[..., object], *arguments: uuid.UUID) -> None:
    try:
        callback(*arguments)
    except BaseException:
        # Whatever it is: the thread has others to call.
        logging.getLogger("ucall").exception("exception in a callback of a queue")
