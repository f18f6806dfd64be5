"""When the workers that wait at a listening socket are woken after another has died."""

from __future__ import annotations

__all__ = ["Wakeups"]

_DELAY_MIN_S = 0.001
_DELAY_MAX_S = 5.0


class Wakeups:
    """Wakeups after a death, with delays that double from 1 ms to 4 s.

    One is not enough: the kernel frees the io_uring of a dead process some time after its parent
    has reaped it. Until then that io_uring still waits at the socket, and the kernel may wake it
    alone for each connection.
    """

    def __init__(self) -> None:
        #: When the next one is due; None if none is left.
        self.next_at: float | None = None
        self._delay_s = _DELAY_MIN_S

    def begin(self, now: float) -> None:
        """A worker has died: the first wakeup is due at once."""
        self.next_at, self._delay_s = now, _DELAY_MIN_S

    def take(self, now: float) -> bool:
        """Whether one is due, which the caller then does."""
        if self.next_at is None or self.next_at > now:
            return False
        is_last = self._delay_s > _DELAY_MAX_S
        self.next_at = None if is_last else now + self._delay_s
        self._delay_s *= 2
        return True
