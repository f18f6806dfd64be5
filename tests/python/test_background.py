"""Functions that run after the reply to a call, and tasks that functions have made."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from serving import Serve
from test_metrics import samples, value

import ucall
from harness import Wire, eventually, let_read, request

#: A drain that waits for nothing ends long before, and one that waits in vain fails its test.
DRAIN_S = 300


class Work:
    """What runs in the background, until it is released."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.released = threading.Event()

    def plain(self, name: str) -> None:
        assert self.released.wait(60)
        self.events.append(name)

    async def coroutine(self, name: str) -> None:
        try:
            while not self.released.is_set():
                await asyncio.sleep(0.001)
        except asyncio.CancelledError:
            self.events.append(f"{name} was cancelled")
            raise
        self.events.append(name)

    def add_to(self, ctx: ucall.Context, kind: str) -> None:
        if kind == "coroutine":
            ctx.background(self.coroutine(kind))
        else:
            ctx.background({"plain": self.plain, "async": self.coroutine}[kind], name=kind)

    @contextlib.asynccontextmanager
    async def lifespan(self, _: ucall.Server) -> AsyncIterator[None]:
        # A task of a hook does not end before its hook has said so.
        task = asyncio.create_task(asyncio.sleep(3000))
        yield
        assert not task.cancelled()
        task.cancel()
        self.events.append("shut down")


@pytest.fixture
def work() -> Iterator[Work]:
    work = Work()
    yield work
    work.released.set()


def has_running(server: ucall.Server, calls: int) -> bool:
    return value(samples(server.port), "ucall_running_calls") == calls


@pytest.mark.parametrize("kind", ["plain", "async", "coroutine"])
def test_it_runs_after_the_reply_of_each_kind_of_function(
    serve: Serve, work: Work, kind: str
) -> None:
    def inline(ctx: ucall.Context) -> str:
        work.add_to(ctx, kind)
        return "replied"

    async def eager(ctx: ucall.Context) -> str:
        return inline(ctx)

    async def waiting(ctx: ucall.Context) -> str:
        work.add_to(ctx, kind)
        await asyncio.sleep(0)
        return "replied"

    def stream(ctx: ucall.Context) -> Iterator[str]:
        work.add_to(ctx, kind)
        yield "replied"

    def batched(contexts: list[ucall.Context]) -> list[str]:
        return [inline(ctx) for ctx in contexts]

    threaded = functools.partial(inline)
    # Without an async function, the server has no event loop before the first call.
    for functions in ([inline, stream], [inline, eager, waiting, stream]):
        work.released.clear()
        work.events.clear()
        server = serve(*functions, metrics=True)
        server.add(threaded, name="threaded", threads=True)
        server.batch(batched)
        names = [it.__name__ for it in functions] + ["threaded", "batched"]
        with Wire(server.port) as wire:
            for name in names:
                assert wire.result(name) in ("replied", ["replied"])
            wire.send(request("inline", id=None))
            assert work.events == []
            assert eventually(functools.partial(has_running, server, len(names) + 1))
            work.released.set()
            assert eventually(lambda n=names: work.events == [kind] * (len(n) + 1))
            assert eventually(functools.partial(has_running, server, 0))


@pytest.mark.parametrize("name", ["begin", "begin_async"])
def test_the_reply_has_left_before_its_first_step(hosted: Serve, work: Work, name: str) -> None:
    async def block() -> None:
        work.plain("blocked")

    def begin(ctx: ucall.Context) -> str:
        ctx.background(block)
        return "replied"

    async def begin_async(ctx: ucall.Context) -> str:
        await asyncio.sleep(0)
        return begin(ctx)

    server = hosted(begin, begin_async)
    with Wire(server.port) as wire:
        assert wire.result(name) == "replied"
        work.released.set()
        assert eventually(lambda: work.events == ["blocked"])


def test_it_does_not_run_if_the_call_fails_or_is_cancelled(serve: Serve, work: Work) -> None:
    def fail(ctx: ucall.Context) -> None:
        for kind in ("plain", "async", "coroutine"):
            work.add_to(ctx, kind)
        raise ucall.RPCError(7, "no")

    async def fail_later(ctx: ucall.Context) -> None:
        await asyncio.sleep(0)
        fail(ctx)

    begun, ended = threading.Semaphore(0), threading.Semaphore(0)

    async def wait(ctx: ucall.Context) -> None:
        ctx.background(work.plain, "cancelled")
        begun.release()
        try:
            await asyncio.sleep(3000)
        finally:
            ctx.background(work.coroutine("cancelled, too"))
            ended.release()

    def succeed(ctx: ucall.Context) -> None:
        work.add_to(ctx, "plain")

    work.released.set()
    server = serve(fail, fail_later, succeed, wait)
    with Wire(server.port) as wire:
        assert wire.error("fail")["code"] == wire.error("fail_later")["code"] == 7
        wire.send(request("wait"))
        with Wire(server.port) as leaving:
            leaving.send(request("wait"))
            assert begun.acquire(timeout=60) and begun.acquire(timeout=60)
            leaving.reset()
        wire.send(request("$/cancelRequest", {"id": 1}, id=...))
        assert wire.message()["error"]["code"] == -32800
        assert ended.acquire(timeout=60) and ended.acquire(timeout=60)
        wire.result("succeed")
        assert eventually(lambda: work.events == ["plain"])
    server.stop()
    assert work.events == ["plain"]


def test_errors_are_logged_with_the_call(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    def send_mail(address: str) -> None:
        raise OSError(f"no host for {address}")

    async def send_later(address: str) -> None:
        await asyncio.sleep(0)
        send_mail(address)

    def register(ctx: ucall.Context) -> None:
        ctx.background(send_mail, "ada@example.com")
        ctx.background(send_later, address="alan@example.com")

    with caplog.at_level(logging.ERROR, "ucall"), Wire(serve(register).port) as wire:
        wire.send(request("register", id="a7"))
        assert json.loads(wire.line())["result"] is None
        assert eventually(lambda: len(caplog.records) == 2)
    where = "test_errors_are_logged_with_the_call.<locals>"
    call = 'in the background of register (id "a7"), raised'
    lines = sorted(record.getMessage() for record in caplog.records)
    assert lines == [f"{where}.send_later, {call}", f"{where}.send_mail, {call}"]
    assert "no host for ada@example.com" in caplog.text and "no host for alan" in caplog.text


def test_what_cannot_run_in_the_background_is_an_error(serve: Serve, work: Work) -> None:
    kept: list[ucall.Context] = []

    def items() -> Iterator[int]:
        yield 1

    def attempt(ctx: ucall.Context) -> list[str]:
        kept.append(ctx)
        said = []
        for add in (
            lambda: ctx.background(5),  # type: ignore[call-overload]
            lambda: ctx.background(items),
            lambda: ctx.background(work.coroutine("never"), "argument"),  # type: ignore[call-overload]
            lambda: kept[0].background(print) if len(kept) > 1 else None,
        ):
            try:
                add()
            except (TypeError, RuntimeError) as error:
                said.append(str(error))
        return said

    with Wire(serve(attempt).port) as wire:
        said = wire.result("attempt")
        assert [line.partition(",")[0] for line in said] == [
            "background: expected a function or a coroutine",
            "background: test_what_cannot_run_in_the_background_is_an_error.<locals>.items is a "
            "generator",
            "background: a coroutine has its arguments already",
        ]
        assert wire.result("attempt")[3] == "background: the call has its reply already"


def end(server: ucall.Server) -> threading.Thread:
    """Stops a server on a thread of its own; returns when it drains."""
    thread = threading.Thread(target=server.stop)
    thread.start()

    def is_refused() -> bool:
        try:
            Wire(server.port).socket.close()
        except ConnectionError:
            return True
        return False

    assert eventually(is_refused)
    return thread


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_a_drain_waits_for_it(hosted: Serve, work: Work, kind: str) -> None:
    def begin(ctx: ucall.Context) -> None:
        work.add_to(ctx, kind)

    server = hosted(begin, lifespan=work.lifespan, drain_timeout_s=DRAIN_S)
    with Wire(server.port) as wire:
        wire.result("begin")
    thread = end(server)
    assert work.events == []
    work.released.set()
    thread.join()
    assert eventually(lambda: work.events == [kind, "shut down"])


def made_task(work: Work) -> list[Callable[..., Any]]:
    """Functions that make a task, plain and async."""
    tasks = set()

    def begin(name: str) -> None:
        tasks.add(asyncio.create_task(work.coroutine(name)))

    async def begin_async(name: str) -> None:
        async def nested() -> None:
            begin(name)

        await asyncio.create_task(nested())

    return [begin, begin_async]


@pytest.mark.parametrize("name", ["begin", "begin_async"])
def test_a_drain_waits_for_tasks_of_functions(serve: Serve, work: Work, name: str) -> None:
    server = serve(*made_task(work), lifespan=work.lifespan, drain_timeout_s=DRAIN_S)
    with Wire(server.port) as wire:
        wire.result(name, [name])
        thread = end(server)
        wire.rest()  # The last connection is closed: nothing else is left to wait for.
    assert thread.is_alive() and work.events == []
    work.released.set()
    thread.join()
    assert work.events == [name, "shut down"]


def test_what_outlasts_the_drain_is_cancelled_before_the_hooks(
    serve: Serve, work: Work, caplog: pytest.LogCaptureFixture
) -> None:
    def begin_job(ctx: ucall.Context) -> None:
        work.add_to(ctx, "async")

    async def gather() -> None:
        await asyncio.gather(work.coroutine("gathered"))

    functions = [begin_job, gather, *made_task(work)]
    server = serve(*functions, lifespan=work.lifespan, drain_timeout_s=0.05)
    wire = Wire(server.port)
    wire.result("begin_job")
    wire.result("begin", ["made"])
    wire.send(request("gather"))
    let_read(server.port)
    with wire, caplog.at_level(logging.WARNING, "ucall"):
        server.stop()
    cancelled = [f"{name} was cancelled" for name in ("async", "gathered", "made")]
    assert sorted(work.events[:3]) == cancelled and work.events[3:] == ["shut down"]
    line = "1 tasks that functions have made are cancelled, because the server ends: Work.coroutine"
    assert line in caplog.messages
