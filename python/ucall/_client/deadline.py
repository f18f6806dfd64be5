"""The end of a time limit."""

from __future__ import annotations

import builtins
import time

__all__ = ["Deadline"]


class Deadline:
    """The end of a time limit; ``None`` seconds are no limit.

    Args:
        seconds: The length of the time limit.
        began: Its begin, by ``time.monotonic``; now by default.
    """

    __slots__ = ("_end", "seconds")

    def __init__(self, seconds: float | None, began: float | None = None) -> None:
        self.seconds = seconds
        began = time.monotonic() if began is None else began
        self._end = None if seconds is None else began + seconds

    def left(self) -> float | None:
        """Seconds until the end.

        Raises:
            TimeoutError: It has passed.
        """
        if self._end is None:
            return None
        left = self._end - time.monotonic()
        if left <= 0:
            raise builtins.TimeoutError
        return left

    def share(self, count: int) -> Deadline:
        """The end of one of ``count`` equal parts of the time that is left.

        Raises:
            TimeoutError: It has passed.
        """
        left = self.left()
        return self.at_most(left and left / count)

    def is_over(self) -> bool:
        """Whether it has passed."""
        return self._end is not None and self._end <= time.monotonic()

    def at_most(self, seconds: float | None) -> Deadline:
        """This deadline, or one in ``seconds`` if that is earlier."""
        if seconds is None:
            return self
        other = Deadline(seconds)
        assert other._end is not None
        return self if self._end is not None and self._end <= other._end else other
