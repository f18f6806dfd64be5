"""The event loop of a server that has async functions: asyncio's, with the engine as its wait.

asyncio asks its selector to wait. Ours lets the worker take a turn instead, which waits for
connections and for asyncio's own descriptors together: those are kept by an ordinary selector,
whose one descriptor the engine watches.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Mapping
from typing import Any

from ucall import _core

__all__ = ["Loop", "attach", "close", "make"]


class TurningSelector(selectors.BaseSelector):
    """A selector whose wait is a turn of a worker, while there is one."""

    def __init__(self) -> None:
        self._own = selectors.DefaultSelector()
        self.pump: _core.Pump | None = None

    def fileno(self) -> int:
        """Readable when one of asyncio's descriptors is ready."""
        descriptor: int = self._own.fileno()
        return descriptor

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._own.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._own.unregister(fileobj)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._own.modify(fileobj, events, data)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self.pump is None:
            return self._own.select(timeout)
        if self.pump.turn(timeout):
            return self._own.select(0)
        return []

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._own.get_map()

    def get_key(self, fileobj: Any) -> selectors.SelectorKey:
        return self._own.get_key(fileobj)

    def close(self) -> None:
        self._own.close()


class Loop(asyncio.SelectorEventLoop):
    """asyncio's loop on a `TurningSelector`."""

    def __init__(self) -> None:
        self.turning = TurningSelector()
        super().__init__(self.turning)


def make() -> Loop:
    """A loop that no worker turns in yet."""
    return Loop()


def attach(pump: _core.Pump, loop: Loop) -> None:
    """Lets a worker take its turns as the loop's wait."""
    pump.attach(loop, loop.turning.fileno())
    loop.turning.pump = pump


def close(pump: _core.Pump, loop: Loop) -> None:
    """Cancels what still runs, and closes the loop."""
    loop.turning.pump = None
    pump.detach()
    try:
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        if tasks:
            loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        loop.close()
