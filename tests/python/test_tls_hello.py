"""The first message of a TLS client, at its longest length and beyond."""

from __future__ import annotations

import socket

from certificates import Authority, Files, authority, client_hello, files
from serving import Serve

from harness import Wire

__all__ = ["authority", "files"]


def add(a: int, b: int) -> int:
    return a + b


def lengthened(record: bytes, length: int) -> bytes:
    """The ClientHello extended to a length without header, in as many records as it needs."""
    body = record[9:]
    suites = 35 + body[34]
    compression = suites + 2 + int.from_bytes(body[suites : suites + 2])
    at = compression + 1 + body[compression]
    more = length - len(body)
    # An extension of an unassigned type.
    unknown = b"\x4a\x4a" + (more - 4).to_bytes(2) + bytes(more - 4)
    extensions = body[at + 2 :] + unknown
    body = body[:at] + len(extensions).to_bytes(2) + extensions
    message = b"\x01" + len(body).to_bytes(3) + body
    pieces = (message[start : start + 16_384] for start in range(0, len(message), 16_384))
    return b"".join(b"\x16\x03\x01" + len(piece).to_bytes(2) + piece for piece in pieces)


def test_a_hello_has_a_longest_length(serve: Serve, authority: Authority, files: Files) -> None:
    server = serve(add, ssl_certfile=files.both)
    hello = client_hello(authority.context())
    with Wire(server.port) as wire:
        wire.send(lengthened(hello, 65_535))
        answer = wire.socket.recv(6, socket.MSG_WAITALL)
        assert answer[::5] == b"\x16\x02", "a record with a ServerHello"
    with Wire(server.port) as wire:
        wire.send(lengthened(hello, 65_536))
        assert wire.rest() == b"\x15\x03\x03\x00\x02\x02\x32", "the alert decode_error"
