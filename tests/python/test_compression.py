"""Compressed bodies of requests, and compressed replies."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import subprocess
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any
from urllib.parse import unquote

import aiohttp
import httpx
import pytest
from serving import Serve

import ucall
from harness import Wire, eventually
from ucall.client import Client

HEAD = b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Encoding: %s\r\nContent-Length: %d\r\n\r\n"


def zstd(data: bytes, window_descriptor: int = 0x58) -> bytes:
    """A frame of zstd with blocks that are stored, or repeat one byte (RFC 8878, section 3)."""
    frame = b"\x28\xb5\x2f\xfd\x00" + bytes([window_descriptor])
    pieces = [data[at : at + 100_000] for at in range(0, len(data), 100_000)] or [b""]
    for piece in pieces:
        is_last = piece is pieces[-1]
        repeats = 0 < len(piece) == piece.count(piece[:1])
        header = is_last | repeats << 1 | len(piece) << 3
        frame += header.to_bytes(3, "little") + (piece[:1] if repeats else piece)
    return frame


ENCODERS = {"gzip": gzip.compress, "zstd": zstd}


def call(method: str, **params: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "method": method, "params": params, "id": 1}).encode()


def request(coding: str, body: bytes, path: str = "/") -> bytes:
    return HEAD % (path.encode(), coding.encode(), len(body)) + body


def size(text: str) -> int:
    return len(text)


async def later(text: str) -> int:
    return len(text)


@pytest.mark.parametrize("coding", ENCODERS)
def test_calls_bodies_and_routes(serve: Serve, coding: str) -> None:
    server = serve(size, later)

    @server.http("/echo", methods=["POST"])
    def echo(request: ucall.HttpRequest) -> bytes:
        assert "content-encoding" not in request.headers
        return request.body

    url, encode = f"http://127.0.0.1:{server.port}", ENCODERS[coding]
    with httpx.Client(base_url=url, headers={"Content-Encoding": coding}) as client:
        for text in ("", "x" * 100, " ".join(map(str, range(60_000)))):
            for method in ("size", "later"):
                reply = client.post("/", content=encode(call(method, text=text)))
                assert reply.json()["result"] == len(text)
            body = encode(json.dumps({"text": text}).encode())
            json_type = {"Content-Type": "application/json"}
            assert client.post("/size", content=body, headers=json_type).json() == len(text)
            assert client.post("/echo", content=encode(text.encode())).text == text


def test_clients_of_others(serve: Serve) -> None:
    server = serve(size)
    url = f"http://127.0.0.1:{server.port}/"

    async def aiohttp_calls() -> list[Any]:
        async with aiohttp.ClientSession() as session:
            answers = []
            for chunked in (False, True):
                post = session.post(
                    url, data=call("size", text="x" * 50_000), compress="gzip", chunked=chunked
                )
                async with post as reply:
                    answers.append((await reply.json())["result"])
            return answers

    assert asyncio.run(aiohttp_calls()) == [50_000, 50_000]
    command = ["curl", "-s", "--data-binary", "@-", "-H", "Content-Encoding: gzip", url]
    body = gzip.compress(call("size", text="x" * 50_000))
    for more in ([], ["-H", "Transfer-Encoding: chunked"], ["-H", "Expect: 100-continue"]):
        curl = subprocess.run([*command, *more], input=body, capture_output=True, check=True)
        assert json.loads(curl.stdout)["result"] == 50_000


@pytest.mark.parametrize(
    ("coding", "body", "status", "text"),
    [
        ("br", b"x", 415, "one of those in Accept-Encoding"),
        ("gzip, zstd", b"x", 415, "one of those in Accept-Encoding"),
        ("gzip", b"{}", 400, "whole data of the coding"),
        ("zstd", b"{}", 400, "whole data of the coding"),
        ("gzip", gzip.compress(b"{}")[:-1], 400, "whole data of the coding"),
        ("gzip", gzip.compress(b" " * 1_000_000), 413, "max_body_ratio (100 times)"),
        ("zstd", zstd(b" " * 1_000_000), 413, "max_body_ratio (100 times)"),
        ("zstd", lambda: zstd(b" " * 9_000_000, 0x71), 400, "at most 8 MiB"),
        ("gzip", lambda: gzip.compress(b" " * 17_000_000), 413, "max_body_"),
    ],
    ids=lambda value: f"{len(value)} bytes" if isinstance(value, bytes) else None,
)
def test_what_is_refused(
    serve: Serve, coding: str, body: bytes | Callable[[], bytes], status: int, text: str
) -> None:
    server = serve(size)
    body = body() if callable(body) else body
    for path in ("/", "/size"):
        with Wire(server.port) as wire:
            wire.send(request(coding, body, path))
            answer = wire.rest()
        head, _, reason = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 %d " % status), answer
        assert text in reason.decode(), answer
        assert (b"\r\nAccept-Encoding: zstd, gzip\r\n" in head) == (status == 415)
    assert httpx.post(f"http://127.0.0.1:{server.port}/size?text=x").json() == 1


def test_others_are_served_while_a_bomb_is_decoded(serve: Serve) -> None:
    """Each turn decodes a piece: calls that arrive meanwhile are answered before the bomb is."""
    server = serve(size, max_body_bytes=1 << 28, max_body_ratio=1 << 30, max_held_bytes=1 << 30)
    bomb = gzip.compress(b" " * 40_000_000, 1)
    ends: list[bytes] = []
    with socket.create_connection(("127.0.0.1", server.port)) as client:

        def send() -> None:
            client.sendall(request("gzip", bomb))
            ends.append(client.recv(4096))

        sender = threading.Thread(target=send)
        sender.start()
        answered = 0
        with Client(port=server.port) as other:
            while not ends:
                assert other.size(text="abc").json == 3
                answered += 1
        sender.join()
    assert b"-32700" in ends[0] and answered >= 10


def test_decoded_bodies_are_held_until_their_client_leaves(serve: Serve) -> None:
    server = serve(size, max_body_ratio=1 << 30, max_held_bytes=4_000_000)
    body = gzip.compress(call("size", text="x" * 5_000_000))

    def status() -> int:
        return httpx.post(f"http://127.0.0.1:{server.port}/size?text=x").status_code

    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(request("gzip", body)[:-1])
        assert eventually(lambda: status() == 503)
    assert eventually(lambda: status() == 200)


def text(length: int) -> str:
    return "x" * length


async def later_text(length: int) -> str:
    return "x" * length


def numbers(count: int) -> Iterator[int]:
    yield from range(count)


def compressing(serve: Serve) -> str:
    functions = (text, later_text, numbers, size)
    server = serve(*functions, compression_min_bytes=100, compression_max_bytes=1_000_000)

    @server.http("/page")
    def page(request: ucall.HttpRequest) -> ucall.HttpResponse:
        kind = request.headers["x-type"]
        query = unquote(request.query)
        headers = dict(it.split("=") for it in query.split("&") if it)
        return ucall.HttpResponse("y" * 1_000, content_type=kind, headers=headers)

    @server.http("/parts")
    async def parts(request: ucall.HttpRequest) -> AsyncIterator[str]:
        for number in range(3):
            yield f"part {number}" + " " * 1_000

    return f"http://127.0.0.1:{server.port}"


def curl(url: str, *options: str) -> tuple[str, bytes]:
    """The head and the decoded body that curl gets."""
    command = ["curl", "-s", "-i", "--compressed", *options, url]
    done = subprocess.run(command, capture_output=True, check=True, timeout=60)
    head, _, body = done.stdout.partition(b"\r\n\r\n")
    return head.decode(), body


@pytest.mark.parametrize("accepted", ["gzip", "zstd", "gzip;q=0.5, zstd;q=0.4"])
def test_curl_gets_compressed_replies(serve: Serve, accepted: str) -> None:
    url = compressing(serve)
    coding = accepted.split(";")[0]
    accepts = ("-H", f"Accept-Encoding: {accepted}")
    for method in ("text", "later_text"):
        for length in (10, 90_000):
            head, body = curl(url, *accepts, "-d", call(method, length=length).decode())
            assert json.loads(body)["result"] == "x" * length
            assert (f"Content-Encoding: {coding}" in head) == (length > 10), head
            assert "Vary: Accept-Encoding" in head or length == 10
    head, body = curl(f"{url}/text", *accepts, "--json", '{"length": 5000}')
    assert json.loads(body) == "x" * 5_000 and f"Content-Encoding: {coding}" in head
    head, body = curl(f"{url}/page", *accepts, "-H", "X-Type: text/html")
    assert body == b"y" * 1_000 and f"Content-Encoding: {coding}" in head
    head, body = curl(f"{url}/parts", *accepts)
    assert len(body) == 3 * 1_006


@pytest.mark.parametrize(
    ("kind", "headers", "coded"),
    [
        ("application/json", "", True),
        ("application/problem+json; charset=utf-8", "", True),
        ("image/svg+xml", "", True),
        ("image/png", "", False),
        ("application/octet-stream", "", False),
        ("text/plain", "Cache-Control=private,no-transform", False),
        ("text/plain", "Content-Encoding=identity", False),
        ("text/plain", 'ETag="a"', True),
    ],
)
def test_what_a_route_sends_compressed(serve: Serve, kind: str, headers: str, coded: bool) -> None:
    url = compressing(serve)
    sent = {"X-Type": kind, "Accept-Encoding": "gzip"}
    response = httpx.get(f"{url}/page?{headers}", headers=sent)
    assert response.text == "y" * 1_000
    assert (response.headers.get("content-encoding") == "gzip") == coded
    assert ("accept-encoding" in response.headers.get("vary", "").lower()) == coded
    if "ETag" in headers:
        assert response.headers["etag"] == 'W/"a"'
    head = httpx.head(f"{url}/page?{headers}", headers=sent)
    assert head.headers["content-length"] == "1000" and not head.content


def test_httpx_and_aiohttp_get_compressed_replies(serve: Serve) -> None:
    url = compressing(serve)
    response = httpx.post(url, content=call("text", length=5_000))
    assert response.headers["content-encoding"] in ("gzip", "zstd")
    assert response.json()["result"] == "x" * 5_000

    async def post() -> Any:
        async with (
            aiohttp.ClientSession() as session,
            session.post(url, data=call("text", length=5_000)) as reply,
        ):
            assert reply.headers["Content-Encoding"] in ("gzip", "zstd")
            return (await reply.json())["result"]

    assert asyncio.run(post()) == "x" * 5_000
    with Client(url) as client:  # Ours accepts none.
        assert client.text(length=5_000).json == "x" * 5_000


@pytest.mark.parametrize("accept", ["text/event-stream", "application/x-ndjson"])
def test_each_item_of_a_stream_arrives_when_it_is_made(serve: Serve, accept: str) -> None:
    proceed = threading.Event()

    def steps() -> Iterator[str]:
        yield "first"
        proceed.wait(60)
        yield "second"

    server = serve(steps, threads=1, compression_min_bytes=100)
    headers = {"Accept": accept, "Accept-Encoding": "gzip"}
    url = f"http://127.0.0.1:{server.port}"
    with httpx.stream("POST", url, content=call("steps"), headers=headers) as response:
        assert response.headers["content-encoding"] == "gzip"
        received = ""
        for piece in response.iter_text():
            received += piece
            if "first" in received and not proceed.is_set():
                assert "second" not in received
                proceed.set()
    assert "second" in received and '"result"' in received


def test_a_server_compresses_nothing_by_default(serve: Serve) -> None:
    server = serve(text)
    response = httpx.post(f"http://127.0.0.1:{server.port}", content=call("text", length=5_000))
    assert "content-encoding" not in response.headers and "vary" not in response.headers


def test_the_options_are_checked() -> None:
    for options, problem in (
        ({"min_bytes": 0}, "compression.min_bytes: expected an int from 1"),
        ({"min_bytes": 9, "max_bytes": 8}, "compression.max_bytes: expected at least"),
    ):
        with pytest.raises(ValueError, match=problem):
            ucall.Server(port=0, compression=ucall.Compression(**options))
