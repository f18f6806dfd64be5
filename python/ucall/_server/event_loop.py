"""The event loop of a server that has async functions: its selector takes turns of the worker.

`asyncio.SelectorEventLoop` waits by its selector's ``select``, which here takes turns of a worker.
A turn waits for connections and for asyncio's descriptors together: an ordinary selector holds
asyncio's, and the engine watches the descriptor of that selector.

``select`` takes turns until one of them has given the loop something to do. `call_soon` and
`call_at`, which asyncio schedules everything by, report that. Other threads wake the loop through a
descriptor of asyncio's own. Nothing here uses a private part of asyncio.

The steps of tasks need no handle, because nothing cancels them. They wait in a list of their own,
which ``select`` runs: that costs half of what asyncio's queue does. They keep their place among all
callbacks: a step that follows another callback, and steps before a callback of ``select``, go to
asyncio's queue.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import selectors
import traceback
import types
from collections.abc import Callable, Coroutine, Mapping
from contextvars import Context
from typing import Any, TypeVarTuple
from weakref import WeakSet

from ucall import _core
from ucall._server.lifespan import runs_functions

__all__ = ["Loop", "attach", "close", "new_task", "run"]

Ts = TypeVarTuple("Ts")


class WorkerSelector(selectors.BaseSelector):
    """A selector whose wait is turns of a worker, while it has one."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._own = selectors.DefaultSelector()
        self.driver: _core.LoopDriver | None = None

    def fileno(self) -> int:
        """The descriptor that is readable when one of asyncio's is ready."""
        descriptor: int = self._own.fileno()
        return descriptor

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._own.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._own.unregister(fileobj)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._own.modify(fileobj, events, data)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        loop = self._loop
        loop.is_selecting, loop.steps_must_queue = True, False
        try:
            if loop.steps:
                loop.run_steps()
                timeout = 0
            if self.driver is None:
                return self._own.select(timeout)
            if self.driver.turn(timeout):
                return self._own.select(0)
            return []
        finally:
            loop.is_selecting = False

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._own.get_map()

    def get_key(self, fileobj: Any) -> selectors.SelectorKey:
        return self._own.get_key(fileobj)

    def close(self) -> None:
        self._own.close()


class Loop(asyncio.SelectorEventLoop):
    """An event loop whose wait is turns of a worker."""

    def __init__(self) -> None:
        #: Steps of tasks, which the next ``select`` runs.
        self.steps: list[tuple[Context, Callable[[], object]]] = []
        #: The type of these steps; None if they have no type of their own.
        self.step_type: type | None = None
        self.is_selecting = False
        #: Whether steps have to follow a callback in asyncio's queue.
        self.steps_must_queue = False
        self.worker_selector = WorkerSelector(self)
        super().__init__(self.worker_selector)
        #: The variables of a task that `new_task` makes, and its first step.
        self.variables: Context | None = None
        self.first_step: Callable[[], object] | None = None
        #: Tasks that functions have made, beside those of their calls.
        self._made: WeakSet[asyncio.Task[Any]] = WeakSet()
        #: Returned for callbacks that run outside the queue, whose callers keep no handle.
        self._no_handle = asyncio.Handle(print, (), self)

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:
        task = super().create_task(coro, **options)
        if runs_functions.get():
            self._made.add(task)
        return task

    def made_tasks(self) -> list[asyncio.Task[Any]]:
        """The tasks that functions have made and that still run: a drain waits for them.

        Those of hooks may run for as long as the server, so it does not wait for them.
        """
        return [task for task in self._made if not task.done()]

    def cancel_made_tasks(self) -> None:
        """Cancels the tasks that the drain has waited for in vain."""
        tasks = [task for task in self.made_tasks() if not task.cancelling()]
        if not tasks:
            return
        names = sorted({getattr(task.get_coro(), "__qualname__", "a task") for task in tasks})
        line = "%d tasks that functions have made are cancelled, because the server ends: %s"
        logging.getLogger("ucall").warning(line, len(tasks), ", ".join(names[:5]))
        for task in tasks:
            task.cancel()

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        driver = self.worker_selector.driver
        if context is not None:
            if context is self.variables:
                self.variables, self.first_step = None, callback
                return self._no_handle
            if type(callback) is self.step_type and not self.steps_must_queue:
                self.steps.append((context, callback))
                if self.is_selecting and driver is not None:
                    driver.end_wait()
                return self._no_handle
        if type(callback) is _core.DoneCallback:
            # Only hands in the outcome of a call, whose reply need not wait for an iteration.
            callback(*args)
            return self._no_handle
        if driver is not None:
            driver.end_wait()
        if not self.is_selecting:
            self.steps_must_queue = True
        elif self.steps:
            self._queue_steps()
        return super().call_soon(callback, *args, context=context)

    def run_steps(self) -> None:
        """Takes the steps of tasks that wait. One that raises SystemExit leaves the others."""
        steps, self.steps = iter(self.steps), []
        try:
            for context, step in steps:
                context.run(step)
        except BaseException:
            self.steps[:0] = steps
            raise

    def _queue_steps(self) -> None:
        steps, self.steps = self.steps, []
        for context, step in steps:
            super().call_soon(step, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        driver = self.worker_selector.driver
        if driver is not None:
            driver.end_wait()
        return super().call_at(when, callback, *args, context=context)


def _step_type(loop: Loop) -> type | None:
    """The type of the callbacks by which a task asks for its steps; None if that is unknown."""

    async def done() -> None:
        pass

    context = loop.variables = contextvars.copy_context()
    asyncio.Task(done(), loop=loop, context=context)
    step, loop.first_step, loop.variables = loop.first_step, None, None
    if step is None:
        return None
    context.run(step)
    return None if isinstance(step, types.MethodType) or loop.get_debug() else type(step)


def new_task(coroutine: Coroutine[Any, Any, object], *, loop: Loop, context: Context) -> Any:
    """A task whose first step is taken at once, as ``eager_start`` does from CPython 3.12 on.

    A task asks its loop by `call_soon` for its first step, with the variables that no other has.
    """
    if loop.worker_selector.driver is None:
        return asyncio.Task(coroutine, loop=loop, context=context)
    loop.variables = context
    try:
        task = asyncio.Task(coroutine, loop=loop, context=context)
    finally:
        first_step, loop.variables, loop.first_step = loop.first_step, None, None
    if first_step is not None:
        try:
            context.run(first_step)
        except BaseException:
            # The caller reports it, so the task must not log it again when it is freed. It has not
            # ended if a signal's handler has raised.
            if task.done() and not task.cancelled():
                task.exception()
            raise
    return task


def attach(driver: _core.LoopDriver, loop: Loop) -> None:
    """Makes the worker's turns the loop's wait."""
    driver.attach(loop, loop.worker_selector.fileno())
    loop.worker_selector.driver = driver
    loop.step_type = _step_type(loop)


def run(driver: _core.LoopDriver, loop: Loop) -> None:
    """Runs the loop until the worker's run is over.

    A task that raises SystemExit fails its call and not the server.
    """
    while True:
        try:
            return loop.run_forever()
        except SystemExit as raised:
            if not _comes_from_coroutine(raised):
                raise
            if driver.has_ended:
                return


def _comes_from_coroutine(raised: BaseException) -> bool:
    frames = (frame for frame, _ in traceback.walk_tb(raised.__traceback__))
    return any(frame.f_code.co_flags & inspect.CO_COROUTINE for frame in frames)


def close(driver: _core.LoopDriver, loop: Loop) -> None:
    """Cancels the tasks that still run, and closes the loop."""
    loop.worker_selector.driver = None
    driver.detach()
    with asyncio.Runner(loop_factory=lambda: loop):
        pass
