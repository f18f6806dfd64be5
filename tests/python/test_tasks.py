"""Tasks of async functions: each call has a task, with the behaviour of asyncio's own."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import json
import sys
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

import ucall
from harness import Wire, eventually, let_read, program, request, without_address

Serve = Callable[..., ucall.Server]


def _current() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None and task.get_loop() is asyncio.get_running_loop()
    return task


def test_a_kept_task_is_its_calls_own(hosted: Serve) -> None:
    kept: list[Any] = []

    async def keep(a: int) -> int:
        assert not _current().done()
        kept.append(_current())
        return a

    async def keep_weakly(a: int) -> int:
        kept.append(weakref.ref(_current()))
        return a

    server = hosted(keep, keep_weakly)
    with Wire(server.port) as wire:
        assert [wire.result("keep", [n]) for n in range(3)] == [0, 1, 2]
        assert len(set(map(id, kept))) == 3
        assert [task.result() for task in kept] == [0, 1, 2]
        kept.clear()
        assert [wire.result("keep_weakly", [n]) for n in range(3)] == [0, 1, 2]
        assert len(set(map(id, kept))) == 3


def test_done_callbacks_run(hosted: Serve) -> None:
    ended: list[int] = []

    async def call(a: int) -> int:
        _current().add_done_callback(lambda task: ended.append(task.result()))
        return a

    server = hosted(call)
    with Wire(server.port) as wire:
        assert [wire.result("call", [n]) for n in range(3)] == [0, 1, 2]
        assert eventually(lambda: ended == [0, 1, 2])


def test_a_call_may_cancel_itself(hosted: Serve) -> None:
    waited: list[asyncio.Future[None]] = []

    async def cancel(wait: bool) -> str:
        _current().cancel()
        if wait:
            waited.append(asyncio.get_running_loop().create_future())
            await waited[-1]
        return "not reached"

    async def regret() -> int:
        _current().cancel()
        _current().uncancel()
        return _current().cancelling()

    async def plain() -> int:
        return _current().cancelling()

    server = hosted(cancel, regret, plain)
    with Wire(server.port) as wire:
        for wait in (False, True, False, True, True):
            assert wire.error("cancel", [wait])["code"] == -32007
            assert wire.result("plain") == 0
        assert all(future.cancelled() for future in waited)
        assert "error" in wire.call("regret") or sys.version_info >= (3, 13)
        assert wire.result("plain") == 0


def test_the_reason_of_a_cancellation_is_reported(hosted: Serve) -> None:
    async def cancel() -> list[Any]:
        _current().cancel("the reason")
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError as cancelled:
            return list(cancelled.args)
        return ["not reached"]

    with Wire(hosted(cancel).port) as wire:
        assert [wire.result("cancel") for _ in range(3)] == [["the reason"]] * 3


def test_a_task_shows_the_coroutine_of_its_call(serve: Serve) -> None:
    async def first(wait: bool) -> list[Any]:
        if wait:
            await asyncio.sleep(0)
        coroutine: Any = _current().get_coro()
        return [coroutine.__name__, coroutine.cr_code.co_name, "first" in repr(_current())]

    async def second() -> str:
        return str(getattr(_current().get_coro(), "__name__", None))

    with Wire(serve(first, second).port) as wire:
        for wait in (False, False, True, True, False):
            assert wire.result("first", [wait]) == ["first", "first", True]
            assert wire.result("second") == "second"


def test_names_and_variables_stay_with_their_call(hosted: Serve) -> None:
    variable = contextvars.ContextVar("variable", default=0)

    async def call(wait: bool) -> list[Any]:
        before = _current().get_name(), variable.get()
        _current().set_name("mine")
        variable.set(variable.get() + 1)
        if wait:
            await asyncio.sleep(0)
            await asyncio.sleep(0.001)
        return [*before, _current().get_name(), variable.get()]

    server = hosted(call)
    with Wire(server.port) as wire:
        for wait in [False, False, True, True, False, True, False, False]:
            before, number, after, now = wire.result("call", [wait])
            assert (before != "mine", number, after, now) == (True, 0, "mine", 1)


def test_some_calls_wait_and_some_do_not(hosted: Serve) -> None:
    async def call(seconds: float | None, value: Any) -> Any:
        if seconds is None:
            return value
        try:
            async with asyncio.timeout(0.02 if seconds == 5 else 60):
                await asyncio.sleep(seconds)
        except TimeoutError:
            return ["late", value]
        return [value]

    server = hosted(call)
    with Wire(server.port) as wire:
        for number, seconds in enumerate([None, 0, 5, None, None, 5, 0, 0.001, None, 5]):
            expected: Any = {None: number, 5: ["late", number]}.get(seconds, [number])
            assert wire.result("call", [seconds, number]) == expected


def test_exceptions_at_once_or_later(hosted: Serve, caplog: pytest.LogCaptureFixture) -> None:
    async def fail(wait: bool, kind: str) -> None:
        if wait:
            await asyncio.sleep(0)
        if kind == "exit":
            sys.exit(3)
        if kind == "stop":
            raise StopAsyncIteration
        raise ucall.RPCError(7, kind)

    async def fine() -> tuple[int, int]:
        return 1, 2

    server = hosted(fail, fine)
    with Wire(server.port) as wire:
        for wait in (False, True, False, False, True, True):
            assert wire.error("fail", [wait, "mine"])["code"] == 7
            assert wire.error("fail", [wait, "stop"])["code"] == -32603
            assert wire.error("fail", [wait, "exit"])["code"] == -32603
            assert wire.result("fine") == [1, 2]
    gc.collect()
    # From 3.12 on a task that ends in its constructor is out of reach: asyncio logs it again.
    assert sys.version_info >= (3, 12) or "never retrieved" not in caplog.text


def test_a_disconnect_cancels_a_waiting_first_call(serve: Serve) -> None:
    seen: list[str] = []

    async def wait() -> None:
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            await asyncio.sleep(0.001)
            seen.append(repr(_current()))
            raise
        finally:
            seen.append("finally")

    server = serve(wait)
    wire = Wire(server.port)
    wire.send(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 45\r\n\r\n")
    wire.send(json.dumps({"jsonrpc": "2.0", "method": "wait", "id": 1}).encode().ljust(45))
    let_read(server.port)
    wire.socket.close()
    assert eventually(lambda: seen[-1:] == ["finally"])
    assert "wait" in seen[0]


def test_all_tasks_are_those_that_run(serve: Serve) -> None:
    async def others(wait: bool) -> list[bool]:
        if wait:
            await asyncio.sleep(0)
        return [task is _current() for task in asyncio.all_tasks()]

    async def group() -> int:
        async with asyncio.TaskGroup() as tasks:
            made = [tasks.create_task(others(True)) for _ in range(3)]
        return len(made[0].result())

    server = serve(others, group)
    with Wire(server.port) as wire:
        for wait in (False, False, True, True, False, True):
            assert wire.result("others", [wait]) == [True]
        assert wire.result("group") == 4


def test_finished_tasks_and_their_values_are_freed(hosted: Serve) -> None:
    alive: weakref.WeakSet[Any] = weakref.WeakSet()

    class Value:
        pass

    async def call(wait: bool) -> None:
        value, task = Value(), _current()
        alive.add(value)
        if wait:
            await asyncio.sleep(0)
        value.task = task  # type: ignore[attr-defined]

    server = hosted(call)
    with Wire(server.port) as wire:
        for number in range(20):
            wire.result("call", [number % 3 == 0])

    def is_empty() -> bool:
        gc.collect()
        return len(alive) == 0

    assert eventually(is_empty)


def test_anyio(hosted: Serve) -> None:
    anyio = pytest.importorskip("anyio")

    async def call(wait: bool) -> int:
        with anyio.move_on_after(0.02) as scope:
            if wait:
                await anyio.sleep(5)
        async with anyio.create_task_group() as group:
            if wait:
                group.start_soon(anyio.sleep, 0.001)
        return int(scope.cancelled_caught)

    server = hosted(call)
    with Wire(server.port) as wire:
        assert [wire.result("call", [n % 3 == 0]) for n in range(9)] == [1, 0, 0] * 3


def test_debug_mode_has_a_task_for_each(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONASYNCIODEBUG", "1")
    seen: list[str] = []

    async def call() -> None:
        seen.append(_current().get_name())

    async def set_debug() -> None:
        asyncio.get_running_loop().set_debug(True)

    server = serve(call, set_debug)
    with Wire(server.port) as wire:
        wire.result("set_debug")
        wire.send(request("call") * 3)
        for _ in range(3):
            assert "result" in json.loads(wire.line())
    assert len(set(seen)) == 3


def test_no_call_sees_the_task_attributes_of_another(hosted: Serve) -> None:
    variable: contextvars.ContextVar[str | None] = contextvars.ContextVar("variable", default=None)

    async def visit(user: str, wait: bool) -> list[Any]:
        task: Any = _current()
        seen = [getattr(task, "user", None), variable.get()]
        task.user = user
        variable.set(user)
        if wait:
            await asyncio.sleep(0)
        return [*seen, task.user, variable.get()]

    server = hosted(visit)
    with Wire(server.port) as alice, Wire(server.port) as bob:
        for wait in (False, False, True, False, True):
            assert alice.result("visit", ["alice", wait]) == [None, None, "alice", "alice"]
            assert bob.result("visit", ["bob", wait]) == [None, None, "bob", "bob"]


def test_each_task_has_a_name_of_asyncio(hosted: Serve) -> None:
    async def name(wait: bool) -> str:
        if wait:
            await asyncio.sleep(0)
        return _current().get_name()

    with Wire(hosted(name).port) as wire:
        names = [wire.result("name", [n % 3 == 0]) for n in range(6)]
    assert len(set(names)) == 6 and all(name.startswith("Task-") for name in names)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="get_context is new in Python 3.12")
def test_a_task_shows_the_variables_of_its_call(hosted: Serve) -> None:
    variable = contextvars.ContextVar("variable", default=0)

    async def call(number: int, wait: bool) -> list[Any]:
        variable.set(number)
        if wait:
            await asyncio.sleep(0)
        task: Any = _current()
        return [task.get_context()[variable], task.get_context() == contextvars.copy_context()]

    with Wire(hosted(call).port) as wire:
        for number in range(6):
            assert wire.result("call", [number, number % 3 == 0]) == [number, True]


class Factory:
    """A task factory that takes a loop and a coroutine. uvloop passes other arguments by name."""

    def __init__(self) -> None:
        self.made: weakref.WeakSet[Any] = weakref.WeakSet()
        self.count = 0

    def __call__(
        self, loop: Any, coroutine: Coroutine[Any, Any, Any], **options: None
    ) -> asyncio.Task[Any]:
        assert not any(options.values())
        task = asyncio.Task(coroutine, loop=loop)
        self.made.add(task)
        self.count += 1
        return task


def test_a_task_factory_makes_the_task_of_every_call(hosted: Serve) -> None:
    factory = Factory()

    async def use(enabled: bool) -> None:
        asyncio.get_running_loop().set_task_factory(factory if enabled else None)

    async def call(wait: bool) -> bool:
        if wait:
            await asyncio.sleep(0)
        return _current() in factory.made

    async def with_context(context: ucall.Context) -> bool:
        return _current() in factory.made

    async def together(items: list[int]) -> list[bool]:
        return [_current() in factory.made] * len(items)

    server = hosted(call, with_context, use)
    server.batch(together)
    with Wire(server.port) as wire:
        for is_used in (False, True, False, True):
            wire.result("use", [is_used])
            for wait in (False, False, True, False):
                assert wire.result("call", [wait]) is is_used
            assert wire.result("with_context") is is_used
            assert wire.result("together", [1]) is is_used
        assert wire.error("use", ["yes"])["code"] == -32602
    # Four calls, one with a context and one batch, twice, and the call that removed the factory.
    assert factory.count == 13


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
def test_a_factory_that_fails_fails_its_call_alone(hosted: Serve) -> None:
    def fail(loop: Any, coroutine: Any, **options: None) -> asyncio.Task[Any]:
        raise LookupError("no task")

    async def use() -> None:
        loop = asyncio.get_running_loop()
        with suppress(TypeError):
            loop.set_task_factory("no factory")  # type: ignore[arg-type]
        loop.set_task_factory(fail)
        loop.call_later(0.05, loop.set_task_factory, None)

    async def call() -> int:
        return 7

    server = hosted(call, use)
    with Wire(server.port) as wire:
        assert wire.result("call") == 7
        wire.result("use")
        assert wire.error("call")["code"] == -32603
        assert eventually(lambda: wire.call("call").get("result") == 7)


def test_a_factory_may_be_set_before_the_first_call(hosted: Serve) -> None:
    factory = Factory()

    @asynccontextmanager
    async def lifespan(server: ucall.Server) -> AsyncIterator[None]:
        asyncio.get_running_loop().set_task_factory(factory)
        yield
        asyncio.get_running_loop().set_task_factory(None)

    async def call() -> bool:
        return _current() in factory.made

    with Wire(hosted(call, lifespan=lifespan).port) as wire:
        assert [wire.result("call") for _ in range(3)] == [True] * 3


@pytest.mark.skipif(sys.version_info < (3, 12), reason="new in Python 3.12")
def test_the_factory_of_eager_tasks(hosted: Serve) -> None:
    def eager(loop: Any, coroutine: Any, **options: None) -> asyncio.Task[Any]:
        # Without uvloop's arguments, which Python 3.13.0 does not accept here.
        return asyncio.eager_task_factory(loop, coroutine)

    async def use() -> None:
        asyncio.get_running_loop().set_task_factory(eager)

    async def call(wait: bool) -> list[Any]:
        task: Any = _current()
        seen = [getattr(task, "user", None), task in asyncio.all_tasks()]
        task.user = "somebody"
        made = asyncio.get_running_loop().create_task(asyncio.sleep(0))
        if wait:
            await asyncio.sleep(0)
        async with asyncio.timeout(60):
            await made
        return seen

    server = hosted(call, use)
    with Wire(server.port) as wire:
        for _ in range(2):
            assert wire.result("call", [False]) == wire.result("call", [True]) == [None, True]
            wire.result("use")


ODD_ASYNCIO = """
import asyncio, ucall
{change}
server = ucall.Server(port=0)
@server
async def add(a: int, b: int) -> int:
    assert asyncio.current_task() in asyncio.all_tasks()
    return a + b
@server
async def pause(value: int) -> int:
    await asyncio.sleep(0)
    return value
server.on_startup(lambda: print(server.port))
server.run()
"""

CHANGES = {
    "nothing to enter a task by": "del asyncio.tasks._enter_task",
    # From CPython 3.14 on, asyncio's C functions do not know tasks written in Python.
    "tasks in Python": """
asyncio.Task = asyncio.tasks.Task = asyncio.tasks._PyTask
for name in ("current_task", "all_tasks"):
    setattr(asyncio, name, getattr(asyncio.tasks, f"_py_{name}", getattr(asyncio, name)))
""",
    "tasks that begin otherwise": """
class Later(asyncio.tasks._CTask):
    def __init__(self, coroutine, *, loop, **options):
        call_soon = loop.call_soon
        loop.call_soon = lambda *what, **how: loop.call_later(0, *what, **how)
        super().__init__(coroutine, loop=loop, **options)
        loop.call_soon = call_soon
asyncio.Task = asyncio.tasks.Task = Later
""",
    "tasks that ask for other callbacks": """
class Asking(asyncio.tasks._CTask):
    def __init__(self, coroutine, *, loop, **options):
        loop.call_soon(print).cancel()
        super().__init__(coroutine, loop=loop, **options)
        loop.call_soon(print).cancel()
asyncio.Task = asyncio.tasks.Task = Asking
""",
    "nothing that tells of being cancelled": """
class Closed(asyncio.tasks._CTask):
    @property
    def _must_cancel(self):
        raise AttributeError("_must_cancel")
asyncio.Task = asyncio.tasks.Task = Closed
""",
}


@pytest.mark.parametrize("change", ["pass", *CHANGES])
def test_asyncio_may_be_otherwise_than_expected(change: str) -> None:
    source = ODD_ASYNCIO.format(change=CHANGES.get(change, change))
    with program(source) as process, Wire(int(process.stdout.readline())) as wire:
        for number in range(3):
            assert wire.result("add", [number, 1]) == number + 1
            assert wire.result("pause", [number]) == number
        process.terminate()
        assert without_address(process.stderr.read()) == ""
