"""Bodies of HTTP routes that are sent as they are made."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
from functions import sum
from routing import WAYS, http_client
from serving import Serve

import ucall
from harness import HOST, Wire, eventually, http, request
from ucall import HttpRequest, HttpResponse


def _numbers(way: str, ended: list[str], gates: list[threading.Event]) -> Any:
    """A function that yields a number after each gate."""

    def numbers(request: HttpRequest) -> Iterator[bytes]:
        try:
            for number, gate in enumerate(gates):
                while not gate.is_set():
                    if way == "threads":
                        gate.wait()
                    yield b""
                yield str(number).encode()
        finally:
            ended.append(way)

    async def numbers_later(request: HttpRequest) -> AsyncIterator[bytes]:
        try:
            for number, gate in enumerate(gates):
                while not gate.is_set():
                    await asyncio.sleep(0.001)
                yield str(number).encode()
        finally:
            ended.append(way)

    return numbers_later if way == "async" else numbers


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("form", ["generator", "response"])
def test_a_body_is_sent_as_it_is_made(serve: Serve, way: str, form: str) -> None:
    ended: list[str] = []
    gates = [threading.Event() for _ in range(5)]
    numbers = _numbers(way, ended, gates)

    def respond(request: HttpRequest) -> HttpResponse:
        return HttpResponse(numbers(request), 201, "text/plain")

    async def respond_later(request: HttpRequest) -> HttpResponse:
        return respond(request)

    responds = respond_later if way == "async" else respond
    served = responds if form == "response" else numbers
    server = serve()
    server.http("/numbers", threads=way == "threads")(served)
    gates[0].set()  # The head comes with the first part.
    with http_client(server) as client, client.stream("GET", "/numbers") as reply:
        assert reply.status_code == (200 if form == "generator" else 201)
        assert reply.headers["transfer-encoding"] == "chunked"
        assert "content-length" not in reply.headers
        parts = reply.iter_bytes()
        for number, gate in enumerate(gates):
            assert ended == []
            gate.set()
            assert next(parts) == str(number).encode()
        assert list(parts) == [] and ended == [way]


@pytest.mark.parametrize("way", WAYS)
def test_a_client_that_leaves_closes_the_generator(serve: Serve, way: str) -> None:
    ended: list[str] = []
    gates = [threading.Event() for _ in range(2)]
    gates[0].set()
    server = serve()
    server.http("/numbers", threads=way == "threads")(_numbers(way, ended, gates))
    with http_client(server) as client:
        with client.stream("GET", "/numbers") as reply:
            assert next(reply.iter_bytes()) == b"0"
        gates[1].set() if way == "threads" else None
        assert eventually(lambda: ended == [way])


@pytest.mark.parametrize("way", WAYS)
def test_a_slow_reader_pauses_the_generator(serve: Serve, way: str) -> None:
    made: list[int] = []
    part, count = b"x" * 10_000, 2_000

    def parts(request: HttpRequest) -> Iterator[bytes]:
        for number in range(count):
            made.append(number)
            yield part

    async def parts_later(request: HttpRequest) -> AsyncIterator[bytes]:
        for item in parts(request):
            yield item

    server = serve(sum)
    function = parts_later if way == "async" else parts
    server.http("/parts", threads=way == "threads")(function)
    with http_client(server) as client, client.stream("GET", "/parts") as reply:
        assert eventually(lambda: _is_still(made))
        assert len(made) < count
        with Wire(server.port) as wire:
            assert wire.result("sum", [2, 3]) == 5
        assert b"".join(reply.iter_bytes()) == part * count


def _is_still(made: list[int]) -> bool:
    """Whether no item was made for a while, after the first."""
    before = len(made)
    threading.Event().wait(0.2)
    return 0 < before == len(made)


@pytest.mark.parametrize("way", WAYS)
def test_a_body_that_fails_is_cut_off(
    serve: Serve, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    def parts(request: HttpRequest) -> Iterator[bytes]:
        yield b"some"
        raise KeyError("why")

    async def parts_later(request: HttpRequest) -> AsyncIterator[bytes]:
        yield b"some"
        raise KeyError("why")

    def wrong(request: HttpRequest) -> Iterator[Any]:
        yield b"some"
        yield 3

    server = serve(sum)
    options = {"threads": way == "threads"}
    server.http("/parts", **options)(parts_later if way == "async" else parts)
    server.http("/wrong", **options)(wrong)
    for path, log in (("/parts", "why"), ("/wrong", "expected bytes or str to be yielded")):
        with http_client(server) as client, pytest.raises(httpx.RemoteProtocolError):
            client.get(path)
        assert eventually(lambda log=log: log in caplog.text)
    with Wire(server.port) as wire:
        wire.send(http(b"", target="/parts", method="GET") + http(request("sum", [2, 3])))
        assert wire.rest().endswith(b"\r\n\r\n4\r\nsome\r\n")


@pytest.mark.parametrize("way", WAYS)
def test_a_body_that_fails_before_its_first_part_has_a_status(
    serve: Serve, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    def parts(request: HttpRequest) -> Iterator[Any]:
        if request.query == "refuse":
            raise ucall.RPCError(-32602, "no")
        if request.query != "empty":
            yield 3

    async def parts_later(request: HttpRequest) -> AsyncIterator[Any]:
        for part in parts(request):
            yield part

    server = serve()
    server.http("/parts", threads=way == "threads")(parts_later if way == "async" else parts)
    with http_client(server) as client:
        refused, wrong, empty = (client.get(f"/parts?{it}") for it in ("refuse", "3", "empty"))
        head = client.head("/parts?refuse")
    assert refused.status_code == 400 and refused.json()["error"]["message"] == "no"
    assert wrong.status_code == 500 and "expected bytes or str to be yielded" in caplog.text
    assert (empty.status_code, empty.content) == (200, b"")
    assert head.status_code == 200


@pytest.mark.parametrize("way", WAYS)
def test_an_empty_first_part_sends_the_head(serve: Serve, way: str) -> None:
    gate = threading.Event()

    def parts(request: HttpRequest) -> Iterator[str]:
        yield ""
        while not gate.wait(0.001):
            yield ""
        yield "some"

    async def parts_later(request: HttpRequest) -> AsyncIterator[str]:
        yield ""
        while not gate.is_set():
            await asyncio.sleep(0.001)
        yield "some"

    server = serve()
    server.http("/parts", threads=way == "threads")(parts_later if way == "async" else parts)
    with http_client(server) as client, client.stream("GET", "/parts") as reply:
        gate.set()
        assert b"".join(reply.iter_bytes()) == b"some"


def test_streams_for_head_and_for_http_1_0(serve: Serve) -> None:
    ended: list[int] = []

    def parts(request: HttpRequest) -> Iterator[bytes]:
        try:
            yield b"some"
            yield b"more"
        finally:
            ended.append(1)

    server = serve()
    server.http("/parts")(lambda request: HttpResponse(parts(request)))
    with http_client(server) as client:
        assert client.head("/parts").headers["transfer-encoding"] == "chunked"
        assert client.get("/parts").content == b"somemore"
    with Wire(server.port) as wire:
        wire.send(f"GET /parts HTTP/1.0\r\nHost: {HOST}\r\nConnection: keep-alive\r\n\r\n".encode())
        head, _, body = wire.rest().partition(b"\r\n\r\n")
        assert b"\r\nConnection: close\r\n" in head and b"chunked" not in head
        assert body == b"somemore"


def test_an_async_body_needs_an_async_function(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    async def parts(request: HttpRequest) -> AsyncIterator[bytes]:
        yield b""

    server = serve()
    server.http("/a")(lambda request: HttpResponse(parts(request)))
    with http_client(server) as client:
        assert client.get("/a").status_code == 500
    assert "must be returned by an async function" in caplog.text
