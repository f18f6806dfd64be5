"""A clock that a test moves, for modules that take the time from `time`."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest


class Clock:
    """The time of some modules. Their pauses end at once, and move it.

    Args:
        modules: The names of modules that import `time`.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *modules: str) -> None:
        self.now = 1000.0
        #: The pauses.
        self.pauses: list[float] = []
        fake = SimpleNamespace(monotonic=lambda: self.now, sleep=self.sleep)
        for module in modules:
            monkeypatch.setattr(f"{module}.time", fake)
        give_way = asyncio.sleep

        async def sleep(seconds: float, result: object = None) -> object:
            self.sleep(seconds)
            return await give_way(0, result)

        monkeypatch.setattr(asyncio, "sleep", sleep)

    def pass_by(self, seconds: float) -> None:
        self.now += seconds

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.pass_by(seconds)
