"""What `put` returns."""

from __future__ import annotations

import concurrent.futures
import logging
import threading
from collections.abc import Callable
from concurrent.futures import _base
from typing import TYPE_CHECKING, Any

from ucall._core import Receipt

if TYPE_CHECKING:
    from ucall.queue.core.notifier import Notifier

__all__ = ["Future"]

# One for all: it guards what is rare.
_lock = threading.RLock()


class Future(Receipt, concurrent.futures.Future[None]):
    """Done once the message has arrived.

    A `concurrent.futures.Future` that asks how far the peer is when it is asked itself, so that one
    for each message costs little. What only some need (callbacks, `concurrent.futures.wait`) is
    made when it is first used.
    """

    __init__ = object.__init__

    _notifier: Notifier

    def running(self) -> bool:
        """Never: a message waits, then it is on its way."""
        return False

    def cancel(self) -> bool:
        """Takes the message back: ``True``; or ``False`` once it is on the wire."""
        if not self._cancel():
            return False
        self._finish()
        return True

    def add_done_callback(self, fn: Callable[[Any], object]) -> None:
        """Calls ``fn`` with this future once it is done: on a thread of ucall's, or at once."""
        with _lock:
            if not self.done():
                self._done_callbacks.append(fn)
                self._watch()
                return
        self._call(fn)

    @property
    def _state(self) -> str:  # type: ignore[override]
        # `concurrent.futures.wait` looks twice with the lock held, and must see the same.
        if not self.__dict__.get("told", self.done()):
            return _base.PENDING
        return _base.CANCELLED_AND_NOTIFIED if self.cancelled() else _base.FINISHED

    @property
    def _condition(self) -> threading.Condition:  # type: ignore[override]
        attributes = self.__dict__
        with _lock:
            if "condition" not in attributes:
                attributes["told"] = self.done()
                attributes["condition"] = threading.Condition()
        if not attributes["told"]:
            self._watch()
        condition: threading.Condition = attributes["condition"]
        return condition

    @property
    def _waiters(self) -> list[Any]:  # type: ignore[override]
        with _lock:
            waiters: list[Any] = self._get_or_create("waiters", list)
        self._watch()
        return waiters

    @property
    def _done_callbacks(self) -> list[Callable[[Any], object]]:
        callbacks: list[Callable[[Any], object]] = self._get_or_create("callbacks", list)
        return callbacks

    def _get_or_create(self, name: str, make: Callable[[], Any]) -> Any:
        attributes = self.__dict__
        if name not in attributes:
            attributes[name] = make()
        return attributes[name]

    def _watch(self) -> None:
        """Has `_finish` called once it is done."""
        if not self.__dict__.get("watched"):
            self.__dict__["watched"] = True
            self._notifier.watch(self)

    def _finish(self) -> None:
        """It is done: tells all who wait, once."""
        attributes = self.__dict__
        if "condition" in attributes:
            with attributes["condition"]:
                waiters = [] if attributes["told"] else attributes.get("waiters", [])
                attributes["told"] = True
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
            logging.getLogger("ucall").exception("exception calling callback for %r", self)

    def __repr__(self) -> str:
        return f"<Future at {id(self):#x} state={self._state.lower()}>"
