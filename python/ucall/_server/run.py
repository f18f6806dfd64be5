"""One run of a server, from its startup hooks to its shutdown hooks.

A server without async functions runs in the core alone. From the first async function on, an event
loop runs whose wait is the worker's turns (`event_loop`, which is imported only then).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ucall import _core
from ucall._server.lifespan import runs_functions

if TYPE_CHECKING:
    from ucall._functions.table import Functions
    from ucall._server.event_loop import Loop
    from ucall._server.lifespan import LifespanHooks

__all__ = ["ServerParts", "run_server"]


class ServerParts:
    """What a run uses of a server."""

    def __init__(self, functions: Functions, lifespan: LifespanHooks, server: object) -> None:
        self.functions = functions
        self.lifespan = lifespan
        #: What the lifespan is called with.
        self.server = server


def run_server(
    parts: ServerParts, on_start: Callable[[], object] | None, driver: _core.LoopDriver
) -> None:
    """Runs until stopped or bounded; a bounded run keeps its event loop for the next."""
    is_new = driver.is_new
    if is_new:
        needs_loop = parts.functions.is_async or parts.lifespan.is_async
        if not _begin(parts, driver, _attached_loop(driver) if needs_loop else None):
            return
    try:
        _serve(driver, on_start)
    except BaseException:
        _end(parts, driver)
        raise
    if driver.is_stopped:
        _end(parts, driver)


def _serve(driver: _core.LoopDriver, on_start: Callable[[], object] | None) -> None:
    # Calls copy the variables, and plain functions run in them.
    before = runs_functions.set(True)
    try:
        if driver.is_new:
            driver.listen()
        if on_start is not None:
            on_start()
        _take_turns(driver)
    finally:
        runs_functions.reset(before)


def _begin(parts: ServerParts, driver: _core.LoopDriver, loop: Loop | None) -> bool:
    """Runs the startup hooks. Returns False if the server was stopped meanwhile."""
    if loop is None:
        parts.lifespan.begin()
        return True
    import asyncio

    begin = loop.create_task(parts.lifespan.begin_async(parts.server))
    try:
        loop.run_until_complete(begin)
    except BaseException:
        # The end of the worker stops the loop.
        is_stopped = driver.has_ended and not begin.done()
        if is_stopped:
            loop.worker_selector.driver = None
            begin.cancel()
            loop.run_until_complete(asyncio.wait([begin]))
        _close(driver, loop)
        if not is_stopped:
            raise
        return False
    return True


def _take_turns(driver: _core.LoopDriver) -> None:
    if driver.event_loop is None:
        driver.run()
    if not driver.has_ended:
        from ucall._server import event_loop

        event_loop.run(driver, _attached_loop(driver))


def _end(parts: ServerParts, driver: _core.LoopDriver) -> None:
    parts.functions.pools.close()
    loop: Loop | None = driver.event_loop
    if loop is None:
        return parts.lifespan.end()
    try:
        loop.worker_selector.driver = None
        loop.run_until_complete(_end_async(parts, loop))
    finally:
        _close(driver, loop)


async def _end_async(parts: ServerParts, loop: Loop) -> None:
    import asyncio

    # Calls that the drain has cancelled cancel their own tasks first.
    await asyncio.sleep(0)
    loop.cancel_made_tasks()
    await parts.lifespan.end_async(asyncio.all_tasks(loop))


def _attached_loop(driver: _core.LoopDriver) -> Loop:
    """The loop that the worker has already, or a new one."""
    from ucall._server import event_loop

    loop: Loop = driver.event_loop or event_loop.Loop()
    event_loop.attach(driver, loop)
    return loop


def _close(driver: _core.LoopDriver, loop: Loop) -> None:
    from ucall._server import event_loop

    event_loop.close(driver, loop)
