"""What `put` over JetStream returns."""

from __future__ import annotations

import threading
import weakref
from concurrent.futures import Future, _base
from typing import Any, Protocol

from ucall import _forks

__all__ = ["PutFuture"]

#: Guards the states of futures that nothing waits for.
_lock = threading.RLock()


class Withdraws(Protocol):
    """The sender of a message."""

    def withdraw(self, future: PutFuture, /) -> None:
        """Drops a message that has not been sent."""


class PutFuture(Future[None]):
    """Done once the broker has stored the message.

    It makes its condition on first use, because a condition is most of the memory and of the time
    that a future takes, and most futures are done before the program asks.
    """

    _state = _base.PENDING
    _exception: BaseException | None = None
    _result = None

    def __init__(self, sender: Withdraws) -> None:
        self._sender = weakref.ref(sender)

    @property
    def _condition(self) -> threading.Condition:  # type: ignore[override]
        with _lock:
            made: dict[str, Any] = self.__dict__
            if "condition" not in made:
                # The condition last: a signal handler may raise in between.
                self._waiters: list[Any] = []
                self._done_callbacks: list[Any] = []
                made["condition"] = threading.Condition()
            return made["condition"]  # type: ignore[no-any-return]

    def begin(self) -> bool:
        """As `set_running_or_notify_cancel`."""
        with _lock:
            if "condition" not in self.__dict__:
                self._state = _base.RUNNING
                return True
        return self.set_running_or_notify_cancel()

    def finish(self, error: Exception | None) -> None:
        """As `set_result` or `set_exception`."""
        with _lock:
            if "condition" not in self.__dict__:
                self._exception, self._state = error, _base.FINISHED
                return
        if error is None:
            self.set_result(None)
        else:
            self.set_exception(error)

    def result(self, timeout: float | None = None) -> None:
        """Waits until the message is stored; raises the exception if it is not."""
        if self._state != _base.FINISHED or self._exception is not None:
            super().result(timeout)

    def cancel(self) -> bool:
        """Withdraws the message. Returns False if it was sent already."""
        if not super().cancel():
            return False
        sender = self._sender()
        if sender is not None:
            sender.withdraw(self)
        return True


@_forks.in_child
def _replace_lock() -> None:
    """A forked child has none of its parent's threads, one of which may hold the lock."""
    global _lock
    _lock = threading.RLock()
