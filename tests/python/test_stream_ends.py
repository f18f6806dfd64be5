"""Streams that end early, or whose readers are slow: their generators pause and are closed."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from functions import add
from serving import Serve
from streaming import KINDS, SINGLE_KINDS, Source, cancel_request, stream_request
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

import ucall
from harness import HOST, Wire, eventually, http, request

#: Streams at once, on CONNECTIONS; fewer in threads.
MANY = 1_000
THREADS = 100
CONNECTIONS = 5


async def tasks() -> int:
    """The tasks of the loop besides this one."""
    return len(asyncio.all_tasks()) - 1


def of_each(kind: str) -> range:
    """The ids of the streams of each connection."""
    return range((THREADS if kind == "thread" else MANY) // CONNECTIONS)


@contextmanager
def connected(server: ucall.Server) -> Iterator[list[Wire]]:
    with ExitStack() as stack:
        yield [stack.enter_context(Wire(server.port)) for _ in range(CONNECTIONS)]


def codes(wire: Wire, count: int) -> list[int]:
    """The codes of the errors that end as many streams, in the order of their ids."""
    replies: dict[int, int] = {}
    while len(replies) < count:
        message = wire.message()
        if "id" in message:
            replies[message["id"]] = message["error"]["code"]
    return [replies[id] for id in range(count)]


def served(serve: Serve, kind: str, **options: Any) -> tuple[ucall.Server, Source]:
    server, source = serve(add, tasks, max_threads=THREADS), Source(kind, calls_max=MANY)
    source.add_to(server, **options)
    return server, source


def check_nothing_is_left(server: ucall.Server, source: Source) -> None:
    """All generators are closed, in their own variables, and no task is left."""
    assert eventually(lambda: source.closed == source.opened)
    assert all(source.own_variables)
    with Wire(server.port) as wire:
        assert eventually(lambda: wire.result("tasks") == 0)
        assert wire.result("add", [1, 2]) == 3


@pytest.mark.parametrize("kind", KINDS)
def test_a_client_that_leaves_closes_its_streams(serve: Serve, kind: str) -> None:
    server, source = served(serve, kind)
    with connected(server) as wires:
        for wire in wires:
            wire.send(b"".join(stream_request(id=id) for id in of_each(kind)))
        for wire in wires:
            assert wire.line()
    check_nothing_is_left(server, source)
    assert source.opened > 0 and all(source.cancelled)


@pytest.mark.parametrize("kind", KINDS)
def test_a_client_that_leaves_http_closes_its_stream(serve: Serve, kind: str) -> None:
    server, source = served(serve, kind)
    for accept in ("text/event-stream", "application/x-ndjson", "*/*"):
        with Wire(server.port) as wire:
            wire.send(http(request("stream", [-1, 0]), f"Accept: {accept}"))
            assert eventually(lambda: source.produced > 0)
        check_nothing_is_left(server, source)
        source.produced = 0
    assert source.opened == 3 and all(source.cancelled)


def test_a_client_that_leaves_a_unix_socket_closes_its_silent_stream(
    serve: Serve, tmp_path: Path
) -> None:
    closed = threading.Event()

    async def stream(n: int, size: int) -> AsyncIterator[int]:
        try:
            yield n
            await asyncio.Event().wait()
        finally:
            closed.set()

    serve(stream, uds=tmp_path / "socket")
    with Wire(tmp_path / "socket") as wire:
        wire.send(stream_request())
        assert wire.line()
    assert closed.wait(30)


@pytest.mark.parametrize("kind", KINDS)
def test_a_cancelled_stream_is_closed(serve: Serve, kind: str) -> None:
    server, source = served(serve, kind)
    ids = of_each(kind)
    with connected(server) as wires:
        for wire in wires:
            wire.send(b"".join(stream_request(id=id) for id in ids))
            wire.send(b"".join(cancel_request(id) for id in ids))
        for wire in wires:
            assert codes(wire, len(ids)) == [-32800] * len(ids)
        check_nothing_is_left(server, source)
        assert wires[0].result("add", [1, 2]) == 3


@pytest.mark.parametrize("kind", KINDS)
def test_a_cancelled_call_that_collects_is_closed(serve: Serve, kind: str) -> None:
    server, source = served(serve, kind)
    with Wire(server.port) as wire:
        wire.send(request("stream", [-1, 0], 5))
        assert eventually(lambda: source.produced > 0)
        wire.send(cancel_request(5))
        assert wire.message()["error"]["code"] == -32800
        check_nothing_is_left(server, source)
        assert source.opened == 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.slow
def test_a_deadline_closes_a_stream(serve: Serve, kind: str) -> None:
    server, source = served(serve, kind)
    ids = of_each(kind)
    with connected(server) as wires:
        for wire in wires:
            wire.send(b"".join(stream_request(id=id, timeout_ms=200) for id in ids))
        for wire in wires:
            assert codes(wire, len(ids)) == [-32001] * len(ids)
    check_nothing_is_left(server, source)


@pytest.mark.parametrize("kind", KINDS)
def test_a_drain_closes_a_websocket_with_a_stream_by_1001(serve: Serve, kind: str) -> None:
    server, source = serve(drain_timeout_s=0.1), Source(kind)
    source.add_to(server)
    with connect(f"ws://{HOST}:{server.port}") as socket:
        # Long items, so that a busy client has read what is in flight before the server gives up.
        socket.send(stream_request(id=1, size=100_000).decode())
        assert "$/progress" in socket.recv()
        stopping = threading.Thread(target=server.stop)
        stopping.start()
        before = []
        while "error" not in (message := socket.recv()):
            before.append(json.loads(message)["method"])
        assert before.count("$/drain") == 1 and set(before) <= {"$/drain", "$/progress"}
        assert json.loads(message)["error"]["code"] == -32007
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv()
        assert closed.value.rcvd is not None and closed.value.rcvd.code == 1001
        stopping.join()
    assert eventually(lambda: source.closed == source.opened)


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.slow
def test_a_stop_closes_streams(serve: Serve, kind: str, at_once: bool) -> None:
    server, source = serve(drain_timeout_s=0.1), Source(kind)
    source.add_to(server)
    with Wire(server.port) as wire:
        wire.send(b"".join(stream_request(id=id) for id in range(5)))
        assert wire.line()
        server.stop(at_once=at_once)
    assert eventually(lambda: source.closed == source.opened)


@pytest.mark.parametrize("kind", ["batch", "async_batch", "thread_batch"])
def test_a_batch_goes_on_for_its_other_calls(serve: Serve, kind: str) -> None:
    server, source = served(serve, kind)
    with Wire(server.port) as wire:
        wire.send(stream_request(id=1) + stream_request(id=2, token="u"))
        for token in ("t", "u"):
            while wire.message()["params"]["token"] != token:
                pass
        wire.send(cancel_request(1))
        while "id" not in (message := wire.message()):
            pass
        assert message["id"] == 1
        for _ in range(1_000):
            assert wire.message()["params"]["token"] == "u"
        assert source.closed == 0
        wire.send(cancel_request(2))
        assert wire.stream()[1]["error"]["code"] == -32800
    check_nothing_is_left(server, source)
    assert source.opened == 1


def slow_reader(port: int) -> Wire:
    """A connection that takes little without reads."""
    return Wire(port, buffer_bytes=4096)


def has_paused(server: ucall.Server, source: Source) -> bool:
    """Whether the generator takes no step while the server answers calls."""
    produced = source.produced
    with Wire(server.port) as wire:
        for _ in range(100):
            assert wire.result("add", [1, 2]) == 3
    return 0 < produced == source.produced


@pytest.mark.parametrize("kind", KINDS)
def test_a_slow_reader_pauses_its_stream(serve: Serve, kind: str) -> None:
    server, source = served(serve, kind)
    with slow_reader(server.port) as wire:
        wire.send(stream_request(size=10_000))
        assert eventually(lambda: has_paused(server, source))
        # The server holds 64 KiB; the kernel little more than 128 KiB, or megabytes elsewhere.
        waiting = source.produced
        assert waiting < (100 if sys.platform == "linux" else 2_000)
        for _ in range(waiting + 1):
            assert len(wire.message()["params"]["value"]) == 10_000
        assert eventually(lambda: source.produced > waiting)
        assert eventually(lambda: has_paused(server, source))
        wire.send(cancel_request(1))
        assert wire.stream()[1]["error"]["code"] == -32800
    check_nothing_is_left(server, source)


@pytest.mark.parametrize("kind", KINDS)
def test_a_paused_stream_is_closed_with_its_connection(serve: Serve, kind: str) -> None:
    server, source = served(serve, kind)
    with slow_reader(server.port) as wire:
        wire.send(stream_request(size=10_000))
        assert eventually(lambda: has_paused(server, source))
    check_nothing_is_left(server, source)
    assert source.cancelled == [True]


@pytest.mark.parametrize("kind", SINGLE_KINDS)
@pytest.mark.parametrize("overflow", ["drop_oldest", "drop_newest"])
def test_items_of_a_slow_reader_are_dropped(serve: Serve, kind: str, overflow: str) -> None:
    count = 2_000
    server, source = served(serve, kind, overflow=overflow)
    with slow_reader(server.port) as wire:
        wire.send(stream_request(n=count, size=5_000))
        assert eventually(lambda: source.closed == 1)
        items, reply = wire.stream()
        assert 10 < len(items) < count
        assert "result" in reply
    assert source.produced == count


def test_the_newest_items_stay_when_the_oldest_are_dropped(serve: Serve) -> None:
    count = 2_000

    def numbered() -> Iterator[str]:
        for position in range(count):
            yield f"{position:05}" + "x" * 5_000
        ended.set()

    for overflow, last in (("drop_oldest", True), ("drop_newest", False)):
        server, ended = serve(), threading.Event()
        server.add(numbered, "stream", overflow=overflow)
        with slow_reader(server.port) as wire:
            call = json.loads(request("stream")) | {"_meta": {"progressToken": 1}}
            wire.send(json.dumps(call).encode())
            assert ended.wait(60)
            numbers = [int(item[:5]) for item in wire.stream()[0]]
        assert numbers == sorted(numbers) and numbers[0] == 0
        assert len(numbers) < count
        assert (numbers[-1] == count - 1) is last


@pytest.mark.parametrize("kind", KINDS)
def test_a_slow_reader_is_closed(serve: Serve, kind: str) -> None:
    server, source = served(serve, kind, overflow="close")
    with slow_reader(server.port) as wire:
        wire.send(stream_request(size=10_000))
        check_nothing_is_left(server, source)
        with suppress(ConnectionError):
            while wire.line():
                pass
    assert eventually(lambda: source.opened == source.closed == 1)


@pytest.mark.parametrize("kind", KINDS)
def test_calls_are_answered_beside_streams(serve: Serve, kind: str) -> None:
    server, source = served(serve, kind)
    with Wire(server.port) as streaming, Wire(server.port) as collecting:
        streaming.send(stream_request())
        collecting.send(request("stream", [-1, 0]))
        assert streaming.line()
        with Wire(server.port) as wire:
            for _ in range(100):
                assert wire.result("add", [1, 2]) == 3
        # Raw TCP answers after the end of the client's side, so a close alone cancels no call.
        collecting.send(cancel_request(1))
        assert json.loads(collecting.line())["error"]["code"] in (-32800, -32603)
    check_nothing_is_left(server, source)


async def never_waits(n: int) -> AsyncIterator[int]:
    for position in range(n):
        yield position


@pytest.mark.slow
def test_an_async_generator_that_never_waits_lets_others_run(serve: Serve) -> None:
    server = serve(never_waits, add, tasks)
    with Wire(server.port) as streaming, Wire(server.port) as collecting:
        collecting.send(request("never_waits", [10**9]))
        call = json.loads(request("never_waits", [10**9])) | {"_meta": {"progressToken": 1}}
        streaming.send(json.dumps(call).encode())
        for expected in range(1_000):
            assert streaming.message()["params"]["value"] == expected
        with Wire(server.port) as wire:
            assert wire.result("add", [1, 2]) == 3
        # Had the list got most of the time, it would be too long by now.
        collecting.send(cancel_request(1))
        assert collecting.message()["error"]["code"] == -32800
    with Wire(server.port) as wire:
        assert eventually(lambda: wire.result("tasks") == 0)


def test_async_generators_that_compute_for_long_take_turns(serve: Serve) -> None:
    made: list[str] = []

    async def compute(name: str) -> AsyncIterator[int]:
        for number in range(8):
            time.sleep(0.02)
            made.append(name)
            yield number

    server = serve(compute)
    with Wire(server.port) as wire:
        wire.send(request("compute", ["a"], id=1) + request("compute", ["b"], id=2))
        for _ in range(2):
            assert wire.message()["result"] == [*range(8)]
    assert made == ["a", "b"] * 8


@pytest.mark.parametrize("kind", SINGLE_KINDS)
def test_streams_count_as_running_calls(serve: Serve, kind: str) -> None:
    server, source = serve(max_running_calls=2), Source(kind)
    source.add_to(server)
    with Wire(server.port) as wire:
        wire.send(b"".join(stream_request(id=id) for id in range(3)))
        while "id" not in (message := wire.message()):
            pass
        assert (message["id"], message["error"]["code"]) == (2, -32003)
    with Wire(server.port) as wire:
        assert eventually(lambda: "result" in wire.call("stream", [1, 0]))


def stubborn() -> Iterator[int]:
    while True:
        try:
            yield 1
        except GeneratorExit:
            yield 2


async def stubborn_task() -> AsyncIterator[int]:
    while True:
        try:
            await asyncio.sleep(0)
            yield 1
        except asyncio.CancelledError:
            pass
        except GeneratorExit:
            yield 2


def raises_at_its_end() -> Iterator[int]:
    try:
        while True:
            yield 1
    finally:
        raise ValueError("of the test")


@pytest.mark.parametrize("threads", [False, True])
@pytest.mark.parametrize("function", [stubborn, stubborn_task, raises_at_its_end])
def test_a_generator_that_refuses_to_end_is_logged(
    serve: Serve, caplog: pytest.LogCaptureFixture, function: Any, threads: bool
) -> None:
    server = serve(tasks)
    if threads and function is stubborn_task:
        pytest.skip("async generators run in no thread")
    server.add(function, "stream", threads=threads)
    call = json.loads(request("stream")) | {"_meta": {"progressToken": 1}}
    with caplog.at_level(logging.ERROR, "ucall"):
        with Wire(server.port) as wire:
            wire.send(json.dumps(call).encode())
            assert wire.line()

        # asyncio logs what its own attempt to close an async generator raises.
        def ours() -> list[str]:
            return [record.message for record in caplog.records if record.name == "ucall"]

        assert eventually(lambda: len(ours()) == 1)
    assert ours() == ["a function raised after its call was abandoned"]
    with Wire(server.port) as wire:
        assert eventually(lambda: wire.result("tasks") == 0)


def test_a_generator_that_blocks_in_a_thread_is_closed_after_its_step(serve: Serve) -> None:
    began, go_on, closed = threading.Event(), threading.Event(), threading.Event()

    def blocks() -> Iterator[int]:
        try:
            began.set()
            go_on.wait()
            yield 1
        finally:
            closed.set()

    server = serve()
    server.add(blocks, threads=True)
    with Wire(server.port) as wire:
        wire.send(request("blocks"))
        assert began.wait(60)
    assert not closed.is_set()
    go_on.set()
    assert closed.wait(60)


def test_a_cancel_reaches_an_async_generator_that_waits(serve: Serve) -> None:
    seen: list[str] = []

    async def waits() -> AsyncIterator[int]:
        yield 1
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise
        finally:
            await asyncio.sleep(0)
            seen.append("closed")

    server = serve(waits)
    with connect(f"ws://{HOST}:{server.port}") as socket:
        call = json.loads(request("waits")) | {"_meta": {"progressToken": 1}}
        socket.send(json.dumps(call))
        assert json.loads(socket.recv())["params"]["value"] == 1
        socket.send(cancel_request(1).decode())
        assert json.loads(socket.recv())["error"]["code"] == -32800
    assert eventually(lambda: seen == ["cancelled", "closed"])
