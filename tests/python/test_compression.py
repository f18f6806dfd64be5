"""Compressed bodies of requests."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import subprocess
import threading
from typing import Any

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
        repeats = len(set(piece)) == 1
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
        ("zstd", zstd(b" " * 9_000_000, 0x71), 400, "at most 8 MiB"),
        ("gzip", gzip.compress(b" " * 17_000_000), 413, "max_body_"),
    ],
)
def test_what_is_refused(serve: Serve, coding: str, body: bytes, status: int, text: str) -> None:
    server = serve(size)
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
    bomb = gzip.compress(b" " * 100_000_000, 1)
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
