"""HTTP: accepted and rejected requests, and limits."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

import ucall
from harness import Wire, http, request

Serve = Callable[..., ucall.Server]
CALL = request("echo", [7])
REPLY = {"jsonrpc": "2.0", "id": 1, "result": 7}


def echo(value: Any) -> Any:
    return value


@pytest.fixture
def server(serve: Serve) -> ucall.Server:
    return serve(echo)


def _answers(server: ucall.Server) -> bool:
    """Whether the next valid call is answered."""
    with Wire(server.port) as wire:
        wire.send(http(CALL))
        return json.loads(wire.reply()[2]) == REPLY


def test_connections_are_kept_alive(server: ucall.Server) -> None:
    with Wire(server.port) as wire:
        for number in range(100):
            wire.send(http(request("echo", [number])))
            status, head, body = wire.reply()
            assert status == 200 and b"\r\nContent-Type: application/json" in head
            assert json.loads(body)["result"] == number
    assert server.stats()["accepted"] == 1


def test_pipelined_requests_are_answered_in_order(server: ucall.Server) -> None:
    with Wire(server.port) as wire:
        wire.send(b"".join(http(request("echo", [number])) for number in range(500)))
        for number in range(500):
            assert json.loads(wire.reply()[2])["result"] == number


def test_notifications_get_204(server: ucall.Server) -> None:
    with Wire(server.port) as wire:
        wire.send(http(request("echo", [1], id=...)) + http(CALL))
        assert wire.reply()[0] == 204
        assert json.loads(wire.reply()[2]) == REPLY


@pytest.mark.parametrize("header", ["Connection: close", "connection: Close"])
def test_connection_close_closes(server: ucall.Server, header: str) -> None:
    with Wire(server.port) as wire:
        wire.send(http(CALL, header))
        status, head, body = wire.reply()
        assert (status, json.loads(body)) == (200, REPLY)
        assert b"connection: close" in head.lower()
        assert wire.rest() == b""


def test_http_1_0_closes_without_keep_alive(server: ucall.Server) -> None:
    old = http(CALL).replace(b"HTTP/1.1", b"HTTP/1.0")
    with Wire(server.port) as wire:
        wire.send(old)
        assert json.loads(wire.reply()[2]) == REPLY
        assert wire.rest() == b""
    with Wire(server.port) as wire:
        for _ in range(2):
            wire.send(old.replace(b"\r\n", b"\r\nConnection: keep-alive\r\n", 1))
            status, head, body = wire.reply()
            assert (status, json.loads(body)) == (200, REPLY)
            assert b"connection: keep-alive" in head.lower()


def test_expect_continue(server: ucall.Server) -> None:
    head, body = http(CALL, "Expect: 100-continue")[: -len(CALL)], CALL
    with Wire(server.port) as wire:
        wire.send(head)
        assert wire.reply()[0] == 100
        wire.send(body)
        assert json.loads(wire.reply()[2]) == REPLY


def test_chunked_bodies(server: ucall.Server) -> None:
    head = b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunks = b"".join(b"%x;ext=1\r\n%c\r\n" % (1, byte) for byte in CALL)
    with Wire(server.port) as wire:
        for _ in range(2):
            wire.send(head + chunks + b"0\r\nTrailer: x\r\n\r\n")
            assert json.loads(wire.reply()[2]) == REPLY


def test_a_half_closed_peer_is_answered(server: ucall.Server) -> None:
    with Wire(server.port) as wire:
        wire.send(http(CALL))
        wire.end()
        assert json.loads(wire.reply()[2]) == REPLY
        assert wire.rest() == b""
    with Wire(server.port) as wire:
        wire.send(CALL * 3)
        wire.end()
        assert [json.loads(line) for line in wire.rest().splitlines()] == [REPLY] * 3


def _head(*lines: str) -> bytes:
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


HOST = "Host: localhost"
REFUSED: list[tuple[bytes, int]] = [
    (_head("GET / HTTP/1.1", HOST), 405),
    (_head("PUT / HTTP/1.1", HOST, "Content-Length: 0"), 405),
    (_head("POST /other HTTP/1.1", HOST, "Content-Length: 0"), 404),
    (_head("POST / HTTP/1.1"), 400),
    (_head("POST / HTTP/1.1", HOST, HOST), 400),
    (_head("POST / HTTP/1.1", "Host: a b"), 400),
    (_head("POST / HTTP/1.1", HOST, "Content-Length: 5", "Transfer-Encoding: chunked"), 400),
    (_head("POST / HTTP/1.1", HOST, "Content-Length: 5", "Content-Length: 6"), 400),
    (_head("POST / HTTP/1.1", HOST, "Content-Length: +5"), 400),
    (_head("POST / HTTP/1.1", HOST, "Content-Length: -1"), 400),
    (_head("POST / HTTP/1.1", HOST, "Content-Length: 1_0"), 400),
    (_head("POST / HTTP/1.1", HOST, "Content-Length: "), 400),
    (_head("POST / HTTP/1.1", HOST, "Content-Length: 99999999999999999999"), 400),
    (_head("POST / HTTP/1.1", HOST, "Transfer-Encoding: chunked, chunked"), 400),
    (_head("POST / HTTP/1.1", HOST, "Transfer-Encoding: chunked, gzip"), 400),
    (_head("POST / HTTP/1.0", HOST, "Transfer-Encoding: chunked"), 400),
    (_head("POST / HTTP/1.1", HOST, "Transfer-Encoding: chunked") + b"0x1\r\na\r\n0\r\n\r\n", 400),
    (_head("POST / HTTP/1.1", HOST, "Transfer-Encoding: chunked") + b"1\na\r\n0\r\n\r\n", 400),
    (_head("POST / HTTP/1.1", HOST, "Transfer-Encoding: chunked") + b"1\r\nab\r\n0\r\n\r\n", 400),
    (_head("POST / HTTP/1.1", HOST, "Transfer-Encoding: chunked") + b"f" * 17 + b"\r\n", 400),
    (_head("POST / HTTP/1.1", HOST, "A : b"), 400),
    (_head("POST / HTTP/1.1", HOST, "A: b", " folded"), 400),
    (_head("POST / HTTP/1.1", HOST, "A: \0"), 400),
    (b"POST / HTTP/1.1\nHost: localhost\n\n", 400),
    (_head("POST / HTTP/1.1", HOST, "A: " + "x" * 16_384), 431),
    (_head("POST / HTTP/1.1", HOST, *(f"A{number}: b" for number in range(100))), 431),
    (_head("POST / HTTP/1.1", HOST, "Content-Length: 16777217"), 413),
    (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
]


@pytest.mark.parametrize(
    ("data", "status"), REFUSED, ids=[str(number) for number in range(len(REFUSED))]
)
def test_invalid_requests_are_refused_after_earlier_replies(
    server: ucall.Server, data: bytes, status: int
) -> None:
    with Wire(server.port) as wire:
        wire.send(http(CALL) + data)
        assert json.loads(wire.reply()[2]) == REPLY
        refused, head, _ = wire.reply()
        assert refused == status, head
        if status in (404, 405):
            assert (b"\r\nAllow: " in head) == (status == 405)
        else:
            assert wire.rest() == b""
    assert _answers(server)


def test_the_body_limit_is_exact(serve: Serve) -> None:
    server = serve(echo, max_body_bytes=1000)
    fits = request("echo", ["x" * (1000 - len(request("echo", [""])))])
    with Wire(server.port) as wire:
        wire.send(http(fits))
        assert wire.reply()[0] == 200
        wire.send(http(fits + b" "))
        assert wire.reply()[0] == 413
        assert wire.rest() == b""
    with Wire(server.port) as wire:
        wire.send(fits)
        assert b"result" in wire.line()
        wire.send(fits.replace(b"xx", b"xxx", 1))
        assert b"-32600" in wire.line() and wire.rest() == b""
    assert _answers(server)


def test_a_large_body_arrives_whole(server: ucall.Server) -> None:
    text = "0123456789" * 1_000_000
    with Wire(server.port) as wire:
        for _ in range(2):
            wire.send(http(request("echo", [text])))
            assert json.loads(wire.reply()[2])["result"] == text


BROWSERS: list[tuple[dict[str, Any], list[str], int]] = [
    ({}, ["Host: localhost:1"], 200),
    ({}, ["Host: [::1]:8545"], 200),
    ({}, ["Host: evil.example"], 403),
    ({}, ["Host: 127.0.0.1.evil.example"], 403),
    ({}, ["Host: localhost", "Origin: https://evil.example"], 403),
    ({}, ["Host: localhost", "Origin: null"], 403),
    ({"allowed_hosts": ["box.lan"]}, ["Host: box.lan:80"], 200),
    ({"allow_origins": ["https://app.example"]}, [HOST, "Origin: https://app.example"], 200),
    ({"allow_origins": ["https://app.example"]}, [HOST, "Origin: https://evil.example"], 403),
]


@pytest.mark.parametrize(("options", "headers", "status"), BROWSERS)
def test_foreign_origins_are_refused(
    serve: Serve, options: dict[str, Any], headers: list[str], status: int
) -> None:
    server = serve(echo, **options)
    for target in ("/", "/other"):
        with Wire(server.port) as wire:
            length = f"Content-Length: {len(CALL)}"
            wire.send(_head(f"POST {target} HTTP/1.1", *headers, length) + CALL)
            answered, head, _ = wire.reply()
            assert answered == (404 if target != "/" and status == 200 else status)
            named = b"\r\nAccess-Control-Allow-Origin: https://app.example" in head
            assert named == ("allow_origins" in options and status == 200)


def test_a_named_origin_gets_its_preflight(serve: Serve) -> None:
    server = serve(echo, allow_origins=["https://app.example"])
    with Wire(server.port) as wire:
        origin, method = "Origin: https://app.example", "Access-Control-Request-Method: POST"
        wire.send(_head("OPTIONS / HTTP/1.1", HOST, origin, method))
        status, head, _ = wire.reply()
        assert status == 204 and b"\r\nVary: Origin" in head
        assert b"\r\nAccess-Control-Allow-Methods: GET, HEAD, POST, OPTIONS\r\n" in head


def test_any_host_is_accepted_off_loopback(engine: str) -> None:
    server = ucall.Server("0.0.0.0", 0)
    server.add(echo)
    with server, Wire(server.port) as wire:
        wire.send(http(CALL).replace(b"127.0.0.1", b"box.lan"))
        assert wire.reply()[0] == 200
        wire.send(http(CALL, "Origin: http://box.lan").replace(b"127.0.0.1", b"box.lan"))
        assert wire.reply()[0] == 403
