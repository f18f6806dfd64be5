"""Clients and servers whose reply never ends: a call ends at its timeout, whatever it receives.

Time bounds are generous: they only distinguish a call that ends from one that does not.
"""

from __future__ import annotations

import socket
import ssl
import time
from typing import Any

import pytest
from both_clients import NewClient
from certificates import Authority, Files, authority, files
from scripted import Peer, Script, Scripted, http_reply, result, scripted

import ucall
from ucall import _core

__all__ = ["authority", "files"]

TIMEOUT_S = 0.5
#: For the slowest machine; without a deadline a call would never end.
END_S = 10.0
#: So large that the timeout comes first.
REPLY_BYTES_MAX = 1 << 30
OPTIONS: Any = {"timeout": TIMEOUT_S, "max_reply_bytes": REPLY_BYTES_MAX}
#: 1xx responses before one reply; see INFORMATIONAL_MAX in response_reader.rs.
INFORMATIONAL_MAX = 100

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"

#: The first bytes, and the bytes that repeat.
HTTP = {
    "heads of status 1xx": (b"", CONTINUE),
    "heads with headers": (b"", b"HTTP/1.1 103 Early Hints\r\nA: b\r\n\r\n"),
    "empty lines": (b"", b"\r\n"),
    "a status line": (b"HTTP/1.1 200 ", b"x"),
    "a name": (b"HTTP/1.1 200 OK\r\n", b"x"),
    "a value": (b"HTTP/1.1 200 OK\r\nA: ", b"x"),
    "headers": (b"HTTP/1.1 200 OK\r\n", b"A: b\r\n"),
    "zeros of a chunk's size": (CHUNKED, b"0"),
    "a chunk extension": (CHUNKED + b"1;x", b"x"),
    "chunk extensions": (CHUNKED, b"1;x\r\n \r\n"),
    "chunks of a byte": (CHUNKED, b"1\r\n \r\n"),
    "a trailer": (CHUNKED + b"0\r\nA: ", b"x"),
    "trailers": (CHUNKED + b"0\r\n", b"A: b\r\n"),
    "a body up to the end": (b"HTTP/1.1 200 OK\r\n\r\n", b" "),
    "a body of a length": (b"HTTP/1.1 200 OK\r\nContent-Length: 1073741824\r\n\r\n", b" "),
}
RAW = {
    "white space": (b"", b" "),
    "empty lines": (b"", b"\r\n"),
    "a string": (b'{"result":"', b"x"),
    "white space within": (b'{"result":', b" "),
    "items": (b'{"result":[1', b",1"),
    "replies to another call": (b"", result("x", id="another") + b"\n"),
    "errors of no call": (b"", b'{"id":null,"error":{"code":1,"message":"x"}}\n'),
}
CASES = [("http", *case) for case in HTTP.items()] + [("tcp", *case) for case in RAW.items()]


def endless(scheme: str, first: bytes, again: bytes, context: ssl.SSLContext | None) -> Script:
    """A script that sends as long as the client reads."""

    def script(peer: Peer) -> None:
        if context is not None:
            peer.socket = context.wrap_socket(peer.socket, server_side=True)
        peer.http_request() if scheme == "http" else peer.raw_request()
        peer.send(first)
        many = again * ((1 << 20) // len(again))
        while True:
            peer.send(many)

    return script


def trickling(scheme: str, first: bytes, again: bytes) -> Script:
    """A script that sends a byte at a time, so that the connection is never idle for long."""

    def script(peer: Peer) -> None:
        peer.http_request() if scheme == "http" else peer.raw_request()
        peer.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer.send(first)
        while True:
            for byte in again:
                peer.send(bytes([byte]))
                time.sleep(0.001)

    return script


def ends(
    server: Scripted, new_client: NewClient, scheme: str, context: ssl.SSLContext | None = None
) -> str:
    """The reason with which a call fails."""
    began, uri = time.monotonic(), f"{scheme}{'s' if context else ''}://localhost"
    with (
        pytest.raises((ucall.TimeoutError, ucall.ConnectionError, ucall.RPCError)) as raised,
        new_client(uri, server.port, **OPTIONS, verify=context or True) as client,
    ):
        client.sum(1, 2).raise_for_status()
    assert time.monotonic() - began < END_S
    return str(raised.value)


@pytest.mark.parametrize(
    ("scheme", "name", "sent"), CASES, ids=[f"{scheme}: {name}" for scheme, name, _ in CASES]
)
class TestEndless:
    @pytest.mark.slow
    def test_as_fast_as_it_can(
        self, new_client: NewClient, scheme: str, name: str, sent: tuple[bytes, bytes]
    ) -> None:
        with scripted(endless(scheme, *sent, None)) as server:
            why = ends(server, new_client, scheme)
        if name.startswith("heads"):
            assert f"more than {INFORMATIONAL_MAX} heads of status 1xx" in why

    @pytest.mark.slow
    def test_a_byte_at_a_time(
        self, new_client: NewClient, scheme: str, name: str, sent: tuple[bytes, bytes]
    ) -> None:
        with scripted(trickling(scheme, *sent)) as server:
            ends(server, new_client, scheme)

    @pytest.mark.slow
    def test_under_tls(
        self,
        new_client: NewClient,
        scheme: str,
        name: str,
        sent: tuple[bytes, bytes],
        authority: Authority,
        files: Files,
    ) -> None:
        own = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        own.load_cert_chain(files.both)
        with scripted(endless(scheme, *sent, own)) as server:
            ends(server, new_client, scheme, authority.context())


def record(kind: int, content: bytes) -> bytes:
    return bytes([kind, 3, 3]) + len(content).to_bytes(2) + content


#: Records that a handshake may pass over.
RECORDS = {
    "HelloRequest": record(22, bytes(4) * 4000),
    "ChangeCipherSpec": record(20, b"\x01") * 1000,
    "warnings": record(21, b"\x01\x5a") * 1000,
    "nothing": record(22, b"") * 1000,
    "a message": record(22, b"\x02\xff\xff\xff" + bytes(16_000)),
}


@pytest.mark.parametrize("name", RECORDS)
def test_a_handshake_that_never_ends(
    new_client: NewClient, name: str, authority: Authority
) -> None:
    def script(peer: Peer) -> None:
        peer.socket.recv(1 << 16)
        many = RECORDS[name] * 64
        while True:
            peer.send(many)

    with scripted(script) as server:
        ends(server, new_client, "http", authority.context())


def test_many_replies_at_once_take_as_long_as_one_by_one() -> None:
    # If each of them copied the rest, this would take a day.
    count = 200_000
    for http, text in [(False, result(1) + b"\n"), (True, http_reply(result(1)))]:
        reader = _core.ReplyReader(http=http, reply_bytes_max=1 << 20)
        assert len(reader.feed(text * count)) == count


def test_a_head_in_many_pieces_is_read_by_lines() -> None:
    lines = [b"HTTP/1.1 200 OK\r\n", *(b"A%d: %s\r\n" % (at, b"x" * 300) for at in range(99))]
    text = b"".join(lines)[:32_000]
    # If each byte made the client parse the whole head, this would take minutes.
    for _ in range(50):
        reader = _core.ReplyReader(http=True, reply_bytes_max=1 << 20)
        for at in range(len(text)):
            reader.feed(text[at : at + 1])
