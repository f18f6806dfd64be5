"""Async hooks, and what they await: functions that run elsewhere."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import numpy as np
import pytest
from functions import sum
from hooking import (
    KINDS,
    VARIABLE,
    NewServer,
    add,
    awaiting,
    batch,
    batch_later,
    new_server,
    told,
)
from numpy.typing import NDArray

import ucall
from harness import Wire, eventually, request, started
from ucall.client import Client

__all__ = ["new_server"]


@pytest.mark.parametrize("kind", KINDS)
def test_functions_in_tasks_see_the_variables_of_async_hooks(
    new_server: NewServer, kind: str
) -> None:
    server = new_server()

    @server.middleware
    async def set_variable(ctx: ucall.Context, call: ucall.Call) -> Any:
        VARIABLE.set(f"of {ctx.id}")
        return await call()

    add(server, kind)
    server.start()
    with Wire(server.port) as wire:
        got = wire.result("f", [1])
        assert (got[0] if "generator" in kind else got)[1] == "of 1"


def test_a_plain_hook_may_be_within_an_async_one(new_server: NewServer) -> None:
    server = new_server()

    @server.middleware
    async def outer(ctx: ucall.Context, call: ucall.Call) -> Any:
        return ["outer", await call()]

    @server.middleware
    async def middle(ctx: ucall.Context, call: ucall.Call) -> Any:
        return ["middle", await call()]

    @server.middleware
    def inner(ctx: ucall.Context, call: ucall.Call) -> Any:
        return ["inner", call()]

    server.add(sum)
    server.add(told, "in_thread", threads=True)
    server.start()
    with Wire(server.port) as wire:
        assert wire.result("sum", [2, 3]) == ["outer", ["middle", ["inner", 5]]]
        got = wire.result("in_thread", [4])
        assert got == ["outer", ["middle", ["inner", [4, "none", "ucall"]]]]


@pytest.mark.parametrize("kind", [it for it in KINDS if "generator" in it])
def test_a_hook_returns_an_iterator_around_that_of_a_stream(
    new_server: NewServer, kind: str
) -> None:
    server = new_server()

    @server.middleware
    async def doubled(ctx: ucall.Context, call: ucall.Call) -> Any:
        made = await call()

        async def later() -> AsyncIterator[Any]:
            if hasattr(made, "__aiter__"):
                async for item in made:
                    yield item[0] * 2
            else:
                for item in made:
                    yield item[0] * 2

        return later()

    add(server, kind)
    server.start()
    with Client(port=server.port) as client:
        assert list(client.stream.f(3)) == [0, 2, 4]


@pytest.mark.parametrize("function", [batch, batch_later])
@pytest.mark.parametrize("threads", [False, True])
def test_an_async_hook_is_around_batches(
    new_server: NewServer, function: Callable[..., Any], threads: bool
) -> None:
    if threads and function is batch_later:
        pytest.skip("an async function runs in no thread")
    server = new_server()

    @server.middleware
    async def caught(ctx: ucall.Context, call: ucall.Call) -> Any:
        try:
            result = await call()
        except KeyError as error:
            return ["caught", error.args[0]]
        except ucall.RPCError as error:
            return ["refused", error.code]
        assert type(result) is list
        return ["hooked", result[0]]

    server.batch(function, name="f", threads=threads or None, max_wait_ms=5)
    server.start()
    with Wire(server.port) as wire:
        wire.send(b"".join(request("f", [value], id=value) + b"\n" for value in (1, 2, -3)))
        got = {reply["id"]: reply["result"] for reply in (wire.message() for _ in range(3))}
        assert got == {1: ["hooked", 1], 2: ["hooked", 2], -3: ["caught", -3]}
        assert wire.result("f", ["no number"]) == ["refused", -32602]


def test_the_server_does_not_wait_before_a_hook_goes_on(new_server: NewServer) -> None:
    """Each call took a second, until something else woke the server."""
    server = new_server()
    server.middleware(awaiting)
    server.batch(batch_later, name="f")
    server.batch(batch, name="refused", weight=lambda value: value, max_weight=1)
    server.start()
    began = time.monotonic()
    with Wire(server.port) as wire:
        for value in range(15):
            assert wire.result("f", [value])[0] == value
            assert wire.error("refused", [7])["code"] == -32602
    assert time.monotonic() - began < 10


def test_a_batch_that_fails_raises_the_error_of_its_reply(
    new_server: NewServer, caplog: pytest.LogCaptureFixture
) -> None:
    server, seen = new_server(), []

    @server.middleware
    async def note(ctx: ucall.Context, call: ucall.Call) -> Any:
        try:
            return await call()
        except ucall.RPCError as error:
            seen.append(error.code)
            raise

    @server.batch
    def f(values: list[int]) -> list[int]:
        raise ValueError("the batch")

    server.start()
    with caplog.at_level(logging.ERROR, "ucall"), Wire(server.port) as wire:
        assert wire.error("f", [1])["code"] == -32603
    assert seen == [-32603]
    assert caplog.text.count("ValueError: the batch") == 1


def test_the_weight_of_a_batch_is_limited_within_hooks(new_server: NewServer) -> None:
    server = new_server()
    server.middleware(awaiting)
    server.batch(batch, name="f", weight=lambda value: value, max_weight=10)
    server.start()
    with Wire(server.port) as wire:
        assert wire.result("f", [10])[0] == 10
        assert "max_weight, 10, got 11" in wire.error("f", [11])["data"]


def test_arrays_reach_the_function_and_the_hook(new_server: NewServer) -> None:
    server, seen = new_server(), []

    @server.middleware
    async def note(ctx: ucall.Context, call: ucall.Call) -> Any:
        seen.append(call.params)
        return await call()

    @server
    def doubled(values: NDArray[np.float32]) -> NDArray[np.float32]:
        return values * 2

    server.add(doubled, "in_thread", threads=True)
    server.start()
    values = np.arange(1000, dtype=np.float32)
    with Client(port=server.port) as client:
        assert np.array_equal(client.doubled(values).numpy, values * 2)
        assert np.array_equal(client.in_thread(values).numpy, values * 2)
    assert len(seen) == 2


@pytest.mark.parametrize("threads", [False, True])
def test_the_wait_for_a_thread_is_limited_within_async_hooks(
    new_server: NewServer, threads: bool
) -> None:
    server, go_on = new_server(limits=ucall.Limits(max_threads=1)), threading.Event()
    if threads:
        server.middleware(awaiting)
    server.add(lambda: go_on.wait(60), "f", threads=True, max_waiting=1)
    server.start()
    with Wire(server.port) as wire:
        wire.send(b"".join(request("f", id=id) + b"\n" for id in range(4)))
        refused = [wire.message() for _ in range(2)]
        assert {it["error"]["code"] for it in refused} == {-32003}
        go_on.set()
        assert [wire.message()["result"] for _ in range(2)] == [True, True]


@pytest.mark.parametrize("kind", ["async", "threads", "batch"])
def test_a_cancelled_call_cancels_what_the_hook_awaits(new_server: NewServer, kind: str) -> None:
    server, ended = new_server(), []
    go_on: threading.Event = threading.Event()

    @server.middleware
    async def note(ctx: ucall.Context, call: ucall.Call) -> Any:
        try:
            return await call()
        except BaseException as error:
            ended.append(type(error).__name__)
            raise

    async def wait() -> None:
        await asyncio.sleep(600)

    if kind == "async":
        server.add(wait, "f")
    elif kind == "threads":
        server.add(lambda: go_on.wait(60), "f", threads=True)
    else:
        server.batch(lambda values: [go_on.wait(60)] * len(values), name="f", threads=True)
    server.add(sum)
    server.start()
    with Wire(server.port) as wire:
        wire.send(request("f", [] if kind != "batch" else [1]) + b"\n")
        assert wire.result("sum", [2, 3]) == 5
        wire.reset()
    assert eventually(lambda: ended == ["CancelledError"], 30)
    go_on.set()
    with Wire(server.port) as wire:
        assert wire.result("sum", [2, 3]) == 5
        assert eventually(lambda: server.stats()["connections"] == 1)


@pytest.mark.parametrize("kind", ["threads", "batch"])
def test_a_cancelled_call_that_waits_does_not_run(new_server: NewServer, kind: str) -> None:
    server, go_on, ran = new_server(limits=ucall.Limits(max_threads=1)), threading.Event(), []

    def wait(value: int) -> None:
        ran.append(value)
        go_on.wait(60)

    server.middleware(awaiting)
    if kind == "threads":
        server.add(wait, "f", threads=True)
    else:
        server.batch(lambda values: [*map(wait, values)], name="f", threads=True, max_size=1)
    server.add(sum)
    server.start()
    with Wire(server.port) as first, Wire(server.port) as second:
        first.send(request("f", [1]))
        assert eventually(lambda: ran == [1], 30)
        second.send(request("f", [2]) + b"\n")
        assert second.result("sum", [2, 3]) == 5
        second.reset()
        assert eventually(lambda: server.stats()["connections"] == 1, 30)
        assert first.result("sum", [2, 3]) == 5
        go_on.set()
        assert first.message()["id"] == 1
        assert first.result("f", [3]) is None
    assert ran == [1, 3]


def test_a_hook_that_swallows_the_cancellation_delays_no_reply(new_server: NewServer) -> None:
    server, ended = new_server(), []

    @server.middleware
    async def swallow(ctx: ucall.Context, call: ucall.Call) -> Any:
        try:
            return await call()
        except asyncio.CancelledError:
            ended.append(ctx.cancelled)
            return "swallowed"

    @server(timeout_ms=50)
    async def f() -> None:
        await asyncio.sleep(600)

    server.start()
    with Wire(server.port) as wire:
        assert wire.error("f")["code"] == -32001
    assert ended == [True]


def test_a_hook_that_never_calls_is_cancelled_at_the_deadline(new_server: NewServer) -> None:
    server = new_server(timeout_ms=50)

    @server.middleware
    async def never(ctx: ucall.Context, call: ucall.Call) -> Any:
        await asyncio.sleep(600)

    server.add(sum)
    server.start()
    with Wire(server.port) as wire:
        assert wire.error("sum", [2, 3])["code"] == -32001


def test_an_async_hook_may_wait_for_the_function_elsewhere(new_server: NewServer) -> None:
    server = new_server()

    @server.middleware
    async def in_task(ctx: ucall.Context, call: ucall.Call) -> Any:
        return await asyncio.wait_for(asyncio.create_task(call()), 60)

    add(server, "threads")
    server.add(sum)
    server.start()
    with Wire(server.port) as wire:
        assert wire.result("sum", [2, 3]) == 5
        assert wire.result("f", [4])[0] == 4


def in_process(values: list[int]) -> list[Any]:
    return [{"doubled": value * 2} for value in values]


def test_an_async_hook_is_around_batches_in_processes(new_server: NewServer) -> None:
    server = new_server()

    @server.middleware
    async def note(ctx: ucall.Context, call: ucall.Call) -> Any:
        try:
            return [await call()]
        except ucall.RPCError as error:
            return [error.code, error.data]

    server.batch(in_process, name="f", processes=1)
    server.add(told, "alone", processes=1)
    server.start()
    with Wire(server.port) as wire:
        assert wire.result("f", [4]) == [{"doubled": 8}]
        assert wire.result("f", ["a"]) == [-32602, "params.values: expected int, got str"]
        assert wire.result("alone", [4])[0][0] == 4


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("kind", [*KINDS, "batch"])
def test_async_hooks_run_in_the_loop_of_a_program(
    new_server: NewServer, loop: str, kind: str
) -> None:
    server = new_server()
    server.middleware(awaiting)
    if kind == "batch":
        server.batch(batch, name="f", threads=True)
    else:
        add(server, kind)
    listens = threading.Event()
    server.on_startup(listens.set)
    new_event_loop = pytest.importorskip(loop).new_event_loop

    def run() -> None:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(server.serve())

    thread = threading.Thread(target=run)
    thread.start()
    assert listens.wait(60)
    try:
        with Wire(server.port) as wire:
            for value in (1, 2):
                got = wire.result("f", [value])
                assert (got[0][0] + len(got) if "generator" in kind else got[0]) == value
    finally:
        server.stop()
        thread.join()


@pytest.mark.filterwarnings("ignore:coroutine:RuntimeWarning")
def test_a_hook_that_does_not_await_the_call_is_told(
    new_server: NewServer, caplog: pytest.LogCaptureFixture
) -> None:
    server = new_server()

    @server.middleware
    async def forgets(ctx: ucall.Context, call: ucall.Call) -> Any:
        return call()

    server.add(sum)
    server.start()
    with caplog.at_level(logging.ERROR, "ucall"), Wire(server.port) as wire:
        assert wire.error("sum", [2, 3])["code"] == -32603
    assert "coroutine" in caplog.text


@pytest.mark.parametrize("at_once", [False, True])
def test_a_drain_waits_for_what_a_hook_awaits(new_server: NewServer, at_once: bool) -> None:
    server, began, go_on = new_server(), threading.Event(), threading.Event()

    def wait() -> str:
        began.set()
        go_on.wait(60)
        return "done"

    server.middleware(awaiting)
    server.add(wait, "f", threads=True)
    server.start()
    with Wire(server.port) as wire:
        wire.send(request("f"))
        assert began.wait(60)
        stopping = started(lambda: server.stop(at_once=at_once))
        if at_once:
            line = wire.line()
            assert not line or b"-32007" in line
            go_on.set()
        else:
            go_on.set()
            assert wire.message()["result"] == "done"
        stopping.result(60)


def test_the_generator_of_a_cancelled_stream_is_closed_in_a_thread(new_server: NewServer) -> None:
    server, ended = new_server(), []

    def endless() -> Iterator[int]:
        try:
            while True:
                yield 1
        finally:
            ended.append(threading.current_thread().name.partition("-")[0])

    server.middleware(awaiting)
    server.add(endless, threads=True)
    server.start()
    with Client(port=server.port) as client, client.stream.endless() as stream:
        assert next(iter(stream)) == 1
    assert eventually(lambda: ended == ["ucall"], 30)


def test_an_exception_of_an_item_ends_the_stream(new_server: NewServer) -> None:
    server = new_server()

    def failing() -> Iterator[int]:
        yield 1
        raise ucall.RPCError(7, "no more")

    server.middleware(awaiting)
    server.add(failing, "f")
    server.add(failing, "in_threads", threads=True)
    server.start()
    with Client(port=server.port) as client:
        for stream in (client.stream.f(), client.stream.in_threads()):
            items = iter(stream)
            assert next(items) == 1
            with pytest.raises(ucall.RPCError, match="no more"):
                next(items)


def test_a_stream_goes_on_while_no_other_call_may_wait(new_server: NewServer) -> None:
    server, go_on = new_server(limits=ucall.Limits(max_threads=2)), threading.Event()
    server.middleware(awaiting)

    def numbers() -> Iterator[int]:
        for number in range(3):
            if number == 1:
                assert go_on.wait(60)
            yield number

    server.add(numbers, threads=True, max_waiting=1)
    server.start()
    with Client(port=server.port) as client, Wire(server.port) as wire:
        items = iter(client.stream.numbers())
        assert next(items) == 0
        wire.send(b"".join(request("numbers", id=id) + b"\n" for id in range(6)))
        refused = wire.message()
        assert refused["error"]["code"] == -32003
        go_on.set()
        assert list(items) == [1, 2]
