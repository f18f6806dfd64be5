"""Checks that concurrent calls of a store behave as if they had run one after another.

Herlihy and Wing's linearizability: some order explains all answers, in which a call that ended
before another began comes first. A call without an answer has run at any time after it began, or
never. The search is Wing and Gong's with Lowe's set of visited states ("Testing for
linearizability", 2017), for each key on its own, which suffices.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple


class _Unanswered:
    def __repr__(self) -> str:
        return "no answer"


UNANSWERED = _Unanswered()


@dataclass
class Call:
    """A call on one key, and its answer once it has one."""

    method: str
    #: The params behind the key; values are numbers.
    params: tuple[int, ...]
    began: float
    ended: float = math.inf
    #: The result as JSON has it; of `get` a tuple of value and version.
    answer: Any = UNANSWERED


class State(NamedTuple):
    """What a key has between two calls."""

    #: ``None``: the key is absent.
    value: int | None = None
    version: int = 0
    #: False after a write that did not return its version, which is then at least `version`.
    is_exact: bool = True

    def after(self, call: Call) -> State | None:
        """The state after a call that found this one; ``None`` if the answer contradicts it."""
        after: State | None = _STEPS[call.method](self, call.answer, *call.params)
        return after

    def _get(self, answer: Any) -> State | None:
        if answer is UNANSWERED:
            return self
        value, version = answer or (None, self.version)
        return State(value, version) if value == self.value and self._may_be(version) else None

    def _put(self, answer: Any, value: int) -> State | None:
        if answer is UNANSWERED:
            return State(value, self.version + 1, is_exact=False)
        return State(value, answer) if answer is not None and answer > self.version else None

    def _delete(self, answer: Any) -> State | None:
        is_possible = answer in (UNANSWERED, self.value is not None)
        return State(None, self.version) if is_possible else None

    def _cas(self, answer: Any, version: int, value: int) -> State | None:
        if answer is not None:
            return self._put(answer, value) if self._is_at(version) else None
        # An inexact version may be another than the caller's, which may be of an earlier value.
        is_surely_at = self._is_at(version) and (self.is_exact or self.value is None)
        return None if is_surely_at else self

    def _increment(self, answer: Any, by: int) -> State | None:
        value = (self.value or 0) + by
        is_possible = answer in (UNANSWERED, value)
        return State(value, self.version + 1, is_exact=False) if is_possible else None

    def _is_at(self, version: int) -> bool:
        """Whether `cas` with this version writes."""
        return version == 0 if self.value is None else self._may_be(version)

    def _may_be(self, version: int) -> bool:
        return version == self.version if self.is_exact else version >= self.version


_STEPS: dict[str, Any] = {
    "get": State._get,
    "put": State._put,
    "delete": State._delete,
    "cas": State._cas,
    "increment": State._increment,
}


def unexplained(calls: Sequence[Call], state: State) -> list[Call]:
    """Nothing if the calls of one key are linearizable from this state; else the first calls of
    which none can come next."""
    calls = sorted(calls, key=lambda call: call.began)
    answered = sum(1 << at for at, call in enumerate(calls) if call.answer is not UNANSWERED)
    # The calls of an order's beginning, as a set of bits, and the state after them.
    orders, visited = [(0, state)], {(0, state)}
    longest = 0
    while orders:
        done, state = orders.pop()
        if done & answered == answered:
            return []
        longest = max(longest, done, key=int.bit_count)
        steps = [(at, state.after(calls[at])) for at in _next_calls(calls, done)]
        # A call that changes nothing can as well run now; without an answer, never.
        idle = [at for at, after in steps if after == state and answered >> at & 1]
        if idle:
            orders.append((done | sum(1 << at for at in idle), state))
            continue
        # The call that ended first is tried first.
        for at, after in sorted(steps, key=lambda step: -calls[step[0]].ended):
            if after is None or after == state or (done | 1 << at, after) in visited:
                continue
            visited.add((done | 1 << at, after))
            orders.append((done | 1 << at, after))
    return [calls[at] for at in _next_calls(calls, longest)]


def _next_calls(calls: Sequence[Call], done: int) -> Iterator[int]:
    """The calls that began before any that is left had ended."""
    first_end = math.inf
    for at in range(((done + 1) & ~done).bit_length() - 1, len(calls)):
        if calls[at].began > first_end:
            return
        if not done >> at & 1:
            first_end = min(first_end, calls[at].ended)
            yield at
