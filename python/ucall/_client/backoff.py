"""The pauses between attempts to connect."""

from __future__ import annotations

from collections.abc import Iterator
from random import uniform
from time import monotonic

__all__ = ["Backoff", "backoff"]

_FIRST_S = 0.1
_LAST_S = 10.0


def backoff() -> Iterator[float]:
    """Seconds to wait after each failed attempt: twice as many each time up to 10, of which a
    random part of up to half is left out, so that clients do not return all at once."""
    seconds = _FIRST_S
    while True:
        yield seconds * uniform(0.5, 1)
        seconds = min(seconds * 2, _LAST_S)


class Backoff:
    """The pauses after the connections of a subscription.

    They are those of `backoff`, which begin anew only after a connection that has lasted longer
    than its pause would: a server that closes each connection, whatever it has sent before, gets
    few.
    """

    def __init__(self) -> None:
        self._pauses = backoff()
        self._opened_at: float | None = None

    def opened(self) -> None:
        """A connection was opened."""
        self._opened_at = monotonic()

    def next(self) -> float:
        """Seconds to wait after the connection that has ended, or was not opened."""
        pause = next(self._pauses)
        if self._opened_at is not None and monotonic() - self._opened_at > pause:
            self._pauses = backoff()
            pause = next(self._pauses)
        self._opened_at = None
        return pause
