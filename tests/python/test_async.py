"""Async functions as asyncio tasks, next to plain functions."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import importlib
import json
import socket
import struct
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import httpx
import pytest
from functions import sum

import ucall
from harness import HOST, Wire, eventually, http, new_interpreter, program, request

Serve = Callable[..., ucall.Server]


async def add(a: int, b: int) -> int:
    return a + b


async def pause(seconds: float, value: Any = None) -> Any:
    await asyncio.sleep(seconds)
    return value


def test_a_function_that_never_waits_is_answered_at_once(serve: Serve) -> None:
    with Wire(serve(add, sum).port) as wire:
        for number in range(100):
            assert wire.result("add", [number, 1]) == number + 1
        wire.send(request("add", [1, 2]) + request("sum", [3, 4]) + request("add", [5, 6]))
        assert [json.loads(wire.line())["result"] for _ in range(3)] == [3, 7, 11]


def test_a_waiting_function_delays_no_other_call(serve: Serve) -> None:
    with Wire(serve(pause, sum).port) as wire:
        wire.send(request("pause", [0.3, "slow"], id=1) + request("sum", [1, 2], id=2))
        assert json.loads(wire.line()) == {"jsonrpc": "2.0", "id": 2, "result": 3}
        assert json.loads(wire.line()) == {"jsonrpc": "2.0", "id": 1, "result": "slow"}


def test_http_keeps_its_order(serve: Serve) -> None:
    with Wire(serve(pause, sum).port) as wire:
        wire.send(http(request("pause", [0.1, 1])) + http(request("sum", [1, 1])))
        wire.send(http(request("pause", [0.01, 3])))
        results = [json.loads(wire.reply()[2])["result"] for _ in range(3)]
        assert results == [1, 2, 3]


def test_batches_and_notifications(serve: Serve) -> None:
    noted: list[int] = []

    async def note(a: int) -> None:
        await asyncio.sleep(0.01)
        noted.append(a)

    server = serve(pause, add, note)
    with Wire(server.port) as wire:
        calls = [request("pause", [0.05, 1], 1), request("add", [1, 1], 2)]
        calls += [request("note", [7], ...), request("pause", [0.01, 3], 3)]
        wire.send(b"[" + b",".join(calls) + b"]")
        replies = json.loads(wire.line())
        assert [reply["result"] for reply in replies] == [1, 2, 3]
    with Wire(server.port) as wire:
        wire.send(http(request("note", [8], ...)))
        assert wire.reply()[0] == 204
    assert eventually(lambda: noted == [7, 8])


def test_a_thousand_sleepers_at_once(serve: Serve) -> None:
    server = serve(pause, sum, max_pipeline=2000, max_connection_calls=2000)
    with Wire(server.port) as wire, Wire(server.port) as other:
        start = time.monotonic()
        wire.send(b"".join(request("pause", [0.3, n], id=n) for n in range(1000)))
        assert other.result("sum", [1, 2]) == 3
        replies = [json.loads(wire.line()) for _ in range(1000)]
        # One after another they would take five minutes.
        assert time.monotonic() - start < 60
        assert all(reply["id"] == reply["result"] for reply in replies)


def test_exceptions(serve: Serve) -> None:
    async def fail(late: bool, code: int) -> None:
        if late:
            await asyncio.sleep(0.001)
        if code:
            raise ucall.RPCError(code, "no", [1])
        raise KeyError("x")

    async def cancelled() -> None:
        raise asyncio.CancelledError

    async def unwritable(late: bool) -> object:
        if late:
            await asyncio.sleep(0)
        return object()

    with Wire(serve(fail, cancelled, unwritable).port) as wire:
        for late in (False, True):
            assert wire.error("fail", [late, 5]) == {"code": 5, "message": "no", "data": [1]}
            assert wire.error("fail", [late, 0])["code"] == -32603
            assert "object" in wire.error("unwritable", [late])["data"]
        assert wire.error("cancelled")["code"] == -32007
        assert wire.error("fail", [1, 2])["code"] == -32602
        assert wire.error("fail", [True])["code"] == -32602


def test_asyncio_is_fully_usable(serve: Serve) -> None:
    async def tour() -> list[Any]:
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        seen: list[Any] = [task is not None, loop.is_running()]
        try:
            async with asyncio.timeout(0.01):
                await asyncio.sleep(5)
        except TimeoutError:
            seen.append("timeout")
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(pause(0.001, n)) for n in range(3)]
        seen.append([task.result() for task in tasks])
        seen.append(await asyncio.to_thread(lambda: "thread"))
        seen.append(await loop.run_in_executor(None, threading.get_ident) != threading.get_ident())
        future = loop.create_future()
        threading.Timer(0.01, loop.call_soon_threadsafe, [future.set_result, "afar"]).start()
        seen.append(await future)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", "print('child')", stdout=asyncio.subprocess.PIPE
        )
        seen.append((await process.communicate())[0].decode().strip())
        return seen

    async def trio_like() -> list[str]:
        seen = []
        with anyio.move_on_after(0.01):
            await anyio.sleep(5)
            seen.append("never")
        async with anyio.create_task_group() as group:
            group.start_soon(anyio.sleep, 0.001)
        seen.append(await anyio.to_thread.run_sync(lambda: "anyio"))
        return seen

    with Wire(serve(tour, trio_like).port) as wire:
        tour_seen = [True, True, "timeout", [0, 1, 2], "thread", True, "afar", "child"]
        if sys.platform == "linux" and sys.version_info < (3, 12):
            # Without pidfd, asyncio's child watcher needs a loop on the main thread.
            reply = wire.call("tour")
            assert reply.get("result", tour_seen) == tour_seen
        else:
            assert wire.result("tour") == tour_seen
        assert wire.result("trio_like") == ["anyio"]


def test_calling_itself_and_others_by_httpx(serve: Serve) -> None:
    server = serve(sum)

    async def fetch(times: int) -> list[int]:
        url = f"http://{HOST}:{server.port}"
        async with httpx.AsyncClient() as client:
            call = {"jsonrpc": "2.0", "method": "sum", "params": [1, 2], "id": 1}
            replies = await asyncio.gather(*[client.post(url, json=call) for _ in range(times)])
        return [reply.json()["result"] for reply in replies]

    server.add(fetch)
    with Wire(server.port) as wire:
        assert wire.result("fetch", [10]) == [3] * 10


def test_calling_itself_by_aiohttp(serve: Serve) -> None:
    aiohttp = pytest.importorskip("aiohttp")
    server = serve(sum)

    async def fetch() -> int:
        call = {"jsonrpc": "2.0", "method": "sum", "params": [1, 2], "id": 1}
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"http://{HOST}:{server.port}", json=call) as reply,
        ):
            result: int = (await reply.json())["result"]
            return result

    server.add(fetch)
    with Wire(server.port) as wire:
        assert wire.result("fetch") == 3


def test_an_async_function_may_be_added_to_a_running_server(serve: Serve) -> None:
    server = serve(sum)
    with Wire(server.port) as wire:
        assert wire.result("sum", [1, 2]) == 3
        server.add(pause)
        server.add(add)
        assert wire.result("pause", [0.01, "x"]) == "x"
        assert wire.result("add", [1, 2]) == wire.result("sum", [1, 2]) == 3


def test_it_stops_and_starts_again(serve: Serve) -> None:
    server = serve(pause)
    for _ in range(3):
        with Wire(server.port) as wire:
            assert wire.result("pause", [0.01, 1]) == 1
        server.stop()
        server.start()


def test_bounded_runs_keep_tasks_alive(engine: str) -> None:
    server = ucall.Server(port=0)
    server.add(pause)
    results: list[Any] = []

    def call() -> None:
        with Wire(server.port) as wire:
            results.append(wire.result("pause", [0.2, "kept"]))

    server.run(max_cycles=0)
    caller = threading.Thread(target=call)
    caller.start()
    while caller.is_alive():
        server.run(max_seconds=0.05)
    caller.join()
    assert results == ["kept"]
    server.stop()


def test_each_call_has_its_own_context_variables(serve: Serve) -> None:
    variable = contextvars.ContextVar("variable", default=0)

    async def count() -> int:
        variable.set(variable.get() + 1)
        await asyncio.sleep(0)
        return variable.get()

    with Wire(serve(count).port) as wire:
        assert [wire.result("count") for _ in range(3)] == [1, 1, 1]


def test_a_disconnected_caller_cancels_its_call(serve: Serve) -> None:
    ended: list[str] = []

    async def wait_long() -> None:
        try:
            await asyncio.sleep(3000)
        finally:
            ended.append("cancelled")

    server = serve(wait_long, sum)
    call = request("wait_long")
    # Over raw TCP a client that has shut down its sending side still reads; only a reset, before or
    # after that, ends its calls.
    for sent, ends, resets in ((call, False, True), (call, True, True), (http(call), False, False)):
        with Wire(server.port) as wire:
            linger = struct.pack("ii", resets, 0)
            wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            wire.send(sent)
            if ends:
                wire.end()
            with Wire(server.port) as other:
                other.result("sum", [1, 2])
    assert eventually(lambda: len(ended) == 3)


def test_startup_and_shutdown(serve_once: Serve) -> None:
    seen: list[str] = []

    @contextlib.asynccontextmanager
    async def lifespan(server: ucall.Server) -> AsyncIterator[None]:
        seen.append("enter")
        with anyio.CancelScope():
            yield
        seen.append("leave")

    server = ucall.Server(port=0, lifespan=lifespan)

    @server.on_startup
    def first() -> None:
        seen.append("first")

    @server.on_startup
    async def second() -> None:
        await asyncio.sleep(0.001)
        seen.append("second")

    @server.on_shutdown
    async def last() -> None:
        await asyncio.sleep(0.001)
        seen.append("last")

    @server.on_shutdown
    def earlier() -> None:
        seen.append("earlier")

    server.add(lambda: list(seen), name="seen")
    for _ in range(2):
        seen.clear()
        with server, Wire(server.port) as wire:
            assert wire.result("seen") == ["enter", "first", "second"]
        assert seen == ["enter", "first", "second", "earlier", "last", "leave"]


def test_a_failing_startup_hook_is_reported() -> None:
    for is_async in (False, True):
        server = ucall.Server(port=0)

        def fail() -> None:
            raise LookupError("no model")

        async def fail_later() -> None:
            await asyncio.sleep(0)
            raise LookupError("no model")

        server.on_startup(fail_later if is_async else fail)
        with pytest.raises(LookupError, match="no model"):
            server.start()


class AsyncHook:
    """An object whose call is async."""

    def __init__(self, seen: list[str]) -> None:
        self.seen = seen

    async def __call__(self) -> None:
        await asyncio.sleep(0)
        self.seen.append("ran")


def wrapped(hook: Callable[[], Any]) -> Callable[[], Any]:
    @functools.wraps(hook)
    def wrapper() -> Any:
        return hook()

    return wrapper


@pytest.mark.parametrize("kind", ["object", "wrapper"])
def test_async_hooks_of_any_kind_run_without_async_functions(kind: str) -> None:
    seen: list[str] = []

    async def append() -> None:
        await asyncio.sleep(0)
        seen.append("ran")

    hook: Callable[[], Any] = AsyncHook(seen) if kind == "object" else wrapped(append)
    server = ucall.Server(port=0)
    server.on_startup(hook)
    server.on_shutdown(hook)
    with server:
        assert seen == ["ran"]
    assert seen == ["ran", "ran"]


def test_a_plain_hook_that_returns_a_coroutine_is_refused() -> None:
    server = ucall.Server(port=0)
    server.on_startup(lambda: asyncio.sleep(0))
    with pytest.raises(TypeError, match="returned a coroutine"):
        server.start()


def test_a_failing_shutdown_hook_keeps_no_other_from_running() -> None:
    def fail() -> None:
        raise LookupError("no cache")

    async def fail_later() -> None:
        fail()

    for failing in (fail, fail_later):
        seen: list[str] = []
        server = ucall.Server(port=0)
        server.on_shutdown(functools.partial(seen.append, "first"))
        server.on_shutdown(failing)
        server.on_startup(server.stop)
        with pytest.raises(LookupError, match="no cache"):
            server.run()
        assert seen == ["first"]


def test_a_failing_startup_hook_leaves_the_lifespan_and_runs_no_shutdown_hook() -> None:
    seen: list[str] = []

    @contextlib.asynccontextmanager
    async def lifespan(server: ucall.Server) -> AsyncIterator[None]:
        yield
        seen.append("left")

    def fail() -> None:
        raise LookupError("no model")

    server = ucall.Server(port=0, lifespan=lifespan)
    server.on_startup(fail)
    server.on_shutdown(lambda: seen.append("shutdown"))
    with pytest.raises(LookupError, match="no model"):
        server.run()
    assert seen == ["left"]
    with pytest.raises(LookupError, match="no model"):
        asyncio.run(server.serve())
    assert seen == ["left", "left"]


@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "async"])
def test_a_stop_after_a_bounded_run_runs_the_shutdown_hooks(is_async: bool) -> None:
    seen: list[str] = []
    server = ucall.Server(port=0)

    async def close() -> None:
        await asyncio.sleep(0)
        seen.append("down")

    server.on_shutdown(close if is_async else lambda: seen.append("down"))
    server.run(max_cycles=0)
    assert seen == []
    server.stop()
    assert seen == ["down"]


def test_a_stop_after_a_bounded_run_drains(engine: str) -> None:
    server: ucall.Server = importlib.import_module(f"ucall.{engine}").Server(port=0)
    server.add(pause)
    server.run(max_cycles=0)
    with Wire(server.port) as wire:
        wire.send(request("pause", [0.05, "drained"]))
        while server.stats()["calls"] == 0:
            server.run(max_cycles=1, max_seconds=1)
        server.stop()
        assert json.loads(wire.line())["result"] == "drained"
        assert wire.rest() == b""


def test_a_server_may_be_stopped_while_a_startup_hook_waits() -> None:
    began, seen = threading.Event(), []

    @contextlib.asynccontextmanager
    async def lifespan(server: ucall.Server) -> AsyncIterator[None]:
        yield
        seen.append("left")

    async def wait() -> None:
        began.set()
        await asyncio.sleep(60)

    def run() -> None:
        server.run()
        seen.append("returned")

    server = ucall.Server(port=0, lifespan=lifespan)
    server.on_startup(wait)
    server.on_shutdown(lambda: seen.append("shutdown"))
    thread = threading.Thread(target=run)
    thread.start()
    assert began.wait(60)
    server.stop()
    thread.join()
    assert seen == ["left", "returned"]


def test_cancelled_calls_clean_up_before_the_shutdown_hooks(hosted: Serve) -> None:
    began, seen = threading.Event(), []

    async def change() -> None:
        try:
            began.set()
            await asyncio.sleep(600)
        finally:
            await asyncio.sleep(0.1)
            seen.append("rolled back")

    server = hosted(change, drain_timeout_s=0.01)
    server.on_shutdown(lambda: seen.append("closed"))
    with Wire(server.port) as wire:
        wire.send(request("change"))
        assert began.wait(60)
        server.stop()
        assert eventually(lambda: "closed" in seen)
    assert seen == ["rolled back", "closed"]


def test_plain_hooks_need_no_event_loop() -> None:
    seen = []
    server = ucall.Server(port=0)
    server.on_startup(lambda: seen.append("up"))
    server.on_shutdown(lambda: seen.append("down"))
    with server:
        assert seen == ["up"]
    assert seen == ["up", "down"]


WITHOUT_ASYNCIO = """
import sys, ucall
server = ucall.Server(port=0)
@server
def modules() -> bool:
    return "asyncio" in sys.modules
server.on_startup(lambda: print(server.port))
server.run()
"""


def test_asyncio_is_imported_only_when_needed() -> None:
    with new_interpreter(WITHOUT_ASYNCIO) as process, Wire(int(process.stdout.readline())) as wire:
        assert wire.result("modules") is False


GUEST = """
import asyncio, importlib, sys, ucall
if sys.argv[2] == "uvloop":
    import uvloop
    run = uvloop.run
else:
    run = asyncio.run
kind = importlib.import_module("ucall." + sys.argv[1]).Server
server = kind(port=0, observability=ucall.Observability(slow_call_s=60))
@server
async def pause(seconds: float):
    await asyncio.sleep(seconds)
    return type(asyncio.get_running_loop()).__module__
@server
def sum(a: int, b: int):
    return a + b
@server(threads=True)
def block(seconds: float):
    import time
    time.sleep(seconds)
    return seconds
@server(timeout_ms=100)
async def wait_long():
    await asyncio.sleep(3000)
@server
def stop():
    server.stop()
async def main():
    ticks = 0
    async def tick():
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0.01)
    ticker = asyncio.create_task(tick())
    server.on_startup(lambda: print(server.port))
    await server.serve()
    print("served", ticks > 3)
run(main())
"""


@pytest.mark.parametrize("host", ["asyncio", "uvloop"])
def test_serve_within_an_existing_loop(engine: str, host: str) -> None:
    if host == "uvloop":
        pytest.importorskip("uvloop")
    with program(GUEST, engine, host) as process:
        port = int(process.stdout.readline())
        with Wire(port) as wire, Wire(port) as other:
            for _ in range(200):
                assert wire.result("sum", [1, 2]) == 3
            wire.send(b"".join(request("sum", [n, 1], id=n) for n in range(2000)))
            assert [json.loads(wire.line())["result"] for _ in range(2000)] == list(range(1, 2001))
            wire.send(request("pause", [0.1]))
            assert other.result("sum", [1, 2]) == 3
            assert host in json.loads(wire.line())["result"]
            assert wire.result("pause", [0]).startswith(host)
            assert wire.result("block", [0.05]) == 0.05
            assert wire.error("wait_long")["code"] == -32001
            assert wire.result("stop") is None
            assert wire.rest() == b""
        output, errors = process.communicate(timeout=60)
        assert (output, errors) == ("served True\n", "")


def test_serve_drains_when_cancelled(engine: str) -> None:
    server = ucall.Server(port=0)
    server.add(pause)

    async def main() -> Any:
        listens = asyncio.Event()
        server.on_startup(listens.set)
        serving = asyncio.create_task(server.serve())
        await listens.wait()
        reader, writer = await asyncio.open_connection(HOST, server.port)
        writer.write(request("pause", [0.2, "drained"]))
        await asyncio.to_thread(eventually, lambda: server.stats()["bytes_received"] > 0)
        serving.cancel()
        assert json.loads(await reader.readline())["method"] == "$/drain"
        line = await reader.readline()
        with pytest.raises(asyncio.CancelledError):
            await serving
        writer.close()
        return json.loads(line)["result"]

    assert asyncio.run(main()) == "drained"
    with socket.socket() as probe:
        assert probe.connect_ex((HOST, server.port)) != 0
