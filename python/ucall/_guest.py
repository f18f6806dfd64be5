"""A server within an event loop that somebody else runs: asyncio's own, uvloop's, any.

The engine's descriptor is one of those that the loop watches; each time it is ready the worker
takes some turns that wait for nothing. Timers of the worker are timers of the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from ucall import _core

if TYPE_CHECKING:
    from ucall.server import Server

__all__ = ["serve"]


async def contained(coroutine: Coroutine[Any, Any, object]) -> object:
    """Lets a function that calls `sys.exit` fail its call, and not end somebody else's loop."""
    try:
        return await coroutine
    except SystemExit as left:
        raise RuntimeError("the function raised SystemExit") from left


class Guest:
    """Turns a worker as a loop's callbacks."""

    def __init__(self, pump: _core.Pump, loop: asyncio.AbstractEventLoop) -> None:
        self._pump = pump
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self.finished: asyncio.Future[None] = loop.create_future()
        self._descriptor = pump.attach_guest(loop, self.soon)
        loop.add_reader(self._descriptor, self._turn)

    def soon(self) -> None:
        """Takes a turn when the loop comes to it."""
        self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        if self.finished.done():
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        try:
            wait_s = self._pump.turn_guest()
        except BaseException as failure:
            self.finished.set_exception(failure)
            return
        if wait_s is None:
            return
        if wait_s < 0:
            self.finished.set_result(None)
        elif wait_s == 0:
            self.soon()
        else:
            self._timer = self._loop.call_later(wait_s, self._turn)

    def close(self) -> None:
        self._loop.remove_reader(self._descriptor)
        if self._timer is not None:
            self._timer.cancel()
        if not self.finished.done():
            self.finished.cancel()
        self._pump.detach()


async def serve(server: Server, core: _core.Server) -> None:
    """Serves until stopped. Cancelled, it drains first; cancelled again, it ends at once."""
    pump = core.enter()
    if pump is None:
        return
    guest = None
    try:
        guest = Guest(pump, asyncio.get_running_loop())
        await server._life.begin_async(server)
        pump.listen()
        guest.soon()
        try:
            await asyncio.shield(guest.finished)
        except asyncio.CancelledError:
            core.drain(serving=False)
            await guest.finished
            raise
    finally:
        if guest is not None:
            guest.close()
        core.leave(pump)
        for pool in server._pools.values():
            pool.close()
        await server._life.end_async()
