"""A server that binds no address: the program makes its connections, each a pair of sockets."""

from __future__ import annotations

import asyncio
import functools
import socket
from typing import TYPE_CHECKING

from ucall import _core
from ucall._server import embedded, serving_threads

if TYPE_CHECKING:
    from collections.abc import Callable

    from ucall import Process
    from ucall._client.base import ClientBase
    from ucall.server import Server

__all__ = ["connect", "connect_client", "serve", "start"]


def connect(server: Server, peer: tuple[str, int] | Process | None = None) -> socket.socket:
    """A connection to a running server, whose calls come from `peer`, by default this process.

    Raises:
        ConnectionRefusedError: It does not run.
    """
    near, far = socket.socketpair()
    try:
        _core.adopt(server._core, far.detach(), peer)
    except ConnectionRefusedError:
        near.close()
        raise
    return near


def connect_client(
    client: ClientBase, server: Server, peer: tuple[str, int] | Process | None = None
) -> None:
    """Has a client make its connections by `connect`."""
    client._options.address.connector = functools.partial(connect, server, peer)


def start(server: Server) -> None:
    """Starts a server on a new thread, as `Server.start` does."""
    _core.set_binds(server._core, False)
    try:
        server.start()
    finally:
        _core.set_binds(server._core, True)


async def serve(server: Server) -> asyncio.Task[None]:
    """Starts a server within the running event loop. The task ends with it.

    Raises what a startup hook raises.
    """
    started = asyncio.Event()
    task = asyncio.create_task(_serve(server, started.set))
    begun = asyncio.create_task(started.wait())
    try:
        await asyncio.wait([task, begun], return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        task.cancel()
        raise
    finally:
        begun.cancel()
    if task.done():
        await task
    return task


async def _serve(server: Server, on_start: Callable[[], object]) -> None:
    core = server._core
    serving_threads.check_not_suspended(core)
    server._set_on_drain(None)
    core.forget_stop()
    server._thread.idle.clear()
    _core.set_binds(core, False)
    try:
        await embedded.serve(server._parts(), core, on_start)
    finally:
        _core.set_binds(core, True)
        core.flush_access_log()
        server._thread.idle.set()
