"""Bodies of requests and responses that a mounted application has in parts."""

from __future__ import annotations

import asyncio
import gzip
import random
import time
from collections.abc import Iterator
from typing import Any

import fastapi
import pytest
from bodies import (
    BodyReader,
    check_an_invalid_chunk,
    check_clients_that_leave,
    check_parts_arrive_before_the_end,
    chunk,
    head,
    send_until_it_waits,
)
from fastapi.responses import StreamingResponse
from functions import sum
from mounting import mounted
from routing import http_client

from harness import Wire, eventually, http


class Reader(BodyReader):
    """An application that notes the parts of bodies, and answers with the number of their bytes."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "http"
        total, more = 0, True
        while more:
            while not self.reads.is_set():
                await asyncio.sleep(0.001)
            message = await receive()
            if message["type"] == "http.disconnect":
                self.ends.append("disconnect")
                return
            self.parts.append(message["body"])
            total += len(message["body"])
            more = message["more_body"]
        await send({"type": "http.response.start", "status": 200})
        await send({"type": "http.response.body", "body": str(total).encode()})
        self.ends.append((await receive())["type"])


@pytest.mark.parametrize("is_chunked", [False, True])
def test_parts_reach_the_application_before_the_end(engine: str, is_chunked: bool) -> None:
    app = Reader()
    with mounted(engine, app, sum) as server:
        check_parts_arrive_before_the_end(server.port, app, is_chunked)


def test_a_compressed_body_is_decoded_while_it_arrives(engine: str) -> None:
    app, body = Reader(), random.Random(1).randbytes(100_000).hex().encode()
    content = gzip.compress(body)
    with mounted(engine, app) as server, Wire(server.port) as wire:
        wire.send(head(len(content)).replace(b"Host", b"Content-Encoding: gzip\r\nHost"))
        wire.send(content[:80_000])
        assert eventually(lambda: len(b"".join(app.parts)) > 100_000)
        wire.send(content[80_000:])
        wire.end()
        assert wire.rest().endswith(b"\r\n\r\n200000")
    assert b"".join(app.parts) == body


def test_an_application_that_does_not_read_makes_the_client_wait(engine: str) -> None:
    app = Reader()
    app.reads.clear()
    size = 64 << 20
    with mounted(engine, app, max_body_bytes=size) as server, Wire(server.port) as wire:
        wire.send(head(size))
        sent = send_until_it_waits(wire, bytes(size))
        assert app.parts == []
        app.reads.set()
        wire.send(bytes(size - sent))
        assert wire.reply()[2] == str(size).encode()


@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_client_that_leaves_within_a_body(engine: str, is_chunked: bool) -> None:
    app = Reader()
    with mounted(engine, app) as server:
        check_clients_that_leave(server.port, app, is_chunked, "disconnect")


def test_an_invalid_chunk_ends_the_connection(engine: str) -> None:
    app = Reader()
    with mounted(engine, app) as server:
        check_an_invalid_chunk(server.port, app, "disconnect")


def test_the_limit_of_a_body(engine: str) -> None:
    app = Reader()
    with mounted(engine, app, max_body_bytes=100_000) as server:
        with Wire(server.port) as wire:
            wire.send(head(100_001))
            assert wire.reply()[0] == 413
        with Wire(server.port) as wire:
            wire.send(head(None) + chunk(bytes(100_000)) + b"0\r\n\r\n")
            assert wire.reply()[2] == b"100000"
        with Wire(server.port) as wire:
            wire.send(head(None) + chunk(bytes(100_000)) + chunk(b"1"))
            assert wire.rest().startswith(b"HTTP/1.1 413 ")
        assert eventually(lambda: "disconnect" in app.ends)


def test_a_body_that_is_late_ends_the_connection(engine: str) -> None:
    app = Reader()
    with mounted(engine, app, body_timeout_s=1) as server, Wire(server.port) as wire:
        wire.send(head(None) + chunk(b"part"))
        assert wire.rest().startswith(b"HTTP/1.1 408 ")
        assert eventually(lambda: app.ends == ["disconnect"])


def test_an_answer_before_the_end_of_the_body(engine: str) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "http"
        await receive()
        await send({"type": "http.response.start", "status": 403})
        await send({"type": "http.response.body", "body": b"no"})

    with mounted(engine, app) as server, Wire(server.port) as wire:
        for _ in range(2):
            wire.send(head(200_000) + bytes(1000))
            assert wire.reply()[0] == 403
            wire.send(bytes(199_000))


def test_a_client_that_waits_for_the_permission(engine: str) -> None:
    app = Reader()
    with mounted(engine, app) as server, Wire(server.port) as wire:
        wire.send(head(100_000).replace(b"\r\n\r\n", b"\r\nExpect: 100-continue\r\n\r\n"))
        assert wire.take_to(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        wire.send(bytes(100_000))
        assert wire.reply()[2] == b"100000"


def test_an_echo_of_fastapi(engine: str) -> None:
    app = fastapi.FastAPI()

    @app.post("/echo")
    async def echo(request: fastapi.Request) -> StreamingResponse:
        return StreamingResponse(request.stream())

    @app.post("/size")
    async def size(request: fastapi.Request) -> int:
        return len(await request.body())

    def parts() -> Iterator[bytes]:
        for _ in range(50):
            yield bytes(100_000)

    with mounted(engine, app) as server, http_client(server) as client:
        assert client.post("/size", content=parts()).json() == 5_000_000
        assert client.post("/size", content=bytes(5_000_000)).json() == 5_000_000
        assert client.post("/echo", content=bytes(200_000)).content == bytes(200_000)


def test_a_deadline_within_a_body(engine: str) -> None:
    app = Reader()
    with mounted(engine, app, timeout_ms=100) as server, Wire(server.port) as wire:
        wire.send(head(None) + chunk(b"part"))
        assert wire.reply()[0] == 504


def test_a_body_arrives_though_its_request_is_the_only_one_that_may_run(engine: str) -> None:
    app = Reader()
    with mounted(engine, app, max_connection_calls=1) as server, Wire(server.port) as wire:
        wire.send(head(300_000) + b"x" * 300_000 + http(b"", target="/a"))
        assert wire.reply()[2] == b"300000"
        assert wire.reply()[2] == b"0"


def test_an_application_that_computes_for_long_lets_others_run_after_each_part(engine: str) -> None:
    turns: list[int] = []

    async def others() -> None:
        while True:
            turns[-1] += 1
            await asyncio.sleep(0)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "http"
        await send({"type": "http.response.start", "status": 200})
        # Too long to wait for the end of the response.
        await send({"type": "http.response.body", "body": b"x" * 70_000, "more_body": True})
        turns.append(0)
        task = asyncio.create_task(others())
        for _ in range(8):
            time.sleep(0.02)
            await send({"type": "http.response.body", "body": b"x", "more_body": True})
            turns.append(0)
        task.cancel()
        await send({"type": "http.response.body"})

    with mounted(engine, app) as server, Wire(server.port) as wire:
        wire.send(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert wire.rest().count(b"x") == 70_008
    assert len(turns) == 9 and all(turns[:8]), turns
