"""The pauses between attempts to connect."""

from __future__ import annotations

import random
from collections.abc import Iterator

__all__ = ["backoff"]

_FIRST_S = 0.1
_LAST_S = 10.0


def backoff() -> Iterator[float]:
    """Seconds to wait after each failed attempt: twice as many each time up to 10, of which a
    random part of up to half is left out, so that clients do not return all at once."""
    seconds = _FIRST_S
    while True:
        yield seconds * random.uniform(0.5, 1)
        seconds = min(seconds * 2, _LAST_S)
