"""A client that shares memory with a server, by hand: it may break every rule."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest

PREAMBLE_BYTES = 24
REUSED = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
MIB = 1 << 20


@pytest.fixture
def socket_path() -> Iterator[str]:
    """A path that is short enough for a socket."""
    with tempfile.TemporaryDirectory() as folder:
        yield str(Path(folder) / "s")


def preamble(bytes_max: int = 64 * MIB, name: bytes = b"ucall-m1 shared\n") -> bytes:
    return name + bytes_max.to_bytes(8, "little")


def memory(size: int = MIB, seals: int = REUSED, *, has_pages: bool = True) -> int:
    descriptor = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, size)
    if has_pages:
        os.posix_fallocate(descriptor, 0, size or 1)
        os.ftruncate(descriptor, size)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


def frame(text: bytes, lengths: list[int], slot: int, descriptor: int) -> bytes:
    """A frame whose parts are in a slot, one after another."""
    starts = [0]
    for length in lengths:
        starts.append((starts[-1] + length + 63) // 64 * 64 % 2**64)
    parts = zip(starts, lengths, strict=False)
    return frame_of(text, [(slot, descriptor, start, length) for start, length in parts])


def frame_of(text: bytes, places: list[tuple[int, int, int, int]]) -> bytes:
    """A frame whose parts are in these places: slot, descriptor, start and length of each."""
    head = struct.pack("<BBHI", 0xB1, 2, len(places), len(text))
    return head + b"".join(struct.pack("<4Q", *place) for place in places) + text


def call(method: str, parts: int = 1) -> bytes:
    params = [{"$part": part} for part in range(parts)]
    return json.dumps({"jsonrpc": "2.0", "method": method, "params": params, "id": 1}).encode()


class RawClient:
    """A connection to a Unix socket with a channel, if the server has made one."""

    def __init__(self, path: Path | str, bytes_max: int = 64 * MIB) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(60)
        self.socket.connect(str(path))
        self.socket.sendall(preamble(bytes_max))
        answer, descriptors, _, _ = socket.recv_fds(self.socket, PREAMBLE_BYTES, 2)
        assert len(answer) == PREAMBLE_BYTES, answer
        assert answer[:16] == b"ucall-m1 memory\n", answer
        #: The bytes of slots that the server takes.
        self.bytes_max = int.from_bytes(answer[16:], "little")
        self.channel = socket.socket(fileno=descriptors[0]) if descriptors else None
        self._sent = 0
        self._slots: dict[int, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()
        if self.channel is not None:
            self.channel.close()
        for descriptor in self._slots.values():
            os.close(descriptor)

    def send_descriptors(self, number: int, *given: int) -> None:
        """Sends descriptors over the channel, and closes them here."""
        assert self.channel is not None
        try:
            socket.send_fds(self.channel, [number.to_bytes(8, "little")], list(given))
        finally:
            for descriptor in given:
                os.close(descriptor)

    def post(self, body: bytes) -> None:
        head = f"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        self.socket.sendall(head.encode() + body)

    def reply(self) -> bytes:
        """The body of the next HTTP reply."""
        received = b""
        while b"\r\n\r\n" not in received:
            received += self.socket.recv(1)
        length = int(received.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        return self.socket.recv(length, socket.MSG_WAITALL) if length else b""

    def call(self, method: str, part: bytes) -> tuple[int, bytes]:
        """Calls with one part in a slot; returns the number of the reply's slot and its part."""
        assert self.channel is not None
        given = memory(MIB)
        os.pwrite(given, part, 0)
        self._sent += 1
        # A new slot each time: the numbers of the server's are what is looked at.
        self.send_descriptors(self._sent, given)
        self.post(frame(call(method), [len(part)], self._sent, self._sent))
        reply = self.reply()
        version, parts, _, slot, descriptor, start, length = struct.unpack_from("<xBHI4Q", reply)
        assert (version, parts, start) == (2, 1, 0), reply
        if descriptor:
            found: list[int] = []
            while not found:  # Messages without one return slots.
                found = socket.recv_fds(self.channel, 8, 1)[1]
            self._slots[slot] = found[0]
        return slot, self._take(slot, length)

    def _take(self, slot: int, length: int) -> bytes:
        """Reads a slot of the server, and returns it."""
        assert self.channel is not None
        data = os.pread(self._slots[slot], length, 0)
        self.channel.send(slot.to_bytes(8, "little"))
        return data

    def error(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.reply())["error"]
        return found

    def is_closed(self) -> bool:
        """Whether the server ends the connection; waits for that."""
        with contextlib.suppress(ConnectionError):
            while self.socket.recv(4096):
                pass
        return True


def descriptors() -> int:
    """The number of sockets and memories of this process, which has the server, too."""
    names = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
    kinds = []
    for name in names:
        with contextlib.suppress(FileNotFoundError):  # That of the list itself, or just closed.
            kinds.append(os.readlink(name))
    return sum(kind.startswith(("socket:", "/memfd:")) for kind in kinds)


def mappings() -> int:
    return Path("/proc/self/maps").read_text(encoding="utf-8").count("memfd:")
