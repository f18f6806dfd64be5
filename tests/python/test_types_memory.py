"""Memory of large and hostile params, each measured in a process of its own."""

from __future__ import annotations

import base64
import io
import json
import socket
import struct
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import forking
import numpy as np
import pytest

from harness import HOST, Wire, program

SERVER = """
import sys, numpy, PIL.Image, ucall
server = ucall.Server(
    port=0, limits=ucall.Limits(max_body_bytes=200 << 20, max_reply_bytes=200 << 20)
)
@server
def echo(data: bytes) -> bytes: return data
@server
def array(a: numpy.ndarray) -> int: return a.size
@server
def image(i: PIL.Image.Image) -> list[int]: return list(i.size)
server.on_startup(lambda: print(server.port))
server.run()
"""

CLIENT = """
import io, sys, warnings, numpy, PIL.Image
from pathlib import Path
from ucall.client import Client
def memory_kib(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field))
port, kind, path = sys.argv[1:]
client, file = Client(port=int(port)), Path(path).read_bytes()
good = io.BytesIO()
PIL.Image.new("RGB", (9, 9)).save(good, "PNG")
assert client.echo(numpy.arange(3)).numpy.sum() == 3 and client.echo(good.getvalue()).image.size
warnings.simplefilter("ignore")
before = memory_kib("VmRSS")
for _ in range(5):
    try:
        sys.exit(f"taken for {getattr(client.echo(file), kind)!r:.100}")
    except ValueError:
        pass
print(memory_kib("VmHWM") - before)
"""

MIB = 1 << 20


class Served:
    def __init__(self, pid: int, port: int) -> None:
        self.pid = pid
        self.port = port

    def memory_mib(self, field: str) -> float:
        status = Path(f"/proc/{self.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith(field))
        return int(line.split()[1]) / 1024


@pytest.fixture
def served() -> Iterator[Served]:
    if sys.platform != "linux":
        pytest.skip("needs /proc")
    with program(SERVER) as process:
        yield Served(process.pid, int(process.stdout.readline()))


@contextmanager
def growing_at_most(served: Served, mib: float) -> Iterator[None]:
    """The peak of the server's resident memory above its current value."""
    before = served.memory_mib("VmRSS")
    yield
    assert served.memory_mib("VmHWM") - before <= mib


def exchange(port: int, body: bytes) -> memoryview:
    """The body of the reply to an HTTP request, however large."""
    with socket.create_connection((HOST, port), timeout=60) as wire:
        wire.sendall(
            b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
        )
        wire.sendall(body)
        head = b""
        while b"\r\n\r\n" not in head:
            head += wire.recv(4096)
        head, _, start = head.partition(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        reply = bytearray(length)
        reply[: len(start)] = start
        view, count = memoryview(reply), len(start)
        while count < length:
            received = wire.recv_into(view[count:])
            assert received
            count += received
        return view


def call_of(method: str, text: bytes) -> bytes:
    return b'{"jsonrpc":"2.0","id":1,"method":"%s","params":["%s"]}' % (method.encode(), text)


def test_100_mib_take_at_most_four_times_that(served: Served) -> None:
    text = base64.b64encode(bytes(range(256)) * (100 * MIB // 256))
    body = call_of("echo", text)
    with growing_at_most(served, 400):
        reply = exchange(served.port, body)
    assert bytes(reply[:34]) == b'{"jsonrpc":"2.0","id":1,"result":"'
    assert reply[34:-2] == text


def test_an_array_of_64_mib_is_not_copied(served: Served) -> None:
    file = io.BytesIO()
    np.save(file, np.zeros(64 * MIB, np.uint8))
    body = call_of("array", base64.b64encode(file.getbuffer()))
    with growing_at_most(served, 64 * (1 + 4 / 3) + 20):
        reply = exchange(served.port, body)
    assert json.loads(bytes(reply))["result"] == 64 * MIB


def npy_that_claims(shape: str, descr: str = "'<f8'") -> bytes:
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}".ljust(117) + "\n"
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header.encode() + bytes(64)


def png(width: int, height: int) -> bytes:
    """An image with all its pixels, black, of this height in hundreds."""

    def chunk(name: bytes, data: bytes) -> bytes:
        checksum = struct.pack(">I", zlib.crc32(name + data))
        return struct.pack(">I", len(data)) + name + data + checksum

    # After a full flush no data refers to earlier data, so equal pieces are compressed once.
    deflate = zlib.compressobj(9, wbits=-15)
    row = bytes(1 + width * 3)
    hundred = deflate.compress(row * 100) + deflate.flush(zlib.Z_FULL_FLUSH)
    checksum = struct.pack(">I", len(row) * height % 65521 << 16 | 1)
    pixels = b"\x78\xda" + hundred * (height // 100) + b"\3\0" + checksum
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    data = chunk(b"IDAT", pixels)
    return b"\x89PNG\r\n\x1a\n" + head + data + chunk(b"IEND", b"")


HOSTILE = pytest.mark.parametrize(
    ("method", "file"),
    [
        ("array", npy_that_claims("(1099511627776,)")),
        ("array", npy_that_claims("(1024, 1073741824)")),
        ("array", npy_that_claims("(8,)", "'|O'")),
        ("array", b"\x80\x04\x95" + bytes(100)),
        ("image", png(9_000, 9_000)),
        ("image", png(20_000, 10_000)),
    ],
    ids=["8 TiB", "8 TiB in two", "objects", "pickle", "81 Mpx", "200 Mpx"],
)


@HOSTILE
def test_hostile_files_allocate_no_memory(served: Served, method: str, file: bytes) -> None:
    with Wire(served.port) as wire:
        wire.result("array", [[1]])
        body = call_of(method, base64.b64encode(file))
        with growing_at_most(served, 16):
            for _ in range(5):
                wire.send(body)
                assert json.loads(wire.line())["error"]["code"] == -32602
        assert wire.result("array", [[1, 2]]) == 2


@HOSTILE
def test_hostile_replies_allocate_no_memory_in_the_client(
    served: Served, tmp_path: Path, method: str, file: bytes
) -> None:
    path = tmp_path / "hostile"
    path.write_bytes(file)
    kind = {"array": "numpy", "image": "image"}[method]
    command = [sys.executable, "-c", CLIENT, str(served.port), kind, str(path)]
    done = forking.run(command, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) / 1024 <= 16
