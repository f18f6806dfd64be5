"""The median of samples with its confidence interval, by bootstrap."""

import random
import statistics
from collections.abc import Sequence

from harness.report import Spread

RESAMPLES = 2000
CONFIDENCE = 0.95


def interval(values: Sequence[float]) -> Spread | None:
    """The median, and the ends of its 95% interval: the medians of resamples with replacement. The
    same for the same values."""
    if not values:
        return None
    chosen = random.Random(len(values))
    medians = sorted(
        statistics.median(chosen.choices(values, k=len(values))) for _ in range(RESAMPLES)
    )
    tail = round(RESAMPLES * (1 - CONFIDENCE) / 2)
    return Spread(statistics.median(values), medians[tail], medians[-1 - tail])
