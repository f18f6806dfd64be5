"""Bodies of requests that arrive in pieces, at routes and at mounted applications."""

from __future__ import annotations

import functools
import threading

import pytest

from harness import HOST, Wire, eventually, http


class BodyReader:
    """Notes the parts of bodies. A derived class reads them while it may."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.ends: list[str] = []
        self.reads = threading.Event()
        self.reads.set()

    def has_received(self, count: int) -> bool:
        return len(b"".join(self.parts)) == count


def head(length: int | None, path: str = "/a") -> bytes:
    framing = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
    return f"POST {path} HTTP/1.1\r\nHost: {HOST}\r\n{framing}\r\n\r\n".encode()


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def check_parts_arrive_before_the_end(port: int, reader: BodyReader, is_chunked: bool) -> None:
    with Wire(port) as wire:
        for _ in range(2):
            reader.parts.clear()
            wire.send(head(None if is_chunked else 100_000))
            for part, total in [(b"a" * 40_000, 40_000), (b"b" * 60_000, 100_000)]:
                wire.send(chunk(part) if is_chunked else part)
                assert eventually(functools.partial(reader.has_received, total))
            if is_chunked:
                wire.send(b"0\r\n\r\n")
            assert wire.reply()[2] == b"100000"
            assert b"".join(reader.parts) == b"a" * 40_000 + b"b" * 60_000
        # The connection is as before.
        wire.send(http(b'{"jsonrpc":"2.0","method":"sum","params":[1,2],"id":1}'))
        assert wire.reply()[2].endswith(b'"result":3}')


def check_clients_that_leave(port: int, reader: BodyReader, is_chunked: bool, end: str) -> None:
    """A body that a client does not finish ends so for its reader."""
    for leave in [Wire.reset, Wire.end]:
        reader.ends.clear()
        with Wire(port) as wire:
            wire.send(head(None if is_chunked else 100_000))
            wire.send(chunk(b"part") if is_chunked else b"part")
            assert eventually(lambda: b"part" in reader.parts)
            leave(wire)
            assert eventually(lambda: reader.ends == [end])
        reader.parts.clear()


def check_an_invalid_chunk(port: int, reader: BodyReader, end: str) -> None:
    with Wire(port) as wire:
        wire.send(head(None) + chunk(b"part"))
        assert eventually(lambda: reader.parts == [b"part"])
        wire.send(b"no size\r\n")
        assert wire.rest().startswith(b"HTTP/1.1 400 ")
        assert eventually(lambda: reader.ends == [end])


def send_until_it_waits(wire: Wire, data: bytes) -> int:
    """Sends until the other side has to read; returns the number of bytes."""
    wire.socket.settimeout(0.5)
    sent = 0
    with pytest.raises(TimeoutError):
        while sent < len(data):
            sent += wire.socket.send(data[sent : sent + (1 << 20)])
    # What the kernel holds, and no more than some pieces.
    assert sent < 32 << 20
    wire.socket.settimeout(60)
    return sent
