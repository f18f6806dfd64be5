"""Streams of generators: on every transport, and what their callers get.

`test_stream_ends` has the ways in which a stream ends early, and slow readers.
"""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
from programs import require
from serving import Serve
from streaming import KINDS, SINGLE_KINDS, Source, stream_request
from websockets.sync.client import connect

import ucall
from harness import HOST, Wire, eventually, http, request

EVENTS, LINES = "text/event-stream", "application/x-ndjson"


def progress(value: Any, token: Any = "t") -> dict[str, Any]:
    params = {"token": token, "value": value}
    return {"jsonrpc": "2.0", "method": "$/progress", "params": params}


def served(serve: Serve, kind: str, **options: Any) -> tuple[ucall.Server, Source]:
    server, source = serve(total), Source(kind)
    source.add_to(server, **options)
    return server, source


def total(values: list[int]) -> int:
    return sum(values)


def end_of(kind: str) -> str | None:
    """What the generators of `Source` return: only plain ones return a value."""
    return "the end" if kind in ("plain", "thread") else None


@pytest.mark.parametrize("kind", KINDS)
def test_items_precede_the_reply(serve: Serve, kind: str) -> None:
    server, source = served(serve, kind)
    reply = {"jsonrpc": "2.0", "id": 1, "result": end_of(kind)}
    with Wire(server.port) as wire:
        wire.send(stream_request(n=3))
        expected = [progress(0), progress(1), progress(2), reply]
        assert [wire.message() for _ in expected] == expected
        wire.send(stream_request(n=1, token=7))
        assert [wire.message(), wire.message()] == [progress(0, 7), reply]
        wire.send(stream_request(n=0))
        assert wire.stream() == ([], reply)
        wire.send(stream_request(n=3_000))
        assert wire.stream() == ([*range(3_000)], reply)
    assert source.closed == source.opened == 4
    assert all(source.own_variables)


@pytest.mark.parametrize("kind", KINDS)
def test_items_are_a_list_without_a_token(serve: Serve, kind: str) -> None:
    server, source = served(serve, kind)
    with Wire(server.port) as wire:
        assert wire.result("stream", [3, 0]) == [0, 1, 2]
        assert wire.result("stream", [0, 0]) == []
        assert wire.result("stream", [5_000, 0]) == [*range(5_000)]
        error = wire.error("stream", ["x", 0])
        assert (error["code"], source.opened) == (-32602, 3)
        wire.send(request("stream", [2, 0], id=...))
        assert eventually(lambda: source.closed == 4)
        assert wire.result("total", [[1, 2]]) == 3


@pytest.mark.parametrize("kind", KINDS)
def test_two_calls_of_one_batch_of_requests(serve: Serve, kind: str) -> None:
    server, _ = served(serve, kind)
    with Wire(server.port) as wire:
        calls = [request("stream", [n, 0], n) for n in (1, 3)]
        wire.send(b"[" + b",".join(calls) + b"]")
        assert {reply["id"]: reply["result"] for reply in wire.message()} == {1: [0], 3: [0, 1, 2]}


@pytest.mark.parametrize("kind", SINGLE_KINDS)
def test_items_over_websocket(serve: Serve, kind: str) -> None:
    server, _ = served(serve, kind)
    with connect(f"ws://{HOST}:{server.port}") as socket:
        socket.send(stream_request(n=2).decode())
        received = [json.loads(socket.recv()) for _ in range(3)]
        assert received == [
            progress(0),
            progress(1),
            {"jsonrpc": "2.0", "id": 1, "result": end_of(kind)},
        ]


@pytest.mark.parametrize("accept", [EVENTS, LINES])
@pytest.mark.parametrize("kind", KINDS)
def test_items_over_http(serve: Serve, kind: str, accept: str) -> None:
    server, _ = served(serve, kind)
    with httpx.Client(base_url=f"http://{HOST}:{server.port}") as client:
        call = json.loads(request("stream", [3, 0], "a"))
        with client.stream("POST", "/", json=call, headers={"Accept": accept}) as response:
            assert response.headers["content-type"] == accept
            assert response.headers["cache-control"] == "no-store"
            lines = [line.removeprefix("data: ") for line in response.iter_lines() if line]
        reply = {"jsonrpc": "2.0", "id": "a", "result": end_of(kind)}
        items = [progress(position, "a") for position in range(3)]
        assert [json.loads(line) for line in lines] == [*items, reply]
        # The connection goes on, and errors before the first item are ordinary replies.
        for params, found in (([[1, 2]], ("result", 3)), ("x", ("error", None))):
            call = json.loads(request("total", params))
            response = client.post("/", json=call, headers={"Accept": accept})
            assert response.headers["content-type"] == "application/json"
            assert found[0] in response.json()
        response = client.post("/", json=json.loads(request("stream", [2, 0])))
        assert response.json()["result"] == [0, 1]


def test_items_with_curl(serve: Serve) -> None:
    curl = require("curl")
    server, _ = served(serve, "async")
    url, data = f"http://{HOST}:{server.port}/", request("stream", [2, 0]).decode()
    command = [curl, "-sN", url, "-H", f"Accept: {LINES}", "-d", data]
    out = subprocess.run(command, capture_output=True, check=True, timeout=60).stdout
    messages = [json.loads(line) for line in out.splitlines()]
    assert messages[:-1] == [progress(0, 1), progress(1, 1)]


def test_http_1_0_gets_a_list(serve: Serve) -> None:
    server, _ = served(serve, "plain")
    body = request("stream", [2, 0])
    call = http(body, f"Accept: {EVENTS}").replace(b"HTTP/1.1", b"HTTP/1.0")
    with Wire(server.port) as wire:
        wire.send(call)
        assert json.loads(wire.reply()[2])["result"] == [0, 1]


class Refusal(Exception):
    pass


def _fail(how: str) -> object:
    if how == "raises":
        raise Refusal("of the test")
    if how == "refuses":
        raise ucall.RPCError(5, "no", {"why": 1})
    return object()


def failing(how: str) -> Iterator[object]:
    yield 1
    yield _fail(how)


async def failing_later(how: str) -> AsyncIterator[object]:
    yield 1
    await asyncio.sleep(0)
    yield _fail(how)


def failing_batch(how: list[str]) -> Iterator[list[object]]:
    yield [1 for _ in how]
    yield [_fail(each) for each in how]


FAILURES = {
    "raises": (-32603, "Internal error", None),
    "refuses": (5, "no", {"why": 1}),
    "yields an object": (-32603, "Internal error", "object cannot be written as JSON"),
}


@pytest.mark.parametrize("how", FAILURES)
@pytest.mark.parametrize("where", ["plain", "task", "thread", "batch"])
def test_a_failure_is_the_reply_after_the_items(
    serve: Serve, caplog: pytest.LogCaptureFixture, where: str, how: str
) -> None:
    server = serve()
    if where == "batch":
        server.batch(failing_batch, name="fail")
    else:
        function = failing_later if where == "task" else failing
        server.add(function, "fail", threads=where == "thread")
    call = json.loads(request("fail", [how])) | {"_meta": {"progressToken": 1}}
    code, message, data = FAILURES[how]
    with Wire(server.port) as wire, caplog.at_level(logging.ERROR, "ucall"):
        wire.send(json.dumps(call).encode())
        items, reply = wire.stream()
        listed = wire.error("fail", [how])
    assert items == [1]
    for error, root in ((reply["error"], "item"), (listed, "result[1]")):
        assert (error["code"], error["message"]) == (code, message)
        expected = f"{root}: {data}" if isinstance(data, str) else data
        assert error.get("data") == expected
    assert len(caplog.records) == (0 if how == "refuses" else 2)
    if how == "raises":
        assert {it.message.partition(" (")[0] for it in caplog.records} == {"fail raised"}


@pytest.mark.parametrize("kind", KINDS)
def test_a_list_of_items_has_the_limit_of_replies(serve: Serve, kind: str) -> None:
    server, source = serve(max_reply_bytes=1_000), Source(kind)
    source.add_to(server)
    with Wire(server.port) as wire:
        error = wire.error("stream", [-1, 100])
        assert error["code"] == -32603
        assert "larger than a reply may be (max_reply_bytes)" in error["data"]
        assert eventually(lambda: source.closed == 1)
        wire.send(stream_request(n=30, size=100))
        assert len(wire.stream()[0]) == 30


@pytest.mark.parametrize("kind", KINDS)
def test_calls_that_take_no_items_are_refused(serve: Serve, kind: str) -> None:
    server, source = served(serve, kind, stream="only")
    with Wire(server.port) as wire:
        error = wire.error("stream", [3, 0])
        assert (error["code"], error["message"]) == (-32600, "Invalid Request")
        assert "progressToken" in error["data"] and EVENTS in error["data"]
        wire.send(request("stream", [3, 0], id=...) + stream_request(n=1))
        assert wire.stream()[0] == [0]
    with Wire(server.port) as wire:
        wire.send(http(request("stream", [3, 0])))
        assert json.loads(wire.reply()[2])["error"]["code"] == -32600
    assert source.opened == 1


def test_a_plain_function_answers_a_call_that_takes_items(serve: Serve) -> None:
    server = serve(total)
    call = json.loads(request("total", [[1, 2]])) | {"_meta": {"progressToken": 1}}
    with Wire(server.port) as wire:
        wire.send(json.dumps(call).encode())
        assert wire.message()["result"] == 3


def entries(number: list[int]) -> Iterator[list[object]]:
    yield [ucall.RPCError(1, "even") if each % 2 == 0 else each for each in number]
    yield [ucall.END if each == 1 else object() if each == 3 else each for each in number]
    yield [*number]


def test_the_calls_of_a_batch_end_each_by_itself(serve: Serve) -> None:
    server = serve()
    server.batch(entries)
    ids = range(1, 6)
    calls = [json.loads(request("entries", [id], id)) for id in ids]
    meta = {"_meta": {"progressToken": "t"}}
    with Wire(server.port) as wire:
        wire.send(b"".join(json.dumps(call | meta).encode() for call in calls))
        replies, items = {}, []
        while len(replies) < len(ids):
            message = wire.message()
            if "id" in message:
                replies[message["id"]] = message
            else:
                items.append(message["params"]["value"])
    assert sorted(items) == [1, 3, 5, 5, 5]
    assert [replies[id]["error"]["code"] for id in (2, 4)] == [1, 1]
    assert "object cannot be written" in replies[3]["error"]["data"]
    assert [replies[id]["result"] for id in (1, 5)] == [None, None]


def test_others_run_while_an_async_batch_goes_on(serve: Serve) -> None:
    """Its generator awaits nothing, and each list has an entry for each of several calls."""
    released, seen = threading.Event(), []

    async def spin(number: list[int]) -> AsyncIterator[list[int]]:
        end = time.monotonic() + 10
        while not released.is_set() and time.monotonic() < end:
            time.sleep(0.01)
            yield [*number]
        seen.append(released.is_set())

    server = serve(released.set)
    server.batch(spin)
    with Wire(server.port) as wire, Wire(server.port) as other:
        wire.send(request("spin", [1], 1) + request("spin", [2], 2))
        other.send(request("set", [], 3))
        assert other.message()["id"] == 3
        replies = [wire.message() for _ in range(2)]
    assert {reply["id"] for reply in replies} == {1, 2}
    assert seen == [True]


def short(a: list[int]) -> Iterator[list[int]]:
    yield [*a, 0]


def test_a_batch_of_the_wrong_length_fails(serve: Serve) -> None:
    server = serve()
    server.batch(short)
    with Wire(server.port) as wire:
        assert wire.error("short", [1])["data"] == (
            "result: expected 1 results for a batch of 1, got 2"
        )


def _numbers() -> Iterator[int]:
    yield 1


async def _numbers_later() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("function", "options", "problem"),
    [
        (total, {"stream": "only"}, "total: stream: is for generators, and this is none"),
        (total, {"overflow": "close"}, "total: overflow: is for generators, and this is none"),
        (_numbers, {"stream": True}, "stream: expected 'only', got True"),
        (_numbers, {"overflow": "drop"}, "overflow: expected one of 'pause', 'drop_oldest'"),
        (_numbers, {"processes": 1}, "_numbers: is a generator, and cannot run in another process"),
        (_numbers_later, {"threads": True}, "_numbers_later: is async, and runs as a task"),
    ],
)
def test_options_that_do_not_fit(function: Any, options: dict[str, Any], problem: str) -> None:
    server = ucall.Server(port=0)
    with pytest.raises((TypeError, ValueError), match=f"^{problem}"):
        server.add(function, **options)


def test_a_program_s_event_loop_runs_streams(hosted: Serve) -> None:
    server = hosted(total)
    for kind in KINDS:
        Source(kind).add_to(server, name=kind)
    with Wire(server.port) as wire:
        for kind in KINDS:
            wire.send(stream_request(kind, n=500))
            assert wire.stream()[0] == [*range(500)]
            assert wire.result(kind, [1_000, 0]) == [*range(1_000)]


def test_the_end_of_a_call_has_a_name() -> None:
    assert repr(ucall.END) == "ucall.END"
