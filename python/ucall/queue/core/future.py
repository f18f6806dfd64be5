"""What `put` returns, and the thread that calls the callbacks of one communicator."""

from __future__ import annotations

import concurrent.futures
import contextlib
import logging
import threading
import uuid
import weakref
from collections.abc import Callable
from concurrent.futures import _base
from typing import Any

from ucall import _forks
from ucall._core import QueueCore, Receipt
from ucall.queue.core.events import ConnectionEvent, event_of

__all__ = ["Future", "Notifier"]

log = logging.getLogger("ucall")

#: Guards the attributes of all futures that are made on first use.
_lock = threading.RLock()
#: Seconds between two checks whether the program still uses the communicator.
_IDLE_S = 1.0
_THREAD_NAME = "ucall-queue-calls"


class Future(Receipt, concurrent.futures.Future[None]):
    """Done once the message is acknowledged, in the way that the option ``ack`` says.

    A `concurrent.futures.Future` that holds no state: each method asks the core how far the peer
    has acknowledged. What callbacks and `concurrent.futures.wait` need is made on first use.
    """

    __init__ = object.__init__

    _notifier: Notifier

    def running(self) -> bool:
        """Always False: a message waits, or was sent."""
        return False

    def cancel(self) -> bool:
        """Removes the message from the queue. Returns False if a part of it was sent already."""
        if not self._cancel():
            return False
        self._finish()
        return True

    def add_done_callback(self, fn: Callable[[Any], object]) -> None:
        """Calls ``fn(future)`` when it is done: on ucall's thread, or now if it is done already."""
        with _lock:
            if not self.done():
                self._done_callbacks.append(fn)
                self._watch()
                return
        self._call(fn)

    @property
    def _state(self) -> str:  # type: ignore[override]
        # `concurrent.futures.wait` reads it twice under the lock, and both must agree.
        if not self.__dict__.get("is_notified", self.done()):
            return _base.PENDING
        return _base.CANCELLED_AND_NOTIFIED if self.cancelled() else _base.FINISHED

    @property
    def _condition(self) -> threading.Condition:  # type: ignore[override]
        attributes = self.__dict__
        with _lock:
            if "condition" not in attributes:
                attributes["is_notified"] = self.done()
                attributes["condition"] = threading.Condition()
        if not attributes["is_notified"]:
            self._watch()
        condition: threading.Condition = attributes["condition"]
        return condition

    @property
    def _waiters(self) -> list[Any]:  # type: ignore[override]
        with _lock:
            waiters: list[Any] = self.__dict__.setdefault("waiters", [])
        self._watch()
        return waiters

    @property
    def _done_callbacks(self) -> list[Callable[[Any], object]]:
        callbacks: list[Callable[[Any], object]] = self.__dict__.setdefault("callbacks", [])
        return callbacks

    # From Python 3.15 on, asyncio reads these of a finished future instead of calling its methods.
    _result = None

    @property
    def _exception(self) -> BaseException | None:  # type: ignore[override]
        return self.exception()

    def _watch(self) -> None:
        """Has the notifier call `_finish` when it is done."""
        if not self.__dict__.get("is_watched"):
            self.__dict__["is_watched"] = True
            self._notifier.watch(self)

    def _finish(self) -> None:
        """Notifies the waiters and calls the callbacks, once."""
        attributes = self.__dict__
        if "condition" in attributes:
            with attributes["condition"]:
                waiters = [] if attributes["is_notified"] else attributes.get("waiters", [])
                attributes["is_notified"] = True
                for waiter in waiters:
                    if self.cancelled():
                        waiter.add_cancelled(self)
                    elif self.exception() is not None:
                        waiter.add_exception(self)
                    else:
                        waiter.add_result(self)
        with _lock:
            callbacks, attributes["callbacks"] = attributes.get("callbacks", []), []
        for callback in callbacks:
            self._call(callback)

    def _call(self, callback: Callable[[Any], object]) -> None:
        try:
            callback(self)
        except Exception:
            log.exception("exception calling callback for %r", self)

    def __repr__(self) -> str:
        return f"<Future at {id(self):#x} state={self._state.lower()}>"


class Notifier:
    """Calls the callbacks of one communicator, for futures and events, on one thread.

    The thread starts with the first callback.
    """

    def __init__(self, core: QueueCore) -> None:
        self._core = weakref.ref(core)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._watched = 0
        #: Keeps the communicator alive while a future of it is watched.
        self._core_reference: QueueCore | None = None
        self.on_start: list[Callable[[uuid.UUID], object]] = []
        self.on_end: list[Callable[[uuid.UUID], object]] = []
        self.on_connection: list[Callable[[ConnectionEvent], object]] = []

    def calls(
        self, item: tuple[str, uuid.UUID | None, str | None]
    ) -> list[tuple[Callable[[Any], object], Any]]:
        """The callbacks for an event of the core, each with its argument."""
        event = event_of(item)
        of_session = {"started": self.on_start, "ended": self.on_end}.get(event.kind, [])
        calls: list[tuple[Callable[[Any], object], Any]] = []
        calls += [(callback, event.peer) for callback in of_session]
        calls += [(callback, event) for callback in self.on_connection]
        return calls

    def watch(self, future: Future) -> None:
        """Calls the future's `_finish` when it is done."""
        core = self._core()
        if core is None:
            # The communicator is gone, but its messages are still delivered: wait for this one.
            threading.Thread(
                target=_wait_for, args=(future,), name=_THREAD_NAME, daemon=True
            ).start()
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
                self._thread = threading.Thread(target=self._run, name=_THREAD_NAME, daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while self._turn():
            pass

    def _turn(self) -> bool:
        """Waits for changes and calls the callbacks; False once no change can follow."""
        core = self._core()
        if core is None:
            return False
        futures, events = core._next_changes(_IDLE_S)
        if core._is_closed and not futures and not events:
            with self._lock:
                # A callback that was added meanwhile found this thread running, and started none.
                futures, events = core._next_changes(0)
                if not futures and not events:
                    self._thread = None
                    return False
        del core
        for future in futures:
            _call(future._finish)  # type: ignore[attr-defined]
        for event in events:
            for callback, argument in self.calls(event):
                _call(callback, argument)
        with self._lock:
            self._watched -= len(futures)
            if not self._watched:
                self._core_reference = None
        return True


def _wait_for(future: Future) -> None:
    # The callbacks read the outcome from the future itself.
    with contextlib.suppress(concurrent.futures.CancelledError):
        future.exception()
    _call(future._finish)


def _call(callback: Callable[..., object], *arguments: object) -> None:
    try:
        callback(*arguments)
    except BaseException:
        # No exception may end the thread, which has further callbacks to call.
        log.exception("exception in a callback of a queue")


@_forks.in_child
def _replace_lock() -> None:
    """A forked child has none of its parent's threads, one of which may hold the lock."""
    global _lock
    _lock = threading.RLock()
