"""A decoder with slots, of every kind, that a test holds before its steps."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import ucall

#: Where a generator with slots runs: on the server's thread, as a task, in a thread.
KINDS = ["plain", "async", "thread"]


@dataclass
class Prompt:
    n: int
    size: int = 0

    def __post_init__(self) -> None:
        if self.n == 13:
            raise ValueError("n: 13 brings bad luck")


Pairs = list[tuple[ucall.Slot[Prompt], Any]]


class Decoder:
    """Serves `decode(n, size)`: n items, each the position, or a str that long; -1: no end.

    n = 99 raises within the step, and 98 is an exception for that call alone.
    """

    def __init__(self, kind: str, slots: int = 8) -> None:
        self.kind = kind
        self.slots = slots
        #: Steps that may be taken; without a limit if it is not held.
        self.allowed = threading.Semaphore(0)
        self.is_held = False
        self.runs = self.steps = self.closed = 0
        #: By step: the params ``n`` of those that have joined, left, and are active.
        self.seen: list[tuple[list[int], list[int], list[int]]] = []
        self.contexts: list[ucall.Context] = []
        self.indices: list[int] = []
        self._positions: dict[ucall.Slot[Prompt], int] = {}

    def add_to(self, server: ucall.Server, **options: Any) -> None:
        function = self.later if self.kind == "async" else self.generate
        threads = self.kind == "thread"
        options = {"name": "decode", "slots": self.slots, "threads": threads or None} | options
        server.batch(function, **options)

    def hold(self) -> Decoder:
        self.is_held = True
        return self

    def allow(self, steps: int = 1) -> None:
        for _ in range(steps):
            self.allowed.release()

    def generate(self, slots: ucall.Slots[Prompt]) -> Iterator[ucall.SlotItems[object]]:
        self.runs += 1
        try:
            while True:
                if self.is_held:
                    assert self.allowed.acquire(timeout=60)
                yield self._step(slots)
        finally:
            self.closed += 1

    async def later(self, slots: ucall.Slots[Prompt]) -> AsyncIterator[ucall.SlotItems[object]]:
        self.runs += 1
        try:
            while True:
                while self.is_held and not self.allowed.acquire(blocking=False):
                    await asyncio.sleep(0.001)
                yield self._step(slots)
        finally:
            self.closed += 1

    def _step(self, slots: ucall.Slots[Prompt]) -> Pairs:
        self.steps += 1
        for slot in slots.joined:
            self._positions[slot] = 0
            self.contexts.append(slot.context)
            self.indices.append(slot.index)
        for slot in slots.left:
            del self._positions[slot]
        views = (slots.joined, slots.left, slots.active)
        joined, left, active = ([slot.params.n for slot in view] for view in views)
        self.seen.append((joined, left, active))
        assert slots.active and set(slots.active) <= self._positions.keys()
        return [pair for slot in slots.active for pair in self._entries(slot)]

    def _entries(self, slot: ucall.Slot[Prompt]) -> Pairs:
        position, params = self._positions[slot], slot.params
        if params.n == 99:
            raise RuntimeError("a step failed")
        if params.n == 98:
            return [(slot, ucall.RPCError(7, "no more"))]
        if params.n == 0:
            return [(slot, ucall.END)]
        self._positions[slot] = position + 1
        item: Any = "x" * params.size if params.size else position
        ends = [(slot, ucall.END)] if position + 1 == params.n else []
        return [(slot, item), *ends]
