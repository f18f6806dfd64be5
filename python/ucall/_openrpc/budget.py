"""What reading one description may cost.

A description of a few kilobytes can describe a type of any size: each of its schemas may refer
twice to the next. So each schema that is read, named or written takes a step, a long one several,
and the steps of a description are limited. Time is limited as well, for work between the steps.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

__all__ = ["DESCRIPTION_BYTES_MAX", "Budget", "DescriptionError"]

#: A description as received.
DESCRIPTION_BYTES_MAX = 1 << 20
#: For each description; and as many more as its values take when each is read so many times, as a
#: long description has more to write.
STEPS_MAX = 10_000
READS_MAX = 16
#: The processor's time of the thread, because a busy machine makes no description hostile.
SECONDS_MAX = 1.0

#: As for all JSON: an array within 127 others.
_DEPTH_MAX = 128
_CHARACTERS_OF_A_STEP = 16
_STEPS_BETWEEN_CLOCKS = 64


class DescriptionError(ValueError):
    """A server's description is invalid, or too long to be read. The message is one line."""


class Budget:
    """The steps and the time that are left for one description.

    Args:
        document: The JSON value of the description.
        clock: The seconds that were spent.

    Raises:
        DescriptionError: It nests too deep, or has a number that is not finite.
    """

    def __init__(self, document: object, clock: Callable[[], float] = time.thread_time) -> None:
        self._clock = clock
        self._ends_at = clock() + SECONDS_MAX
        self.steps_max = STEPS_MAX + READS_MAX * _steps_of(document)
        self._steps = 0

    def spend(self, characters: int) -> None:
        """Takes the steps for a text of so many characters.

        Raises:
            DescriptionError: No steps or no time are left.
        """
        before = self._steps
        self._steps += 1 + characters // _CHARACTERS_OF_A_STEP
        if self._steps > self.steps_max:
            raise DescriptionError(f"a description that takes more than {self.steps_max} steps")
        if before % _STEPS_BETWEEN_CLOCKS == 0 and self._clock() > self._ends_at:
            raise DescriptionError(f"a description that takes more than {SECONDS_MAX:g} s")


def _steps_of(document: object) -> int:
    """The steps for each value in a JSON value. It is no recursion, as the value may nest too deep
    for one."""
    steps = 0
    level, depth = [document], 0
    while level:
        steps += len(level)
        depth += 1
        if depth > _DEPTH_MAX:
            raise DescriptionError(f"a description that nests deeper than {_DEPTH_MAX}")
        inner: list[object] = []
        for value in level:
            if isinstance(value, dict):
                inner += value.values()
                steps += sum(map(len, value)) // _CHARACTERS_OF_A_STEP
            elif isinstance(value, list):
                inner += value
            elif isinstance(value, str):
                steps += len(value) // _CHARACTERS_OF_A_STEP
            elif isinstance(value, float) and not math.isfinite(value):
                raise DescriptionError(f"a description with the number {value}")
        level = inner
    return steps
