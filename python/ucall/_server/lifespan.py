"""The hooks of a server: before its first connection, and after its last one.

Startup hooks run in the order they were added, shutdown hooks in the opposite one. A ``lifespan``
is entered before the first hook and left after the last, in one task, as anyio's scopes require.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio

__all__ = ["LifespanHooks", "runs_functions"]

#: Whether code is that of a function, or was scheduled by one, rather than by a hook.
runs_functions: ContextVar[bool] = ContextVar("ucall.runs_functions", default=False)

#: How long cancelled calls may clean up before the shutdown hooks.
_CLEANUP_S = 2.0

Hook = Callable[[], object]
#: Called with the server.
Lifespan = Callable[[Any], AbstractAsyncContextManager[object]]


class LifespanHooks:
    """The hooks of one server."""

    def __init__(self, lifespan: Lifespan | None) -> None:
        if lifespan is not None and not callable(lifespan):
            kind = type(lifespan).__name__
            raise TypeError(f"lifespan: expected a function of the server, got {kind}")
        self._lifespan = lifespan
        self.startup: list[Hook] = []
        #: Run after all startup hooks: what makes the functions ready for their first call.
        self.preparation: list[Hook] = []
        self.shutdown: list[Hook] = []
        self._exit_event: asyncio.Event | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def is_async(self) -> bool:
        """Whether any of the hooks needs an event loop."""
        hooks = self.startup + self.shutdown
        return self._lifespan is not None or any(map(_is_async, hooks))

    def begin(self) -> None:
        """Runs the startup hooks of a server that needs no event loop."""
        for hook in self.startup + self.preparation:
            _call(hook)

    def end(self) -> None:
        """Runs the shutdown hooks of a server that needs no event loop, even if one raises."""
        with ExitStack() as hooks:
            for hook in self.shutdown:
                hooks.callback(_call, hook)

    async def begin_async(self, server: object) -> None:
        """Enters the lifespan, then runs the startup hooks, async ones included. If one raises, the
        lifespan is left."""
        try:
            if self._lifespan is not None:
                await self._enter(server, self._lifespan)
            for hook in self.startup + self.preparation:
                await _call_async(hook)
        except BaseException:
            await self._leave()
            raise

    async def end_async(self, tasks: Iterable[asyncio.Task[Any]]) -> None:
        """Runs the shutdown hooks, then leaves the lifespan, even if a hook raises.

        Those of the tasks that were cancelled may clean up before: the hooks close what they use.
        """
        async with AsyncExitStack() as hooks:
            hooks.push_async_callback(self._leave)
            for hook in self.shutdown:
                hooks.push_async_callback(_call_async, hook)
            cancelled = [task for task in tasks if task.cancelling()]
            if cancelled:
                import asyncio

                await asyncio.wait(cancelled, timeout=_CLEANUP_S)

    async def _enter(self, server: object, lifespan: Lifespan) -> None:
        import asyncio

        leave = self._exit_event = asyncio.Event()
        entered: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def hold_open() -> None:
            async with lifespan(server):
                entered.set_result(None)
                await leave.wait()

        task = self._task = asyncio.ensure_future(hold_open())
        await asyncio.wait([entered, task], return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            self._exit_event = self._task = None
            await task

    async def _leave(self) -> None:
        leave, task = self._exit_event, self._task
        if leave is not None and task is not None:
            self._exit_event = self._task = None
            leave.set()
            await task


def _is_async(hook: Hook) -> bool:
    from ucall._functions import signatures  # not at the top: it takes longer than `import ucall`

    return signatures.is_async(hook)


def _call(hook: Hook) -> None:
    """Calls a hook without an event loop.

    Raises:
        TypeError: It is a plain function that returned an awaitable.
    """
    result = hook()
    if isinstance(result, Awaitable):
        if isinstance(result, Coroutine):
            result.close()  # Python would warn that it was never awaited.
        kind = type(result).__name__
        raise TypeError(f"{hook!r} returned a {kind}: a hook that waits must be an async function")


async def _call_async(hook: Hook) -> None:
    result = hook()
    if isinstance(result, Awaitable):
        await result
