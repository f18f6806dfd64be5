"""Progress lines of long tests."""

from __future__ import annotations

import os
import sys
import time
from types import TracebackType
from typing import Self

EVERY_S = 5.0


class Progress:
    """Prints the progress every few seconds, if `UCALL_QUEUE_LONG` is set.

    Args:
        what: The name of the work.
        count: The number of steps.
    """

    def __init__(self, label: str, count: int) -> None:
        self._what, self._count = label, count
        self._began = self._reported_at = time.monotonic()
        self._is_long = bool(os.environ.get("UCALL_QUEUE_LONG"))

    def update(self, done: int, more: str = "") -> None:
        """Records the number of finished steps."""
        now = time.monotonic()
        if now - self._reported_at > EVERY_S:
            self._reported_at = now
            self.write(f"{done:,} of {self._count:,}{more}")

    def write(self, text: str) -> None:
        """Prints a line at once."""
        if self._is_long:
            passed_s = time.monotonic() - self._began
            print(f"{self._what}: {text}, {passed_s:.0f} s", file=sys.stderr, flush=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        raised: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.write("failed" if raised else f"all {self._count:,}")
