"""Bodies of requests that reach the function of a route while they arrive."""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import gc
import gzip
import random
import ssl
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme
from bodies import (
    BodyReader,
    check_an_invalid_chunk,
    check_clients_that_leave,
    check_parts_arrive_before_the_end,
    chunk,
    head,
    send_until_it_waits,
)
from functions import sum
from routing import http_client
from serving import Serve

import ucall
import ucall.auth
from harness import HOST, Wire, eventually
from ucall import HttpRequest

STREAMING = ["async", "threads"]


class Reader(BodyReader):
    """A function that notes the parts of bodies, and answers with the number of their bytes."""

    def read(self, request: HttpRequest) -> str:
        total = 0
        try:
            self.reads.wait()
            for part in request.stream():
                self.parts.append(part)
                total += len(part)
                self.reads.wait()
        except BaseException as error:
            self.ends.append(type(error).__name__)
            raise
        self.ends.append("end")
        return str(total)

    async def read_later(self, request: HttpRequest) -> str:
        total = 0
        try:
            await self._allowed()
            async for part in request.stream():
                self.parts.append(part)
                total += len(part)
                await self._allowed()
        except BaseException as error:
            self.ends.append(type(error).__name__)
            raise
        self.ends.append("end")
        return str(total)

    async def _allowed(self) -> None:
        while not self.reads.is_set():
            await asyncio.sleep(0.001)

    def add(self, server: ucall.Server, way: str, **options: Any) -> None:
        function: Any = self.read_later if way == "async" else self.read
        options = {"methods": ["POST"], "stream_body": True, **options}
        server.http("/a", threads=way == "threads", **options)(function)


@pytest.mark.parametrize("way", STREAMING)
@pytest.mark.parametrize("is_chunked", [False, True])
def test_parts_reach_the_function_before_the_end(serve: Serve, way: str, is_chunked: bool) -> None:
    server, reader = serve(sum), Reader()
    reader.add(server, way)
    check_parts_arrive_before_the_end(server.port, reader, is_chunked)


@pytest.mark.parametrize("way", STREAMING)
@pytest.mark.parametrize("size", [0, 1, 64 << 10, (64 << 10) + 1, 1 << 20])
def test_bodies_of_all_sizes(serve: Serve, way: str, size: int) -> None:
    server, reader = serve(), Reader()
    reader.add(server, way)
    with Wire(server.port) as wire:
        wire.send(head(size) + b"x" * size + head(None) + (chunk(b"x" * size) if size else b""))
        wire.send(b"0\r\n\r\n" + head(3) + b"abc")
        for length in [size, size, 3]:
            assert wire.reply()[2] == str(length).encode()
    assert all(reader.parts)


@pytest.mark.parametrize("way", STREAMING)
def test_a_function_that_does_not_read_makes_the_client_wait(serve: Serve, way: str) -> None:
    size = 40 << 20
    server, reader = serve(sum, max_body_bytes=size), Reader()
    reader.reads.clear()
    reader.add(server, way)
    with Wire(server.port) as wire:
        wire.send(head(size))
        sent = send_until_it_waits(wire, bytes(size))
        assert reader.parts == []
        with Wire(server.port) as other:
            assert other.result("sum", [2, 3]) == 5
        reader.reads.set()
        wire.send(bytes(size - sent))
        assert wire.reply()[2] == str(size).encode()
    assert max(map(len, reader.parts)) <= 2 * (64 << 10)


@pytest.mark.parametrize("way", STREAMING)
@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_client_that_leaves_within_a_body(
    serve: Serve, way: str, is_chunked: bool, caplog: pytest.LogCaptureFixture
) -> None:
    server, reader = serve(), Reader()
    reader.add(server, way)
    check_clients_that_leave(server.port, reader, is_chunked, "CancelledError")
    server.stop()
    assert [it for it in caplog.records if it.levelname == "ERROR"] == []


@pytest.mark.parametrize("way", STREAMING)
def test_an_invalid_chunk_cancels_the_call(serve: Serve, way: str) -> None:
    server, reader = serve(), Reader()
    reader.add(server, way)
    check_an_invalid_chunk(server.port, reader, "CancelledError")


@pytest.mark.parametrize("way", STREAMING)
@pytest.mark.parametrize("own", [None, 50_000, 200_000])
def test_the_limit_of_a_body(serve: Serve, way: str, own: int | None) -> None:
    server, reader = serve(sum, max_body_bytes=100_000), Reader()
    reader.add(server, way, max_body_bytes=own)
    limit = own or 100_000
    with Wire(server.port) as wire:
        wire.send(head(limit) + bytes(limit))
        assert wire.reply()[2] == str(limit).encode()
        wire.send(head(limit + 1))
        status, _, body = wire.reply()
        assert status == 413 and str(limit).encode() in body
    with Wire(server.port) as wire:
        wire.send(head(None) + chunk(bytes(limit)) + b"0\r\n\r\n")
        assert wire.reply()[2] == str(limit).encode()
    with Wire(server.port) as wire:
        reader.parts.clear()
        wire.send(head(None) + chunk(bytes(limit)))
        assert eventually(lambda: reader.has_received(limit))
        wire.send(chunk(b"1"))
        assert wire.reply()[0] == 413 and not wire.rest()
    assert eventually(lambda: "CancelledError" in reader.ends)
    with Wire(server.port) as wire:  # Calls have the limit of the server.
        wire.send(head(100_001, "/sum"))
        assert wire.reply()[0] == 413


def packed(size: int) -> tuple[bytes, bytes]:
    """Text that becomes about half as long, and it in gzip."""
    body = random.Random(size).randbytes(size).hex()[:size].encode()
    return body, gzip.compress(body)


def gzip_head(length: int | None) -> bytes:
    return head(length).replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n")


@pytest.mark.parametrize("way", STREAMING)
@pytest.mark.parametrize("own", [None, 50_000, 200_000])
def test_the_limit_of_a_compressed_body(serve: Serve, way: str, own: int | None) -> None:
    server, reader = serve(sum, max_body_bytes=100_000), Reader()
    reader.add(server, way, max_body_bytes=own)
    limit = own or 100_000
    with http_client(server) as client:
        for size, status in ((limit, 200), (limit + 1, 413)):
            _, content = packed(size)
            reply = client.post("/a", content=content, headers={"Content-Encoding": "gzip"})
            assert reply.status_code == status
    assert reader.ends.count("end") == 1


@pytest.mark.parametrize("way", STREAMING)
@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_compressed_body_is_decoded_while_it_arrives(
    serve: Serve, way: str, is_chunked: bool
) -> None:
    server, reader = serve(), Reader()
    reader.add(server, way)
    body, content = packed(400_000)
    front, back = content[:100_000], content[100_000:]
    with Wire(server.port) as wire:
        wire.send(gzip_head(None if is_chunked else len(content)))
        wire.send(chunk(front) if is_chunked else front)
        assert eventually(lambda: len(b"".join(reader.parts)) > 100_000)
        wire.send(chunk(back) + b"0\r\n\r\n" if is_chunked else back)
        assert wire.reply()[2] == b"400000"
        assert b"".join(reader.parts) == body
        wire.send(head(3) + b"abc")
        assert wire.reply()[2] == b"3"


@pytest.mark.parametrize("way", STREAMING)
def test_a_compressed_body_is_decoded_when_there_is_room(serve: Serve, way: str) -> None:
    size = 8 << 20
    server, reader = serve(sum, max_body_ratio=10_000), Reader()
    reader.reads.clear()
    reader.add(server, way)
    content = gzip.compress(bytes(size))
    with Wire(server.port) as wire:
        wire.send(gzip_head(len(content)) + content)
        with Wire(server.port) as other:
            assert other.result("sum", [2, 3]) == 5
        assert reader.parts == []
        reader.reads.set()
        assert wire.reply()[2] == str(size).encode()
    assert max(map(len, reader.parts)) <= 2 * (64 << 10)


@pytest.mark.parametrize("way", STREAMING)
def test_a_compressed_body_that_is_broken(serve: Serve, way: str) -> None:
    server, reader = serve(), Reader()
    reader.add(server, way)
    _, content = packed(100_000)
    for broken in (content[:-4], content[:30_000] + bytes(100), content + b"more"):
        reader.ends.clear()
        reader.parts.clear()
        with Wire(server.port) as wire:
            wire.send(gzip_head(len(broken)) + broken[:20_000])
            assert eventually(lambda: reader.parts)
            wire.send(broken[20_000:])
            assert wire.reply()[0] == 400 and not wire.rest()
        assert eventually(lambda: reader.ends == ["CancelledError"])


@pytest.mark.parametrize("way", STREAMING)
@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("size", [1_000, 70_000, 120_000, 600_000])
def test_a_client_that_shuts_down_its_side_after_a_body(
    serve: Serve, way: str, is_packed: bool, size: int
) -> None:
    server, reader = serve(), Reader()
    reader.add(server, way)
    body, content = packed(size)
    sent = gzip_head(len(content)) + content if is_packed else head(size) + body
    for waits in (False, True):
        if waits:
            reader.reads.clear()
        with Wire(server.port) as wire:
            wire.send(sent)
            wire.end()
            reader.reads.set()
            assert wire.rest().endswith(f"\r\n\r\n{size}".encode())
    assert reader.ends == ["end", "end"]


@pytest.mark.parametrize("own", [9, 200])
def test_the_limit_of_a_whole_body(serve: Serve, own: int) -> None:
    server = serve(max_body_bytes=100)
    options = {"methods": ["POST"], "max_body_bytes": own}
    server.http("/a", **options)(lambda request: str(len(request.body)))
    with http_client(server) as client:
        coding = {"Content-Encoding": "gzip"}
        for content in (b"x" * own, iter([b"x" * own])):
            assert client.post("/a", content=content).text == str(own)
        for content in (b"x" * (own + 1), iter([b"x" * (own + 1)])):
            assert client.post("/a", content=content).status_code == 413
        body = gzip.compress(b"x" * 200)
        reply = client.post("/a", content=body, headers=coding)
        assert (reply.status_code, reply.text) == (413, reply.text) if own == 9 else (200, "200")
        body = gzip.compress(b"x" * 201)
        assert client.post("/a", content=body, headers=coding).status_code == 413


@pytest.mark.parametrize("way", STREAMING)
def test_a_body_that_is_invalid_within_its_response(serve: Serve, way: str) -> None:
    ends: list[str] = []

    async def echo_later(request: HttpRequest) -> Any:
        try:
            async for part in request.stream():
                yield part
        finally:
            ends.append("end")

    def echo(request: HttpRequest) -> Iterator[bytes]:
        try:
            yield from request.stream()
        finally:
            ends.append("end")

    server = serve()
    options: dict[str, Any] = {"methods": ["POST"], "stream_body": True}
    server.http("/a", threads=way == "threads", **options)(echo_later if way == "async" else echo)
    with Wire(server.port) as wire:
        wire.send(head(None) + chunk(b"part"))
        assert wire.take_to(b"part\r\n").startswith(b"HTTP/1.1 200 ")
        wire.send(b"no size\r\n")
        assert wire.rest() == b""
    assert eventually(lambda: ends == ["end"])


def test_unauthenticated_bodies_are_refused_first(serve: Serve) -> None:
    server, reader = serve(auth=ucall.auth.bearer({"s3cret": "alice"})), Reader()
    reader.add(server, "async")
    with Wire(server.port) as wire:
        wire.send(head(None) + chunk(b"part"))
        assert wire.reply()[0] == 401
    assert reader.parts == []


@pytest.mark.parametrize("way", STREAMING)
def test_a_body_that_is_late(serve: Serve, way: str) -> None:
    server, reader = serve(body_timeout_s=1), Reader()
    reader.add(server, way)
    with Wire(server.port) as wire:
        wire.send(head(None) + chunk(b"part"))
        assert wire.reply()[0] == 408 and not wire.rest()
        assert eventually(lambda: reader.ends == ["CancelledError"])


@pytest.mark.parametrize("way", STREAMING)
def test_a_deadline_within_a_body(serve: Serve, way: str) -> None:
    server, reader = serve(timeout_ms=100), Reader()
    reader.add(server, way)
    with Wire(server.port) as wire:
        wire.send(head(None) + chunk(b"part"))
        assert wire.reply()[0] == 504
        assert eventually(lambda: reader.ends == ["CancelledError"])


@pytest.mark.parametrize("way", STREAMING)
def test_a_stop_within_a_body(serve: Serve, way: str) -> None:
    server, reader = serve(drain_timeout_s=0.1), Reader()
    reader.add(server, way)
    with Wire(server.port) as wire:
        wire.send(head(None) + chunk(b"part"))
        assert eventually(lambda: reader.parts == [b"part"])
        server.stop()
        assert eventually(lambda: reader.ends == ["CancelledError"])


@pytest.mark.parametrize("way", STREAMING)
def test_an_answer_before_the_end_of_the_body(serve: Serve, way: str) -> None:
    async def later(request: HttpRequest) -> ucall.HttpResponse:
        async for _ in request.stream():
            break
        return ucall.HttpResponse("no", 403)

    def plain(request: HttpRequest) -> ucall.HttpResponse:
        next(request.stream())
        return ucall.HttpResponse("no", 403)

    server = serve()
    options: dict[str, Any] = {"methods": ["POST"], "stream_body": True}
    server.http("/a", threads=way == "threads", **options)(later if way == "async" else plain)
    with Wire(server.port) as wire:
        for _ in range(2):
            wire.send(head(200_000) + bytes(1000))
            assert wire.reply()[0] == 403
            wire.send(bytes(199_000))


@pytest.mark.parametrize("way", STREAMING)
def test_an_answer_to_a_body_that_is_not_received(serve: Serve, way: str) -> None:
    answers = threading.Event()

    async def later(request: HttpRequest) -> str:
        while not answers.is_set():
            await asyncio.sleep(0.001)
        return "no"

    def plain(request: HttpRequest) -> str:
        answers.wait()
        return "no"

    server = serve()
    options: dict[str, Any] = {"methods": ["POST"], "stream_body": True}
    server.http("/a", threads=way == "threads", **options)(later if way == "async" else plain)
    with Wire(server.port) as wire:
        wire.send(head(1_000_000))
        sender = threading.Thread(target=wire.send, args=[bytes(1_000_000) + head(3) + b"abc"])
        sender.start()
        answers.set()
        assert [wire.reply()[2] for _ in range(2)] == [b"no", b"no"]
        sender.join()


@pytest.mark.parametrize("way", STREAMING)
def test_a_client_that_waits_for_the_permission(serve: Serve, way: str) -> None:
    server, reader = serve(), Reader()
    reader.add(server, way)
    with Wire(server.port) as wire:
        wire.send(head(100_000).replace(b"\r\n\r\n", b"\r\nExpect: 100-continue\r\n\r\n"))
        assert wire.take_to(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        wire.send(bytes(100_000))
        assert wire.reply()[2] == b"100000"


@pytest.mark.parametrize("way", STREAMING)
def test_an_echo(serve: Serve, way: str) -> None:
    async def echo_later(request: HttpRequest) -> Any:
        async for part in request.stream():
            yield part

    def echo(request: HttpRequest) -> Iterator[bytes]:
        yield from request.stream()

    def parts() -> Iterator[bytes]:
        for number in range(20):  # What the sockets hold, as the client reads after it has sent.
            yield bytes([number]) * 10_000

    server = serve()
    options: dict[str, Any] = {"methods": ["POST"], "stream_body": True}
    server.http("/a", threads=way == "threads", **options)(echo_later if way == "async" else echo)
    with http_client(server) as client:
        assert client.post("/a", content=parts()).content == b"".join(parts())


@pytest.mark.parametrize("way", STREAMING)
def test_under_tls(serve: Serve, tmp_path: Path, way: str) -> None:
    authority, path = trustme.CA(), tmp_path / "server.pem"
    authority.issue_cert(HOST).private_key_and_cert_chain_pem.write_to_path(path)
    context = ssl.create_default_context()
    authority.configure_trust(context)
    server, reader = serve(ssl_certfile=path), Reader()
    reader.add(server, way)
    with httpx.Client(base_url=f"https://{HOST}:{server.port}", verify=context) as client:
        for content in (bytes(3_000_000), iter([bytes(100_000)] * 30)):
            assert client.post("/a", content=content).text == "3000000"


def test_parts_of_an_ordinary_route(serve: Serve) -> None:
    async def later(request: HttpRequest) -> list[int]:
        return [len(part) async for part in request.stream()]

    server = serve()
    server.http("/async", methods=["POST"])(later)
    server.http("/plain", methods=["POST"])(lambda request: [len(it) for it in request.stream()])
    with http_client(server) as client:
        for path in ("/async", "/plain"):
            assert client.post(path, content=bytes(100_000)).json() == [100_000]
            assert client.post(path).json() == []


@pytest.mark.parametrize("size", [10, 100_000])
def test_a_streamed_body_is_no_attribute(
    serve: Serve, size: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def function(request: HttpRequest) -> bytes:
        return request.body

    server = serve()
    server.http("/a", methods=["POST"], stream_body=True)(function)
    with http_client(server) as client:
        assert client.post("/a", content=bytes(size)).status_code == 500
    assert "body: the route has stream_body=True: receive it by stream() or form()" in caplog.text


def test_invalid_options() -> None:
    server = ucall.Server(port=0)
    with pytest.raises(TypeError, match="/a: stream_body: expected an async function, or threads="):
        server.http("/a", stream_body=True)(lambda request: "")
    with pytest.raises(ValueError, match="max_body_bytes"):
        server.http("/a", max_body_bytes=0)(lambda request: "")
    ucall.Server(port=0, threads=True).http("/a", stream_body=True)(lambda request: "")


@pytest.mark.parametrize("streams", [False, True])
def test_a_wait_that_is_cancelled_loses_nothing(serve: Serve, streams: bool) -> None:
    parts: list[bytes] = []
    late, server = threading.Event(), serve()

    async def read(request: HttpRequest) -> str:
        stream = request.stream()
        cancelled = asyncio.ensure_future(anext(stream))
        cancelled.cancel()  # before it has begun
        with contextlib.suppress(asyncio.CancelledError):
            await cancelled
        while True:
            try:
                part = await asyncio.wait_for(anext(stream), 0.02)
            except TimeoutError:
                late.set()
            except StopAsyncIteration:
                break
            else:
                parts.append(part)
        with pytest.raises(StopAsyncIteration):
            await anext(stream)
        return "read"

    server.http("/a", methods=["POST"], stream_body=streams)(read)
    with Wire(server.port) as wire:
        wire.send(head(None) + chunk(b"one"))
        for part in (b"two", b"end"):
            if streams:
                late.clear()
                assert late.wait(20)
            wire.send(chunk(part))
        wire.send(b"0\r\n\r\n")
        assert wire.reply()[2] == b"read"
    assert b"".join(parts) == b"onetwoend"


def test_cancelled_waits_are_forgotten(serve: Serve) -> None:
    """A function may wait for long, again and again."""
    waits: list[weakref.ref[Any]] = []
    tried, server = threading.Event(), serve()

    async def read(request: HttpRequest) -> str:
        loop, stream = asyncio.get_running_loop(), request.stream()
        make = loop.create_future

        def create_future() -> Any:
            future = make()
            waits.append(weakref.ref(future))
            return future

        assert await anext(stream) == b"p"
        for _ in range(50):
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(loop, "create_future", create_future)
                wait = asyncio.ensure_future(anext(stream))
                await asyncio.sleep(0)
            wait.cancel()
            await asyncio.wait([wait])
        del wait
        gc.collect()
        left = builtins.sum([it() is not None for it in waits])
        tried.set()
        return f"{len(waits) >= 50} {left} {(await anext(stream)).decode()}"

    server.http("/a", methods=["POST"], stream_body=True)(read)
    with Wire(server.port) as wire:
        wire.send(head(None) + chunk(b"p"))
        assert tried.wait(20)
        wire.send(chunk(b"art") + b"0\r\n\r\n")
        assert wire.reply()[2] == b"True 0 art"
