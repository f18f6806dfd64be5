"""The context of a call in a process of a pool: it reports progress, and knows of the cancellation.

The server's context stays in the server's process, and its place in the arguments has a
`SentContext`. Reports come back through the pipe, ahead of the result. The cancellation goes
through shared memory: the server's thread writes the number of the call there, which cannot block.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, NoReturn, Protocol

from ucall import _core

__all__ = ["CancellableFuture", "ProcessContext", "ProcessLink", "SentContext", "is_report"]


class Number(Protocol):
    """A number in shared memory."""

    value: int


@dataclass(frozen=True)
class SentContext:
    """A context, as it is sent to a process."""

    #: The call's number in the process, from 1.
    call: int
    takes_progress: bool


class CancellableFuture(Future[Any]):
    """The result of a call in a process, which learns that the call is cancelled while it runs."""

    def __init__(self) -> None:
        super().__init__()
        self._cancel_lock = threading.Lock()
        self._is_unwanted = False
        self._tell: Callable[[], None] | None = None

    def cancel(self) -> bool:
        """Cancels the call; if it runs, it is told, and its result is not needed."""
        if super().cancel():
            return True
        with self._cancel_lock:
            self._is_unwanted = True
            if self._tell is not None:
                self._tell()
        return False

    def tell_by(self, tell: Callable[[], None] | None) -> None:
        """Has `tell` called if the call is cancelled, or was. Nothing is once this has returned
        for ``None``."""
        with self._cancel_lock:
            self._tell = tell
            if tell is not None and self._is_unwanted:
                tell()


class ProcessLink:
    """What a process has to tell its server, and learns from it."""

    def __init__(self, pipe: Connection, cancelled: Number) -> None:
        self._pipe = pipe
        #: The number of the call that was cancelled last.
        self._cancelled = cancelled
        #: A function may report from several threads.
        self._lock = threading.Lock()
        self._running = 0

    def context(self, sent: SentContext) -> ProcessContext:
        """The context of a call that begins."""
        self._running = sent.call
        return ProcessContext(self, sent)

    def report(self, call: int, text: bytes) -> None:
        """Sends a report, unless its call has ended."""
        with self._lock, suppress(ConnectionError):
            if call == self._running:
                self._pipe.send_bytes(text)

    def end_call(self, outcome: bytes) -> None:
        """Sends the outcome of a call, after which it reports nothing."""
        with self._lock:
            self._running = 0
            self._pipe.send_bytes(outcome)

    def is_cancelled(self, call: int) -> bool:
        """Whether the server has cancelled the call."""
        return self._cancelled.value == call


class ProcessContext:
    """What a function in a process has of a `ucall.Context`."""

    def __init__(self, link: ProcessLink, sent: SentContext) -> None:
        self._link = link
        self._sent = sent

    @property
    def cancelled(self) -> bool:
        """See `ucall.Context.cancelled`."""
        return self._link.is_cancelled(self._sent.call)

    def progress(self, done: float, total: float | None = None, message: str | None = None) -> None:
        """See `ucall.Context.progress`."""
        if self._sent.takes_progress:
            self._link.report(self._sent.call, _core.progress_text(done, total, message))

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            f"ctx.{name}: a context in another process has cancelled and progress alone; "
            "serve the function by threads=True for the rest"
        )


def is_report(received: bytes) -> bool:
    """Whether a process has sent a report, which is JSON, and no pickle of an outcome."""
    return received.startswith(b"{")
