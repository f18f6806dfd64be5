"""What a server does before it accepts its first connection, and after its last one.

Hooks run in the order they were added, and at the end in the opposite one. A ``lifespan`` is
entered before the first hook and left after the last, in one task, as anyio's scopes ask for.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio

    from ucall.server import Server

__all__ = ["Life", "Lifespan"]

Hook = Callable[[], object]
Lifespan = Callable[["Server"], AbstractAsyncContextManager[object]]


class Life:
    """The hooks of one server."""

    def __init__(self, lifespan: Lifespan | None) -> None:
        if lifespan is not None and not callable(lifespan):
            kind = type(lifespan).__name__
            raise TypeError(f"lifespan: expected a function of the server, got {kind}")
        self._lifespan = lifespan
        self.startup: list[Hook] = []
        self.shutdown: list[Hook] = []
        self._leave: asyncio.Event | None = None
        self._lived: asyncio.Task[None] | None = None

    @property
    def is_async(self) -> bool:
        """Whether any of it needs an event loop."""
        hooks = self.startup + self.shutdown
        return self._lifespan is not None or any(map(_is_coroutine_function, hooks))

    def begin(self) -> None:
        """Runs the hooks of a server that needs no event loop."""
        for hook in self.startup:
            hook()

    def end(self) -> None:
        for hook in reversed(self.shutdown):
            hook()

    async def begin_async(self, server: Server) -> None:
        """Enters the lifespan, then runs the hooks, async ones included."""
        if self._lifespan is not None:
            await self._enter(server, self._lifespan)
        for hook in self.startup:
            await _done(hook())

    async def end_async(self) -> None:
        """Runs the hooks, then leaves the lifespan, even if a hook raises."""
        try:
            for hook in reversed(self.shutdown):
                await _done(hook())
        finally:
            if self._leave is not None and self._lived is not None:
                self._leave.set()
                await self._lived
                self._leave = self._lived = None

    async def _enter(self, server: Server, lifespan: Lifespan) -> None:
        import asyncio

        leave = self._leave = asyncio.Event()
        entered: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def live() -> None:
            async with lifespan(server):
                entered.set_result(None)
                await leave.wait()

        lived = self._lived = asyncio.ensure_future(live())
        await asyncio.wait([entered, lived], return_when=asyncio.FIRST_COMPLETED)
        if lived.done():
            self._leave = self._lived = None
            await lived


def _is_coroutine_function(hook: Hook) -> bool:
    import inspect  # here, because it is a third of what importing ucall would cost

    return inspect.iscoroutinefunction(hook)


async def _done(result: Any) -> None:
    if isinstance(result, Awaitable):
        await result
