"""Request smuggling through proxies: a request hidden after another, where two parsers may differ.

The proxies mark each request that they forward. A request without the mark was part of another
request's body for the proxy, so it was smuggled. The proxy may also split an attack into two
requests itself, or reject it.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from proxies import haproxy, nginx
from serving import Serve

import ucall
from harness import HOST, Wire, eventually, free_port, http, request

MARK = "X-Passed-On"
HIDDEN = http(request("add", [1, 1], "hidden"))
FOLLOWING = http(request("add", [2, 2], "following"))

#: Headers that only some parsers read as chunked.
ENCODINGS = [
    "Transfer-Encoding: chunked",
    "Transfer-Encoding : chunked",
    "Transfer-Encoding:\vchunked",
    "Transfer-Encoding:\r\n chunked",
    "Transfer-Encoding: chunked\r\n ",
    "Transfer-Encoding: xchunked",
    'Transfer-Encoding: "chunked"',
    "Transfer-Encoding: chunked, identity",
    "Transfer-Encoding: identity, chunked",
    "Transfer-Encoding: chunked;x",
    "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
    "Transfer-Encoding: x\r\nTransfer-Encoding: chunked",
    "Transfer-Encoding: chunked\r\nTransfer-Encoding: x",
    "Transfer_Encoding: chunked",
    "Transfer-Encoding\0: chunked",
    " Transfer-Encoding: chunked",
    ": x\r\nTransfer-Encoding: chunked",
    "X: x\nTransfer-Encoding: chunked",
    "X: x\rTransfer-Encoding: chunked",
    "X: x\r\n\tTransfer-Encoding: chunked",
    "Connection: Transfer-Encoding\r\nTransfer-Encoding: chunked",
]

#: Lengths that are 0 for some parsers, and include the hidden request for others.
LENGTHS = [
    "Content-Length: 0\r\nContent-Length: {n}",
    "Content-Length: {n}\r\nContent-Length: 0",
    "Content-Length: 0, {n}",
    "Content-Length: {n}, {n}",
    "Content-Length: +{n}",
    "Content-Length: -{n}",
    "Content-Length: 0{n}",
    "Content-Length : {n}",
    "Content-Length:\v{n}",
    "Content-Length: {n} 0",
    "Content-Length: 0\r\n {n}",
    "Content-Length:\r\n {n}",
    "Content-Length: 184467440737095516160{n}",
    "Content_Length: {n}",
    "X: x\nContent-Length: {n}",
    "X: x\rContent-Length: {n}",
    "Connection: Content-Length\r\nContent-Length: {n}",
    "Expect: 100-continue\r\nContent-Length: {n}",
    "Expect: 100-continue\r\nContent-Length: 0\r\nX: {n}",
    "Upgrade: websocket\r\nConnection: Upgrade\r\nContent-Length: {n}",
    "Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: \r\nX: {n}",
]

#: Chunked bodies that end before the hidden request for some parsers, and with or after it for
#: others.
CHUNKS = [
    b"0\r\n\r\n",
    b"0\n\n",
    b"0\r\n\n",
    b"0\r\r\n",
    b"0\r\nX: x\n\r\n",
    b"0\r\n X: x\r\n\r\n",
    b"0\r\nContent-Length: 5\r\n\r\n",
    b"0;\n\r\n",
    b'0;x="\r\n\r\n',
    b"0;x=\r0\r\n\r\n",
    b"00000000000000000000\r\n\r\n",
    b"10000000000000000\r\n\r\n",
    b"0x0\r\n\r\n",
    b"+0\r\n\r\n",
    b"-0\r\n\r\n",
    b"0 \r\n\r\n",
    b"0_0\r\n\r\n",
    b"1\r\nx\n0\r\n\r\n",
    b"1\r\nxx\r\n0\r\n\r\n",
    b"1\nx\r\n0\r\n\r\n",
    b"1;\nx\r\n0\r\n\r\n",
    b"2\r\nx\r\n0\r\n\r\n",
    b"\r\n0\r\n\r\n",
    b"FFFFFFFFFFFFFFFF\r\n\r\n",
]


def posted(headers: str, body: bytes, line: str = "POST / HTTP/1.1") -> bytes:
    return f"{line}\r\nHost: localhost\r\n{headers}\r\n\r\n".encode() + body


def attacks() -> Iterator[bytes]:
    size = f"{len(HIDDEN):x}\r\n"
    # A parser that uses the length reads all of it as the body; otherwise the hidden request
    # follows the body.
    after = b"0\r\n\r\n" + HIDDEN
    # For a parser that uses the length, the body ends where the hidden request begins.
    within = size.encode() + HIDDEN + b"\r\n0\r\n\r\n"
    for encoding in ENCODINGS:
        for length, body in ((len(after), after), (len(size), within)):
            yield posted(f"Content-Length: {length}\r\n{encoding}", body)
            yield posted(f"{encoding}\r\nContent-Length: {length}", body)
        yield posted(encoding, after, "POST / HTTP/1.0")
        yield posted(f"Connection: keep-alive\r\n{encoding}", within, "POST / HTTP/1.0")
    for length in LENGTHS:
        yield posted(length.format(n=len(HIDDEN)), HIDDEN)
    for method in ("GET", "HEAD", "OPTIONS", "DELETE", "TRACE", "CONNECT"):
        yield posted(f"Content-Length: {len(HIDDEN)}", HIDDEN, f"{method} / HTTP/1.1")
        yield posted("Transfer-Encoding: chunked", within, f"{method} / HTTP/1.1")
    for chunk in CHUNKS:
        yield posted("Transfer-Encoding: chunked", chunk + HIDDEN)
        yield posted("Transfer-Encoding: chunked", chunk[:-2] + HIDDEN)


def attack(port: int, sent: bytes) -> None:
    """Sends the attack and one more request, and reads replies for a moment."""
    with socket.create_connection((HOST, port), timeout=60) as wire:
        try:
            wire.sendall(sent + FOLLOWING)
            wire.settimeout(0.1)
            while wire.recv(65536):
                pass
        except (TimeoutError, ConnectionError):
            pass


def is_served(port: int, number: int) -> bool:
    """Whether a call gets its own reply, or an error of the proxy."""
    with Wire(port) as wire:
        wire.send(http(request("add", [number, 1], f"call {number}"), "Connection: close"))
        status, _, body = wire.reply()
    if status != 200:
        assert status in (502, 503, 504), (status, body)
        return False
    reply = json.loads(body)
    assert (reply["id"], reply["result"]) == (f"call {number}", number + 1)
    return True


@dataclass
class Guard:
    """Accepts every request, and counts those with and without the proxy's mark."""

    marked: int = 0
    unmarked: list[dict[str, str]] = field(default_factory=list)

    def __call__(self, ctx: ucall.Context) -> bool:
        if MARK.lower() in ctx.headers:
            self.marked += 1
        else:
            self.unmarked.append(dict(ctx.headers))
        return True


@contextmanager
def _nginx(folder: Path, server: int, port: int) -> Iterator[None]:
    configuration = f"""
        upstream app {{ server {HOST}:{server}; keepalive 8; }}
        server {{
            listen {HOST}:{port};
            ignore_invalid_headers off;
            underscores_in_headers on;
            location / {{
                proxy_pass http://app/;
                proxy_http_version 1.1;
                proxy_request_buffering off;
                proxy_set_header Connection "";
                proxy_set_header Host localhost;
                proxy_set_header {MARK} 1;
            }}
        }}
    """
    with nginx(folder, configuration, port):
        yield


@contextmanager
def _haproxy(folder: Path, server: int, port: int, option: str = "") -> Iterator[None]:
    configuration = f"""
global
    maxconn 100
defaults
    mode http
    timeout connect 60s
    timeout client 60s
    timeout server 60s
    http-reuse always
frontend web
    bind {HOST}:{port}
    {option}
    http-request set-header Host localhost
    http-request set-header {MARK} 1
    default_backend app
backend app
    server app {HOST}:{server}
"""
    with haproxy(folder, configuration, port):
        yield


@contextmanager
def _lenient_haproxy(folder: Path, server: int, port: int) -> Iterator[None]:
    with _haproxy(folder, server, port, "option accept-invalid-http-request"):
        yield


@pytest.mark.parametrize("proxy", [_nginx, _haproxy, _lenient_haproxy])
def test_no_request_is_smuggled_past_a_proxy(
    serve_once: Serve, tmp_path: Path, proxy: Callable[..., Iterator[None]]
) -> None:
    def add(a: int, b: int) -> int:
        return a + b

    guard = Guard()
    server, port = serve_once(add, auth=guard), free_port()
    with proxy(tmp_path, server.port, port), ThreadPoolExecutor(16) as pool:
        done = [pool.submit(attack, port, sent) for sent in attacks()]
        for number in range(100):
            is_served(port, number)
        for it in done:
            it.result()
        assert guard.unmarked == []
        # No reply is left over, which another client would get.
        served = [eventually(lambda number=number: is_served(port, number)) for number in range(50)]
        assert all(served) and guard.marked > 50
        assert guard.unmarked == []
    # The test detects a request without the mark.
    attack(server.port, HIDDEN)
    assert eventually(lambda: len(guard.unmarked) == 2)
