"""Deadlines, cancellation, and the limit on running calls."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from functions import sum

import ucall
from harness import HOST, Wire, eventually, http, request
from ucall.client import Client

Serve = Callable[..., ucall.Server]


async def pause(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "slept"


def block(seconds: float) -> str:
    time.sleep(seconds)
    return "slept"


def _error(reply: bytes) -> int:
    code: int = json.loads(reply)["error"]["code"]
    return code


@pytest.mark.parametrize("where", ["server", "function", "header"])
def test_an_async_function_is_cancelled_at_its_deadline(serve: Serve, where: str) -> None:
    began: list[float] = []
    ended: list[float] = []

    async def wait_long() -> None:
        began.append(time.monotonic())
        try:
            await asyncio.sleep(3000)
        finally:
            ended.append(time.monotonic())

    server = serve(timeout_ms=100 if where == "server" else None)
    server.add(wait_long, timeout_ms=100 if where == "function" else None)
    headers = ["Ucall-Timeout-Ms: 100"] if where == "header" else []
    with Wire(server.port) as wire:
        sent = time.monotonic()

        def has_begun() -> bool:
            """A call whose deadline passes in the queue does not start."""
            wire.send(http(request("wait_long"), *headers))
            status, _, body = wire.reply()
            assert (status, _error(body)) == (200, -32001)
            return len(began) == 1

        assert eventually(has_begun)
        assert eventually(lambda: len(ended) == 1) and ended[0] - sent >= 0.09


def test_an_expired_call_is_never_started(serve: Serve) -> None:
    started: list[str] = []

    def plain() -> None:
        started.append("plain")

    async def task() -> None:
        started.append("task")

    def thread() -> None:
        started.append("thread")

    server = serve(plain, task, block)
    server.add(thread, threads=True)
    with Wire(server.port) as wire:
        for name in ("plain", "task", "thread"):
            wire.send(http(request(name), "Ucall-Timeout-Ms: 0"))
            assert _error(wire.reply()[2]) == -32001
        # All calls arrive together, and the first takes longer than the second may wait.
        late = [http(request(name), "Ucall-Timeout-Ms: 50") for name in ("plain", "task")]
        wire.send(http(request("block", [0.2])) + b"".join(late))
        assert json.loads(wire.reply()[2])["result"] == "slept"
        assert [_error(wire.reply()[2]) for _ in late] == [-32001, -32001]
    assert started == []


def test_a_thread_sees_its_deadline_and_its_result_is_dropped(serve: Serve) -> None:
    seen: list[bool] = []

    def watch(ctx: ucall.Context) -> str:
        while not ctx.cancelled:
            time.sleep(0.005)
        seen.append(True)
        return "nobody reads this"

    server = serve(timeout_ms=100)
    server.add(watch, threads=True)
    with Wire(server.port) as wire:
        assert wire.error("watch")["code"] == -32001
        assert eventually(lambda: seen == [True])
        wire.send(http(b""))
    server.add(sum)
    with Wire(server.port) as wire:
        assert wire.result("sum", [1, 2]) == 3


def test_a_thread_sees_its_caller_disconnect(serve: Serve) -> None:
    seen: list[str] = []

    def watch(ctx: ucall.Context) -> None:
        seen.append("began")
        until = time.monotonic() + 20
        while not ctx.cancelled and time.monotonic() < until:
            time.sleep(0.005)
        seen.append("told" if ctx.cancelled else "never told")

    server = serve()
    server.add(watch, threads=True)
    with Wire(server.port) as wire:
        wire.send(http(request("watch")))
        assert eventually(lambda: seen == ["began"])
    assert eventually(lambda: seen == ["began", "told"])


def test_queued_calls_past_their_deadline_are_not_started(serve: Serve) -> None:
    started: list[int] = []
    began, may_end = threading.Event(), threading.Event()

    def hold() -> str:
        began.set()
        may_end.wait(60)
        return "held"

    server = serve(max_threads=1)
    server.add(hold, threads=True)
    server.add(started.append, name="work", threads=True, timeout_ms=150)
    with Wire(server.port) as wire:
        wire.send(request("hold"))
        assert began.wait(60)
        wire.send(b"".join(request("work", [n], id=n) for n in range(3)))
        assert [_error(wire.line()) for _ in range(3)] == [-32001] * 3
        # A call after them in the queue starts when a thread is free.
        wire.send(request("hold"))
        may_end.set()
        assert [json.loads(wire.line())["result"] for _ in range(2)] == ["held"] * 2
    assert started == []


def test_a_non_numeric_timeout_is_refused(serve: Serve) -> None:
    with Wire(serve(sum).port) as wire:
        wire.send(http(request("sum", [1, 2]), "Ucall-Timeout-Ms: soon"))
        assert wire.reply()[0] == 400


def test_too_many_calls_at_once(serve: Serve) -> None:
    held: list[asyncio.Future[str]] = []

    async def hold() -> str:
        held.append(asyncio.get_running_loop().create_future())
        return await held[-1]

    def release() -> None:
        for call in held:
            call.set_result("held")

    server = serve(hold, release, sum, max_running_calls=5)
    server.add(block, threads=True)
    with Wire(server.port) as wire:
        wire.send(b"".join(request("hold", id=n) for n in range(8)))
        refused = [json.loads(wire.line()) for _ in range(3)]
        assert {reply["error"]["code"] for reply in refused} == {-32003}
        assert all(reply["error"]["data"]["retry_after_ms"] > 0 for reply in refused)
        assert wire.result("sum", [1, 2]) == 3
        assert wire.error("block", [0])["code"] == -32003
        wire.send(request("release", id=...))
        done = [json.loads(wire.line()) for _ in range(5)]
        assert {reply["result"] for reply in done} == {"held"}
        assert wire.result("block", [0]) == "slept"


@pytest.mark.parametrize("kind", ["batch", "notifications"])
def test_a_connection_with_many_calls_leaves_the_last_ones_to_others(
    serve: Serve, kind: str
) -> None:
    held: list[asyncio.Future[str]] = []

    async def hold() -> str:
        held.append(asyncio.get_running_loop().create_future())
        return await held[-1]

    def count() -> int:
        return len(held)

    def release() -> None:
        for call in held:
            call.set_result("held")

    server = serve(hold, count, release, max_running_calls=80)
    ids = range(100) if kind == "batch" else [...] * 100
    calls = [request("hold", id=it) for it in ids]
    with contextlib.ExitStack() as stack:
        hog, *others = (stack.enter_context(Wire(server.port)) for _ in range(12))
        hog.send(b"[" + b",".join(calls) + b"]")
        assert eventually(lambda: others[0].result("count") == 70)
        *others, last = others
        for wire in others:
            wire.send(request("hold"))
        assert eventually(lambda: last.result("count") == 80)
        assert last.error("hold")["code"] == -32003
        last.send(request("release", id=...))
        assert [json.loads(wire.line())["result"] for wire in others] == ["held"] * 10
        if kind == "batch":
            codes = [reply.get("error", {}).get("code") for reply in json.loads(hog.line())]
            assert codes == [None] * 70 + [-32003] * 30


@pytest.mark.parametrize("timeout_ms", [0, -1, float("nan")])
def test_invalid_timeouts_are_rejected(timeout_ms: Any) -> None:
    with pytest.raises(ValueError, match="timeout_ms"):
        ucall.Server(port=0, timeout_ms=timeout_ms)
    server = ucall.Server(port=0)
    with pytest.raises(ValueError, match="timeout_ms"):
        server.add(sum, timeout_ms=timeout_ms)


def test_the_timeout_of_a_client_is_a_deadline(serve: Serve) -> None:
    ended: list[bool] = []

    async def wait_long() -> None:
        try:
            await asyncio.sleep(600)
        finally:
            ended.append(True)

    server = serve(wait_long)
    with (
        Client(port=server.port, timeout=0.2) as client,
        # Either side may notice first.
        pytest.raises((ucall.TimeoutError, ucall.RPCError)),
    ):
        client.wait_long().raise_for_status()
    assert eventually(lambda: ended == [True])


def test_idle_connections_are_closed_within_an_existing_loop(engine: str) -> None:
    server = importlib.import_module(f"ucall.{engine}").Server(
        port=0, timeouts=ucall.Timeouts(idle_timeout_s=0.05)
    )

    async def main() -> None:
        serving = asyncio.create_task(server.serve())
        while server.port is None:
            await asyncio.sleep(0)
        reader, writer = await asyncio.open_connection(HOST, server.port)
        assert await asyncio.wait_for(reader.read(), timeout=60) == b""
        writer.close()
        server.stop()
        await serving

    asyncio.run(main())
