"""What the best batcher would reach on the same arrivals, on one device whose time is known."""

import bisect
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Times:
    """The seconds that a batch takes, by its size: measured at some, between them on a line."""

    measured: Mapping[int, float]

    def of(self, size: int) -> float:
        sizes = sorted(self.measured)
        at = min(max(bisect.bisect_left(sizes, size), 1), len(sizes) - 1)
        below, above = sizes[at - 1], sizes[at]
        share = (size - below) / (above - below)
        return self.measured[below] + share * (self.measured[above] - self.measured[below])

    def rate(self, waiting: int) -> float:
        """The most items a second, if no more than that many wait at a time."""
        return max(size / self.of(size) for size in self.measured if size <= waiting)


def poisson(rate: float, seconds: float, seed: int) -> list[float]:
    """When calls arrive that know nothing of each other. The same for the same seed."""
    chosen, found, now = random.Random(seed), [], 0.0
    while (now := now + chosen.expovariate(rate)) < seconds:
        found.append(now)
    return found


def latencies(arrivals: Sequence[float], times: Times, max_size: int) -> list[float]:
    """Of a batcher that never lets the device rest while a call waits, and takes all that wait."""
    found: list[float] = []
    free_at = 0.0
    while len(found) < len(arrivals):
        first = len(found)
        start = max(free_at, arrivals[first])
        size = min(bisect.bisect_right(arrivals, start) - first, max_size)
        free_at = start + times.of(size)
        found += [free_at - arrived for arrived in arrivals[first : first + size]]
    return found


def percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(round(share * len(values)), len(values) - 1)]
