"""The callbacks of a queue over JetStream, called on a thread of their own."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from queue import Full, Queue

from ucall.queue.core.events import ConnectionEvent

__all__ = ["Events"]

log = logging.getLogger("ucall")

#: Events that wait for slow callbacks. Further ones are dropped.
_WAITING_MAX = 1024


class Events:
    """The thread starts with the first callback."""

    def __init__(self) -> None:
        self._callbacks: list[Callable[[ConnectionEvent], object]] = []
        self._waiting: Queue[ConnectionEvent | None] = Queue(_WAITING_MAX)
        self._has_ended = False

    def add(self, callback: Callable[[ConnectionEvent], object]) -> None:
        """Calls it with each event from now on."""
        self._callbacks.append(callback)
        if len(self._callbacks) == 1 and not self._has_ended:
            threading.Thread(target=self._run, name="ucall-queue-calls", daemon=True).start()

    def push(self, event: ConnectionEvent | None) -> None:
        """Adds an event; None ends the thread after those before."""
        self._has_ended |= event is None
        if self._callbacks:
            with contextlib.suppress(Full):
                self._waiting.put_nowait(event)

    def _run(self) -> None:
        while (event := self._waiting.get()) is not None:
            for callback in list(self._callbacks):
                try:
                    callback(event)
                except BaseException:
                    # No exception may end the thread, which has further callbacks to call.
                    log.exception("exception in a callback of a queue")
