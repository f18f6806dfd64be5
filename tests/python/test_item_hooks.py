"""Async hooks around generators that take batches of calls, or have slots for them."""

from __future__ import annotations

import asyncio
import importlib
import logging
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import decoding
import pytest
from decoding import Decoder
from functions import sum
from hooking import NewServer, awaiting, new_server, plain
from streaming import Source, stream_request

import ucall
from harness import Wire, eventually, in_asyncio, request
from ucall.client import Client
from ucall.testing import AsyncTestClient

__all__ = ["new_server"]

BATCHES = ["batch", "async_batch", "thread_batch"]
SLOTS = [f"{kind} slots" for kind in decoding.KINDS]


def add(server: ucall.Server, kind: str, size: int = 8, **options: Any) -> Source | Decoder:
    """Adds ``f(n, size)``, whose items are the numbers below n; no other may be in its batch, or in
    a slot, than as many calls."""
    source: Source | Decoder
    if kind in BATCHES:
        source, options = Source(kind, size), {"max_wait_ms": 1000} | options
    else:
        source = Decoder(kind.removesuffix(" slots"), size)
    source.add_to(server, name="f", **options)
    return source


def opened(source: Source | Decoder) -> int:
    return source.opened if isinstance(source, Source) else source.runs


@pytest.mark.parametrize("kind", [*BATCHES, *SLOTS])
def test_a_hook_gets_an_iterator_of_the_items_of_its_call(new_server: NewServer, kind: str) -> None:
    server = new_server()
    seen: list[tuple[str, Any]] = []

    @server.middleware
    async def doubled(ctx: ucall.Context, call: ucall.Call) -> Any:
        seen.append((call.method, call.params))
        items = await call()

        async def later() -> AsyncIterator[int]:
            async for item in items:
                yield item * 2

        return later()

    add(server, kind, 1)
    server.start()
    with Client(port=server.port) as client, Wire(server.port) as wire:
        assert list(client.stream.f(3, 0)) == [0, 2, 4]
        assert wire.result("f", [100, 0]) == [*range(0, 200, 2)]
        assert wire.result("f", {"n": 0, "size": 0}) == []
        wire.send(b'{"jsonrpc":"2.0","method":"f","params":[2,0]}\n')
        assert wire.result("f", [1, 0]) == [0]
    assert seen == [
        ("f", [3, 0]),
        ("f", [100, 0]),
        ("f", {"n": 0, "size": 0}),
        ("f", [2, 0]),
        ("f", [1, 0]),
    ]


@pytest.mark.parametrize("kind", [*BATCHES, *SLOTS])
def test_the_server_does_not_wait_before_a_hook_has_items(new_server: NewServer, kind: str) -> None:
    server = new_server()
    server.middleware(awaiting)
    add(server, kind, 1)
    server.start()
    began = time.monotonic()
    with Wire(server.port) as wire:
        for _ in range(15):
            assert wire.result("f", [40, 0]) == [*range(40)]
    assert time.monotonic() - began < 10


@pytest.mark.parametrize("kind", [*BATCHES, *SLOTS])
def test_calls_with_hooks_are_in_one_batch(new_server: NewServer, kind: str) -> None:
    server = new_server()
    server.middleware(awaiting)
    source = add(server, kind, 3)
    server.start()
    calls = {id: id + 1 for id in range(3)}
    with Wire(server.port) as wire:
        wire.send(b"".join(request("f", [n, 0], id=id) + b"\n" for id, n in calls.items()))
        got = {reply["id"]: reply["result"] for reply in (wire.message() for _ in calls)}
    assert got == {id: [*range(n)] for id, n in calls.items()}
    assert opened(source) == 1


@pytest.mark.parametrize("kind", [BATCHES[0], SLOTS[0]])
def test_a_plain_hook_is_refused(new_server: NewServer, kind: str) -> None:
    server = new_server()
    server.middleware(plain)
    where = "it runs in batches" if kind in BATCHES else "it runs in slots"
    with pytest.raises(TypeError, match=f"f: {where}, and the hook plain around it is a plain"):
        add(server, kind)


def test_a_hook_gets_the_objects_that_were_yielded(new_server: NewServer) -> None:
    server = new_server()

    @server.middleware
    async def sorted_items(ctx: ucall.Context, call: ucall.Call) -> Any:
        return [sorted(item) async for item in await call()]

    @server.batch
    def f(values: list[int]) -> Iterator[list[Any]]:
        yield [{value, value + 1} for value in values]

    server.start()
    with Wire(server.port) as wire:
        assert wire.result("f", [1]) == [[1, 2]]


@pytest.mark.parametrize("kind", SLOTS)
def test_a_slot_has_the_context_of_its_call(new_server: NewServer, kind: str) -> None:
    server, contexts = new_server(), []

    @server.middleware
    async def note(ctx: ucall.Context, call: ucall.Call) -> Any:
        contexts.append(ctx)
        return await call()

    decoder = add(server, kind)
    assert isinstance(decoder, Decoder)
    server.start()
    with Wire(server.port) as wire:
        wire.result("f", [1, 0])
    assert decoder.contexts == contexts


async def caught(ctx: ucall.Context, call: ucall.Call) -> Any:
    got: list[Any] = []
    try:
        async for item in await call():
            got.append(item)
    except (KeyError, ucall.RPCError) as error:
        got.append([type(error).__name__, getattr(error, "code", error.args[0])])
    return got


@pytest.mark.parametrize("kind", SLOTS)
def test_a_hook_gets_what_ends_a_call_in_a_slot(
    new_server: NewServer, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = new_server()
    server.middleware(caught)
    add(server, kind)
    server.start()
    with caplog.at_level(logging.ERROR, "ucall"), Wire(server.port) as wire:
        assert wire.result("f", ["no number"]) == [["RPCError", -32602]]
        assert wire.result("f", [13]) == [["RPCError", -32602]]
        assert wire.result("f", [98]) == [["RPCError", 7]]
        assert not caplog.records
        assert wire.result("f", [99]) == [["RPCError", -32603]]
        assert caplog.text.count("RuntimeError: a step failed") == 1
        assert wire.result("f", [2]) == [0, 1]


@pytest.mark.parametrize("threads", [False, True])
def test_a_hook_gets_the_exception_of_its_call_in_a_batch(
    new_server: NewServer, threads: bool, caplog: pytest.LogCaptureFixture
) -> None:
    server = new_server()
    server.middleware(caught)

    @server.batch(threads=threads, max_size=2, max_wait_ms=1000)
    def f(values: list[int]) -> Iterator[list[Any]]:
        yield list(values)
        if 7 in values:
            raise ValueError("the batch")
        yield [KeyError(value) if value < 0 else value for value in values]

    server.start()
    with caplog.at_level(logging.ERROR, "ucall"), Wire(server.port) as wire:
        wire.send(b"".join(request("f", [value], id=value) + b"\n" for value in (1, -3)))
        got = {reply["id"]: reply["result"] for reply in (wire.message() for _ in range(2))}
        assert got == {1: [1, 1], -3: [-3, ["KeyError", -3]]}
        assert not caplog.records
        wire.send(b"".join(request("f", [value], id=value) + b"\n" for value in (1, 7)))
        got = {reply["id"]: reply["result"] for reply in (wire.message() for _ in range(2))}
        assert got == {1: [1, ["RPCError", -32603]], 7: [7, ["RPCError", -32603]]}
        assert caplog.text.count("ValueError: the batch") == 1


@pytest.mark.parametrize("kind", [*BATCHES, *SLOTS])
def test_a_call_whose_caller_has_left_ends(new_server: NewServer, kind: str) -> None:
    server = new_server()
    server.middleware(awaiting)
    source = add(server, kind, 1)
    server.add(sum)
    server.start()
    for _ in range(20):
        with Client(port=server.port) as client, client.stream.f(-1, 0) as stream:
            assert next(iter(stream)) == 0
    if isinstance(source, Source):
        assert eventually(lambda: source.closed == 20, 30)
    with Wire(server.port) as wire:
        assert wire.result("f", [2, 0]) == [0, 1], "it gets the only slot"


@pytest.mark.parametrize("kind", [*BATCHES, *SLOTS])
@pytest.mark.parametrize("taken", [0, 1])
def test_a_call_ends_whose_items_a_hook_does_not_take(
    new_server: NewServer, kind: str, taken: int
) -> None:
    server = new_server()

    @server.middleware
    async def some(ctx: ucall.Context, call: ucall.Call) -> Any:
        if call.method != "f":
            return await call()
        items, got = await call(), []
        for _ in range(taken):
            got.append(await anext(items))
        return got

    source = add(server, kind, 1)
    server.start()
    with Wire(server.port) as wire:
        for _ in range(3):
            assert wire.result("f", [-1, 0]) == [*range(taken)]
    if isinstance(source, Source):
        assert eventually(lambda: source.closed == 3, 30)


@pytest.mark.parametrize("kind", [*BATCHES, *SLOTS])
@pytest.mark.parametrize("has_waiter", [False, True])
def test_a_call_ends_with_the_stream_of_its_hook(
    new_server: NewServer, kind: str, has_waiter: bool
) -> None:
    """Whoever refers to its iterator, or waits for it."""
    server, kept, tasks = new_server(), list[Any](), list[asyncio.Task[None]]()

    @server.middleware
    async def raises(ctx: ucall.Context, call: ucall.Call) -> Any:
        items = await call()
        if call.params == [1, 0]:
            return items
        kept.append(items)

        async def wait() -> None:
            async for _ in items:
                pass

        async def later() -> AsyncIterator[Any]:
            if has_waiter:
                tasks.append(asyncio.create_task(wait()))
                await asyncio.sleep(0)
            else:
                yield await anext(items)
            raise KeyError("in mid-stream")

        return later()

    add(server, kind, 1)
    server.start()
    with Wire(server.port) as wire:
        assert wire.error("f", [-1, 0])["code"] == -32603
        assert wire.result("f", [1, 0]) == [0], "it gets the only slot"
    assert eventually(lambda: all(it.done() for it in tasks), 30)
    assert len(kept) == 1 and len(tasks) == has_waiter


@pytest.mark.parametrize("kind", [*BATCHES, *SLOTS])
def test_a_call_ends_whose_iterator_a_hook_closes(new_server: NewServer, kind: str) -> None:
    server, go_on = new_server(), threading.Event()

    @server.middleware
    async def closes(ctx: ucall.Context, call: ucall.Call) -> Any:
        items = await call()
        if call.params == [1, 0]:
            return items
        first = await anext(items)
        await items.aclose()
        while not go_on.is_set():
            await asyncio.sleep(0.001)
        return [first]

    add(server, kind, 1)
    server.start()
    with Wire(server.port) as wire, Wire(server.port) as other:
        wire.send(request("f", [-1, 0]))
        assert other.result("f", [1, 0]) == [0], "it gets the only slot"
        go_on.set()
        assert wire.message()["result"] == [0]


def stops() -> int:
    return next(iter([]))


def stops_async() -> int:
    raise StopAsyncIteration


@pytest.mark.parametrize("function", [stops, stops_async])
@pytest.mark.parametrize("options", [{}, {"threads": True}, {"processes": 1}])
def test_a_function_that_raises_stop_iteration(
    new_server: NewServer, function: Any, options: dict[str, Any]
) -> None:
    server = new_server()
    server.middleware(awaiting)
    server.add(function, name="f", **options)
    server.start()
    with Wire(server.port) as wire:
        assert wire.error("f")["code"] == -32603


@pytest.mark.parametrize("end", [StopIteration, StopAsyncIteration])
def test_an_item_that_is_a_stop_iteration(new_server: NewServer, end: type[Exception]) -> None:
    server = new_server()
    server.middleware(awaiting)

    @server.batch
    def f(values: list[int]) -> Iterator[list[Any]]:
        yield values
        yield [end() for _ in values]

    @server.batch
    def g(values: list[int]) -> list[Any]:
        return [end() for _ in values]

    server.start()
    with Wire(server.port) as wire:
        for method in "fg":
            assert wire.error(method, [1])["code"] == -32603


@pytest.mark.parametrize("kind", [*BATCHES, *SLOTS])
def test_a_generator_waits_for_a_hook_that_takes_no_items(new_server: NewServer, kind: str) -> None:
    server, go_on = new_server(), threading.Event()

    @server.middleware
    async def slow(ctx: ucall.Context, call: ucall.Call) -> Any:
        if call.method != "f":
            return await call()
        items = await call()

        async def later() -> AsyncIterator[Any]:
            async for item in items:
                yield item
                while not go_on.is_set():
                    await asyncio.sleep(0.001)

        return later()

    source = add(server, kind, 1)
    server.add(sum)
    server.start()

    def produced() -> int:
        return source.produced if isinstance(source, Source) else source.steps

    with Wire(server.port) as wire, Wire(server.port) as other:
        wire.send(request("f", [1000, 0]))
        assert eventually(lambda: produced() >= 16, 30)
        for _ in range(200):
            assert other.result("sum", [2, 3]) == 5
        assert produced() <= 40
        go_on.set()
        assert wire.message()["result"] == [*range(1000)]


@pytest.mark.parametrize("kind", [*BATCHES, *SLOTS])
def test_a_call_past_its_deadline_ends(new_server: NewServer, kind: str) -> None:
    server = new_server()
    server.middleware(awaiting)
    add(server, kind, 1, timeout_ms=200)
    server.start()
    with Client(port=server.port) as client:
        with pytest.raises(ucall.RPCError) as raised:
            list(client.stream.f(-1, 0))
        assert raised.value.code == -32001
        # A busy machine may need longer for a call.
        assert eventually(lambda: client.f(1, 0).error is None)


@pytest.mark.parametrize("kind", ["async slots", "thread slots"])
def test_calls_that_wait_for_a_slot_are_limited_within_hooks(
    new_server: NewServer, kind: str
) -> None:
    server = new_server()
    server.middleware(awaiting)
    decoder = add(server, kind, 1, max_waiting=1)
    assert isinstance(decoder, Decoder)
    decoder.hold()
    server.start()
    with Wire(server.port) as first, Wire(server.port) as wire:
        first.send(request("f", [1, 0]) + b"\n")
        assert eventually(lambda: decoder.runs == 1, 30)
        wire.send(b"".join(request("f", [1, 0], id=id) + b"\n" for id in range(2)))
        assert wire.message()["error"]["code"] == -32003
        decoder.allow(9)
        assert first.message()["result"] == wire.message()["result"] == [0]


@pytest.mark.parametrize("kind", [*BATCHES, *SLOTS])
@in_asyncio
async def test_in_the_loop_of_a_program(engine: str, kind: str) -> None:
    server = importlib.import_module(f"ucall.{engine}").Server()
    server.middleware(awaiting)
    add(server, kind, 1)
    async with AsyncTestClient(server, transport="ws") as client:
        for n in (3, 100):
            assert [item async for item in client.stream.f(n, 0)] == [*range(n)]
        assert (await client.f(2, 0)).json == [0, 1]


@pytest.mark.parametrize("kind", BATCHES)
def test_items_pass_several_hooks(new_server: NewServer, kind: str) -> None:
    server = new_server()
    server.middleware(awaiting)
    server.middleware(awaiting)
    add(server, kind, 1)
    server.start()
    with Wire(server.port) as wire:
        wire.send(stream_request("f", 2, 0, id=1, token=1))
        got = [wire.message() for _ in range(3)]
    assert [it["params"]["value"] for it in got[:2]] == [0, 1]
    assert got[2]["result"] is None
