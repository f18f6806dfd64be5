"""The load of `bench/streams.py`: streams that `floor/streams.c` reads, and subscribers."""

import socket
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from harness import processes
from harness.rows import OUTPUT

READER = OUTPUT / "floor-streams"
READ_BYTES = 1 << 18
WAIT_SECONDS_MAX = 60
KEY = "dGhlIHNhbXBsZSBub25jZQ=="
UPGRADE = (
    "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {KEY}\r\n\r\n"
).encode()


class StreamError(Exception):
    """A stream without its items."""


@dataclass(frozen=True)
class Wire:
    """The bytes of a request, and texts that occur once in each item and at a stream's end."""

    request: bytes
    item: str
    end: str
    is_websocket: bool = False


@dataclass(frozen=True)
class Reading:
    """What all streams together took, and what the reader measured meanwhile."""

    items: int
    seconds: float
    first_ms: list[float]
    cost: float


def read_streams(wire: Wire, port: int, count: int, cost: Callable[[], float]) -> Reading:
    """Reads `count` streams at once. `cost` is called before the requests and after the replies."""
    path = OUTPUT / "stream.request"
    path.write_bytes(wire.request)
    command = [str(READER), str(port), str(count), str(int(wire.is_websocket)), str(path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    _, core = processes.cores()
    pinned = ["taskset", "-c", str(core), *command, wire.item, wire.end]
    with subprocess.Popen(pinned, **pipes) as reader:
        if reader.stdout.readline() != "ready\n":
            raise StreamError("no connections")
        before = cost()
        output, _ = reader.communicate("go\n", timeout=WAIT_SECONDS_MAX)
        after = cost()
    if reader.returncode:
        raise StreamError(f"status {reader.returncode}")
    items, seconds, *first = output.split()
    return Reading(int(items), float(seconds), list(map(float, first)), after - before)


def masked(text: bytes) -> bytes:
    """A client's text frame, whose mask changes nothing."""
    length = len(text)
    head = bytes([0x80 | length]) if length < 126 else b"\xfe" + length.to_bytes(2, "big")
    return b"\x81" + head + bytes(4) + text


def connected(port: int, is_websocket: bool) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=WAIT_SECONDS_MAX)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if is_websocket:
        connection.sendall(UPGRADE)
        if b" 101 " not in connection.recv(READ_BYTES):
            raise StreamError("no upgrade")
    return connection


@contextmanager
def connections(port: int, count: int, is_websocket: bool) -> Iterator[list[socket.socket]]:
    with ExitStack() as opened:
        yield [opened.enter_context(connected(port, is_websocket)) for _ in range(count)]


def receive_from_all(sockets: Iterable[socket.socket], length: int) -> None:
    """Receives exactly `length` bytes on each connection."""
    for connection in sockets:
        left = length
        while left > 0:
            received = len(connection.recv(left))
            if not received:
                raise StreamError("a subscriber's connection closed")
            left -= received
