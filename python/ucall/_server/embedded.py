"""A server within an event loop that the program runs: asyncio's own, uvloop's, any.

The loop watches the engine's descriptor. Each time it is ready, the worker takes some turns that
wait for nothing. Timers of the worker are timers of the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from ucall import _core

if TYPE_CHECKING:
    from ucall._server.run import ServerParts

__all__ = ["exit_guarded", "serve"]


async def exit_guarded(coroutine: Coroutine[Any, Any, object]) -> object:
    """Turns a coroutine's SystemExit, which would end the program's loop, into RuntimeError."""
    try:
        return await coroutine
    except SystemExit as raised:
        raise RuntimeError("the function raised SystemExit") from raised


def _calls() -> list[asyncio.Task[Any]]:
    """The tasks of calls, among those of the program."""
    code = exit_guarded.__code__
    tasks = asyncio.all_tasks()
    return [task for task in tasks if getattr(task.get_coro(), "cr_code", None) is code]


class EmbeddedLoop:
    """Takes a worker's turns as callbacks of a loop."""

    def __init__(self, driver: _core.LoopDriver, loop: asyncio.AbstractEventLoop) -> None:
        self._driver = driver
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self.finished: asyncio.Future[None] = loop.create_future()
        self._descriptor = driver.attach_embedded(loop, self.schedule_turn)
        loop.add_reader(self._descriptor, self._turn)

    def schedule_turn(self) -> None:
        """Takes a turn in the loop's next iteration."""
        self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        if self.finished.done():
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        try:
            wait_s = self._driver.turn_embedded()
        except BaseException as failure:
            self.finished.set_exception(failure)
            return
        if self._driver.has_ended:
            self.finished.set_result(None)
        elif wait_s == 0:
            self.schedule_turn()
        elif wait_s is not None:
            self._timer = self._loop.call_later(wait_s, self._turn)

    def close(self) -> None:
        self._loop.remove_reader(self._descriptor)
        if self._timer is not None:
            self._timer.cancel()
        if not self.finished.done():
            self.finished.cancel()
        self._driver.detach()


async def serve(
    parts: ServerParts, core: _core.Server, on_start: Callable[[], object] | None
) -> None:
    """Serves until stopped. Cancelled, it drains first; cancelled again, it ends at once."""
    driver = core.start_embedded()
    if driver is None:
        return
    embedded_loop, has_begun = None, False
    try:
        embedded_loop = EmbeddedLoop(driver, asyncio.get_running_loop())
        await parts.lifespan.begin_async(parts.server)
        has_begun = True
        driver.listen()
        if on_start is not None:
            on_start()
        embedded_loop.schedule_turn()
        try:
            await asyncio.shield(embedded_loop.finished)
        except asyncio.CancelledError:
            core.drain(serving=False)
            await embedded_loop.finished
            raise
    finally:
        if embedded_loop is not None:
            embedded_loop.close()
        core.close_embedded(driver)
        parts.functions.pools.close()
        if has_begun:
            await parts.lifespan.end_async(_calls())
