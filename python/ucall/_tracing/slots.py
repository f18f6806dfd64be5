"""The spans of calls in slots: each one begins when its call gets a slot.

It ends with the call. The generator learns in its next step of a call that others have ended, so
the span of such a call ends then. No span is active while a step runs, which is for many calls.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from ucall._core import END
from ucall._functions.slots import SlotFunction

if TYPE_CHECKING:
    from ucall._core import Context, Slot, Slots

__all__ = ["wrap"]

Pairs = Iterable[tuple[Any, Any]]


class Span(Protocol):
    """The span of a call."""

    def end(self, error: BaseException | None, /) -> None:
        """Ends the span with what the function raised."""


def wrap(function: Any, mode: str, begin: Callable[[Context], Span]) -> SlotFunction:
    """A function with slots and the spans of its calls."""

    def run(slots: Slots[Any]) -> Iterator[Pairs]:
        with _SlotSpans(slots, begin) as spans, contextlib.closing(function.start(slots)) as steps:
            spans.follow()
            for pairs in steps:
                yield spans.end_by(pairs)
                spans.follow()

    async def run_async(slots: Slots[Any]) -> AsyncIterator[Pairs]:
        with _SlotSpans(slots, begin) as spans:
            async with contextlib.aclosing(function.start(slots)) as steps:
                spans.follow()
                async for pairs in steps:
                    yield spans.end_by(pairs)
                    spans.follow()

    return SlotFunction(run_async if mode == "async_generator" else run, function)


class _SlotSpans:
    """The spans of the calls that have slots."""

    def __init__(self, slots: Slots[Any], begin: Callable[[Context], Span]) -> None:
        self._slots = slots
        self._begin = begin
        self._spans: dict[Slot[Any], Span] = {}

    def __enter__(self) -> _SlotSpans:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        for slot in list(self._spans):
            self._end(slot, error)

    def follow(self) -> None:
        """Begins and ends spans as the calls have changed since the last step."""
        for slot in self._slots.left:
            self._end(slot, None)
        for slot in self._slots.joined:
            self._spans[slot] = self._begin(slot.context)

    def end_by(self, pairs: Pairs) -> Pairs:
        """What a step has yielded, after the spans that it ends."""
        pairs = list(pairs)
        for slot, entry in pairs:
            if entry is END or isinstance(entry, BaseException):
                self._end(slot, entry if isinstance(entry, BaseException) else None)
        return pairs

    def _end(self, slot: Slot[Any], error: BaseException | None) -> None:
        if (span := self._spans.pop(slot, None)) is not None:
            span.end(error)
