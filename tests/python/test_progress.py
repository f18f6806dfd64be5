"""`ctx.progress`: what functions that are no generators report before their reply."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import httpx
import pytest
from both_clients import NewClient
from reporting import loop, peek, plain
from serving import Serve
from streaming import cancel_request
from test_metrics import DURATION, samples, value
from websockets.sync.client import connect

import ucall
from harness import HOST, Wire, eventually, http, let_read, request
from ucall._functions import process_pool

EVENTS, LINES = "text/event-stream", "application/x-ndjson"
#: Reports that wait for the server's thread: see `WAITING_ITEMS_MAX`.
WAITING_MAX = 128


async def task(ctx: ucall.Context, n: int) -> int:
    await asyncio.sleep(0)
    return plain(ctx, n)


async def done_task(ctx: ucall.Context, n: int) -> int:
    """It does not wait, so it is done in the turn of its call."""
    return plain(ctx, n)


def batch(ctx: list[ucall.Context], n: list[int]) -> list[int]:
    return [plain(*call) for call in zip(ctx, n, strict=True)]


async def async_batch(ctx: list[ucall.Context], n: list[int]) -> list[int]:
    await asyncio.sleep(0)
    return batch(ctx, n)


#: How functions run.
KINDS: dict[str, Callable[[ucall.Server], object]] = {
    "plain": lambda server: server.add(plain, name="work"),
    "task": lambda server: server.add(task, name="work"),
    "done_task": lambda server: server.add(done_task, name="work"),
    "thread": lambda server: server.add(plain, name="work", threads=True),
    "process": lambda server: server.add(plain, name="work", processes=1),
    "batch": lambda server: server.batch(batch, name="work", max_size=8),
    "async_batch": lambda server: server.batch(async_batch, name="work", max_size=8),
    "thread_batch": lambda server: server.batch(batch, name="work", max_size=8, threads=True),
}


def served(serve: Serve, kind: str, **options: Any) -> ucall.Server:
    server = serve(**options)
    KINDS[kind](server)
    return server


def asking(method: str, *params: Any, id: int = 1) -> bytes:
    """A call whose caller asks for progress."""
    call = json.loads(request(method, params, id))
    return json.dumps(call | {"_meta": {"progressToken": f"t{id}"}}).encode()


def report(done: int, total: int) -> dict[str, Any]:
    return {"progress": done, "total": total, "message": f"step {done}"}


@pytest.mark.parametrize("kind", KINDS)
def test_reports_precede_the_reply(serve: Serve, kind: str) -> None:
    server = served(serve, kind)
    with Wire(server.port) as wire:
        wire.send(asking("work", 3, id=7))
        first = wire.message()
        assert first == {
            "jsonrpc": "2.0",
            "method": "$/progress",
            "params": {"token": "t7", "value": report(1, 3)},
        }
        reply = {"jsonrpc": "2.0", "id": 7, "result": 3}
        assert wire.stream() == ([report(2, 3), report(3, 3)], reply)
        # Who does not ask gets none, and neither does a notification.
        wire.send(request("work", [3], 8) + request("work", [3], ...) + asking("work", 0, id=9))
        replies = [wire.message() for _ in range(2)]
        assert sorted((it["id"], it["result"]) for it in replies) == [(8, 3), (9, 0)]
        # Each call of a batch of requests has its own.
        wire.send(b"[" + asking("work", 1, id=10) + b"," + asking("work", 2, id=11) + b"]")
        messages = [wire.message() for _ in range(4)]
        tokens = [it["params"]["token"] for it in messages[:3]]
        assert sorted(tokens) == ["t10", "t11", "t11"]
        assert {it["id"]: it["result"] for it in messages[3]} == {10: 1, 11: 2}


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_newest_of_many_reports_is_certain(serve: Serve, kind: str) -> None:
    server = served(serve, kind)
    with Wire(server.port) as wire:
        wire.send(asking("work", 2000))
        reports, reply = wire.stream()
        assert reply["result"] == 2000
        steps = [it["progress"] for it in reports]
        assert steps[0] == 1 and steps[-1] == 2000 and steps == sorted(set(steps))
        if kind in ("plain", "done_task", "batch"):
            assert len(steps) == WAITING_MAX


@pytest.mark.parametrize("accept", [EVENTS, LINES])
@pytest.mark.parametrize("kind", KINDS)
def test_over_http(serve: Serve, kind: str, accept: str) -> None:
    server = served(serve, kind)
    with httpx.Client(base_url=f"http://{HOST}:{server.port}") as client:
        call = json.loads(request("work", [2], "a"))
        with client.stream("POST", "/", json=call, headers={"Accept": accept}) as response:
            assert response.headers["content-type"] == accept
            lines = [line.removeprefix("data: ") for line in response.iter_lines() if line]
        messages = [json.loads(line) for line in lines]
        values = [(it["params"]["token"], it["params"]["value"]) for it in messages[:-1]]
        assert values == [("a", report(1, 2)), ("a", report(2, 2))]
        assert messages[-1] == {"jsonrpc": "2.0", "id": "a", "result": 2}
        # Without a report it is an ordinary reply, as it is for a caller who does not ask.
        for n, headers in ((0, {"Accept": accept}), (2, {})):
            call = json.loads(request("work", [n]))
            response = client.post("/", json=call, headers=headers)
            assert response.headers["content-type"] == "application/json"
            assert response.json()["result"] == n


def test_over_websocket(serve: Serve) -> None:
    server = served(serve, "task")
    with connect(f"ws://{HOST}:{server.port}") as socket:
        socket.send(asking("work", 1).decode())
        assert json.loads(socket.recv())["params"] == {"token": "t1", "value": report(1, 1)}
        assert json.loads(socket.recv())["result"] == 1


@pytest.mark.parametrize("scheme", ["http", "tcp", "ws"])
def test_the_clients_pass_reports_to_a_callback(
    serve: Serve, new_client: NewClient, scheme: str
) -> None:
    server = served(serve, "thread")
    client = new_client(f"{scheme}://{HOST}:{server.port}")
    reports: list[Any] = []
    for n in (2, 0):
        assert client.with_progress(reports.append).work(n=n).json == n
    assert reports == [report(1, 2), report(2, 2)]


async def async_loop(ctx: ucall.Context, path: str) -> None:
    ctx.progress(0.5)
    try:
        await asyncio.Event().wait()
    finally:
        assert ctx.cancelled
        Path(path).touch()


#: Functions that a cancellation reaches while they run.
LOOPS: dict[str, Callable[[ucall.Server], object]] = {
    "task": lambda server: server.add(async_loop, name="loop"),
    "thread": lambda server: server.add(loop, threads=True),
    "process": lambda server: server.add(loop, processes=1),
}


@pytest.mark.parametrize("kind", LOOPS)
def test_reports_leave_at_once_and_cancellations_arrive(
    serve: Serve, kind: str, tmp_path: Path
) -> None:
    server = serve()
    LOOPS[kind](server)
    with Wire(server.port) as wire:
        for number in range(2):
            seen = tmp_path / f"{number}"
            wire.send(asking("loop", str(seen)))
            assert wire.message()["params"]["value"] == {"progress": 0.5}
            wire.send(cancel_request(1))
            assert wire.message()["error"]["code"] == -32800
            assert eventually(seen.exists)
    gone = tmp_path / "gone"
    with Wire(server.port) as wire:
        wire.send(http(request("loop", [str(gone)]), f"Accept: {EVENTS}"))
        assert b"text/event-stream" in wire.take_to(b"\r\n\r\n")
    assert eventually(gone.exists)


def test_nothing_is_reported_after_the_end(serve: Serve) -> None:
    contexts: list[ucall.Context] = []
    cancelled = threading.Event()

    async def keep(ctx: ucall.Context, waits: bool) -> None:
        contexts.append(ctx)
        try:
            if waits:
                await asyncio.Event().wait()
        finally:
            cancelled.set()

    with Wire(serve(keep).port) as wire:
        wire.send(asking("keep", False))
        assert wire.message()["id"] == 1
        wire.send(asking("keep", True, id=2))
        assert eventually(lambda: len(contexts) == 2)
        wire.send(cancel_request(2))
        assert wire.message()["error"]["code"] == -32800
        assert cancelled.wait(60)
        for ctx in contexts:
            ctx.progress(1)
        assert wire.error("nobody")["code"] == -32601


def test_a_slow_reader_gets_the_newest_reports_and_holds_nobody_up(serve: Serve) -> None:
    ended = threading.Event()

    def work(ctx: ucall.Context) -> str:
        for step in range(4000):
            ctx.progress(step, message="x" * 10_000)
        ended.set()
        return "done"

    server = serve()
    server.add(work, threads=True)
    with Wire(server.port, buffer_bytes=8192) as wire:
        wire.send(asking("work"))
        assert ended.wait(60)
        let_read(server.port)
        reports, reply = wire.stream()
        assert reply["result"] == "done"
        assert reports[-1]["progress"] == 3999 and len(reports) < 3000


def test_a_failure_comes_after_the_reports(serve: Serve) -> None:
    def fail(ctx: ucall.Context) -> None:
        ctx.progress(1)
        raise ucall.RPCError(7, "no")

    server = serve(fail)
    server.add(fail, name="threaded", threads=True)
    with Wire(server.port) as wire:
        for name in ("fail", "threaded"):
            wire.send(asking(name))
            reports, reply = wire.stream()
            assert reports == [{"progress": 1}] and reply["error"]["code"] == 7


def test_what_cannot_be_reported(serve: Serve) -> None:
    raised: list[str] = []

    def work(ctx: ucall.Context) -> None:
        for arguments in (("1",), (1, []), (float("nan"),), (1, float("inf")), (1, 2, 3)):
            try:
                ctx.progress(*arguments)  # type: ignore[arg-type]
            except (TypeError, ValueError) as error:
                raised.append(f"{type(error).__name__}: {error}")
        ctx.progress(2**60, 0.5, 'a "quoted" one')

    def generate(ctx: ucall.Context) -> Iterator[int]:
        with pytest.raises(RuntimeError, match="reports by what it yields"):
            ctx.progress(1)
        yield 1

    with Wire(serve(work, generate).port) as wire:
        wire.send(asking("work"))
        reports, _ = wire.stream()
        assert reports == [{"progress": 2**60, "total": 0.5, "message": 'a "quoted" one'}]
        assert raised == [
            "TypeError: done: expected a number, got str",
            "TypeError: total: expected a number, got list",
            "ValueError: done: expected a finite number",
            "ValueError: total: expected a finite number",
            "TypeError: message: expected a str, got int",
        ]
        assert wire.result("generate") == [1]


def test_reports_of_numpy(serve: Serve) -> None:
    numpy = pytest.importorskip("numpy")

    def work(ctx: ucall.Context) -> None:
        ctx.progress(numpy.int64(3), numpy.float32(4.5))

    with Wire(serve(work).port) as wire:
        wire.send(asking("work"))
        assert wire.stream()[0] == [{"progress": 3, "total": 4.5}]


def test_a_process_that_reports_all_the_time_is_killed_at_the_deadline() -> None:
    ours, theirs = Pipe()
    with ours, theirs:
        theirs.send_bytes(b"{}")
        assert process_pool._receive(ours, time.monotonic() + 60) == b"{}"
        theirs.send_bytes(b"{}")
        with pytest.raises(TimeoutError, match="killed at the deadline"):
            process_pool._receive(ours, time.monotonic())


def test_a_context_in_a_process_says_what_it_lacks(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    server = serve()
    server.add(peek, processes=1)
    with Wire(server.port) as wire:
        assert wire.error("peek")["code"] == -32603
    assert "ctx.method: a context in another process has cancelled and progress" in caplog.text


def test_a_call_that_has_reported_is_counted_and_logged_once(
    serve: Serve, capfd: pytest.CaptureFixture[str]
) -> None:
    server = served(serve, "plain", metrics=True, access_log="json")
    with Wire(server.port) as wire:
        wire.send(asking("work", 2))
        wire.stream()
    assert value(samples(server.port), f"{DURATION}_count", rpc_method="work") == 1
    server.stop()
    written = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [it["method"] for it in written] == ["work"]
