"""One run of a server, from before its first connection to after its last one.

A server without async functions runs in the core alone. From the first async function on, an event
loop runs, and the core's turns are its wait; see `ucall._loop`, which is imported only then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ucall import _core

if TYPE_CHECKING:
    from ucall._loop import Loop
    from ucall.server import Server

__all__ = ["conduct"]


def conduct(server: Server, on_start: Callable[[], object] | None, pump: _core.Pump) -> None:
    """Runs until stopped or bounded; a bounded run keeps its event loop for the next."""
    is_fresh = pump.is_fresh
    if is_fresh:
        needs_loop = server._is_async or server._life.is_async
        _begin(server, pump, _attached(pump) if needs_loop else None)
    try:
        if is_fresh:
            pump.listen()
        if on_start is not None:
            on_start()
        _turn(pump)
    except BaseException:
        _end(server, pump)
        raise
    if pump.is_stopped:
        _end(server, pump)


def _begin(server: Server, pump: _core.Pump, loop: Loop | None) -> None:
    if loop is None:
        return server._life.begin()
    try:
        loop.run_until_complete(server._life.begin_async(server))
    except BaseException:
        _close(pump, loop)
        raise


def _turn(pump: _core.Pump) -> None:
    """Takes turns, within an event loop from the moment one is needed."""
    if pump.event_loop is None and pump.run():
        return
    _attached(pump).run_forever()


def _end(server: Server, pump: _core.Pump) -> None:
    for pool in server._pools.values():
        pool.close()
    loop: Loop | None = pump.event_loop
    if loop is None:
        return server._life.end()
    try:
        loop.turning.pump = None
        loop.run_until_complete(server._life.end_async())
    finally:
        _close(pump, loop)


def _attached(pump: _core.Pump) -> Loop:
    """A loop in which the worker takes its turns: the one that it has already, or a new one."""
    from ucall import _loop

    loop: Loop = pump.event_loop or _loop.make()
    _loop.attach(pump, loop)
    return loop


def _close(pump: _core.Pump, loop: Loop) -> None:
    from ucall import _loop

    _loop.close(pump, loop)
