"""The event loop of a server that has async functions: asyncio's, with the engine as its wait.

asyncio asks its selector to wait. Ours lets the worker take a turn instead, which waits for
connections and for asyncio's own descriptors together: those are kept by an ordinary selector,
whose one descriptor the engine watches.
"""

from __future__ import annotations

import asyncio
import collections
import logging
import selectors
from collections.abc import Callable, Mapping
from typing import Any

from ucall import _core

__all__ = ["Loop", "attach", "close", "new_loop"]

#: asyncio's own, for what asyncio itself would say.
log = logging.getLogger("asyncio")


class WorkerSelector(selectors.BaseSelector):
    """A selector whose wait is a turn of a worker, while there is one."""

    def __init__(self) -> None:
        self._own = selectors.DefaultSelector()
        self.driver: _core.LoopDriver | None = None

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
        if self.driver is None:
            return self._own.select(timeout)
        if self.driver.turn(timeout):
            return self._own.select(0)
        return []

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._own.get_map()

    def get_key(self, fileobj: Any) -> selectors.SelectorKey:
        return self._own.get_key(fileobj)

    def close(self) -> None:
        self._own.close()


class ReadyQueue(collections.deque[Any]):
    """asyncio's own queue, which stays empty: what it puts there goes to the core. From Python 3.14
    on that is what other threads want to be called."""

    def __init__(self, loop_queues: _core.LoopQueues) -> None:
        super().__init__()
        self._loop_queues = loop_queues

    def append(self, handle: Any) -> None:
        self._loop_queues._add_callback(handle)


class Loop(_core.LoopQueues, asyncio.SelectorEventLoop):  # type: ignore[misc]
    """asyncio's loop on a `WorkerSelector`, with its callbacks and timers kept by the core."""

    # Private to asyncio, and there since it is.
    _stopping: bool
    _process_events: Callable[[list[tuple[selectors.SelectorKey, int]]], None]

    def __init__(self) -> None:
        self.worker_selector = WorkerSelector()
        super().__init__(self.worker_selector)
        self._ready = ReadyQueue(self)

    def run_forever(self) -> None:
        self.begin_slices()
        try:
            super().run_forever()
        finally:
            self.end_slices()

    def _run_once(self) -> None:
        """Waits until there is something to do, and does some of it; as asyncio's, in slices."""
        ready = self.worker_selector.select(0 if self._stopping else self.select_timeout())
        if ready:
            self._process_events(ready)
        self.run_slice()

    def stop(self) -> None:
        super().stop()
        self.end_slice()

    def set_debug(self, enabled: bool) -> None:
        super().set_debug(enabled)
        self.set_debug_timing(enabled)

    def set_task_factory(self, factory: Any) -> None:
        super().set_task_factory(factory)
        self.use_task_factory(factory is not None)

    def _report_callback(self, description: str, elapsed_s: float) -> None:
        """Names a callback that held up the others, in debug mode."""
        if elapsed_s >= self.slow_callback_duration:
            log.warning("Executing %s took %.3f seconds", description, elapsed_s)

    def close(self) -> None:
        super().close()
        self.clear()


def new_loop() -> Loop:
    """A loop that no worker turns in yet."""
    return Loop()


def attach(driver: _core.LoopDriver, loop: Loop) -> None:
    """Lets a worker take its turns as the loop's wait."""
    driver.attach(loop, loop.worker_selector.fileno())
    loop.worker_selector.driver = driver


def close(driver: _core.LoopDriver, loop: Loop) -> None:
    """Cancels what still runs, and closes the loop."""
    loop.worker_selector.driver = None
    driver.detach()
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
