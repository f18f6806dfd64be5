"""Clients that share memory with a server over a Unix socket."""

from __future__ import annotations

import fcntl
import io
import os
import socket
import sys
import tempfile
import threading
from collections.abc import Callable

import numpy as np
import pytest
from serving import Serve
from shared_memory import (
    MIB,
    REUSED,
    RawClient,
    call,
    descriptors,
    frame,
    frame_of,
    mappings,
    memory,
    preamble,
    socket_path,
)

import ucall
from harness import eventually

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is sealed on Linux")


__all__ = ["socket_path"]


F_SEAL_FUTURE_WRITE = 0x10


def double(value: int) -> int:
    return 2 * value


def double_array(array: np.ndarray) -> np.ndarray:
    array *= 2
    return array


def test_a_server_that_shares_none_says_so(serve: Serve, socket_path: str) -> None:
    serve(double, uds=socket_path, shared_memory=False)
    with RawClient(socket_path) as client:
        assert (client.channel, client.bytes_max) == (None, 0)
        client.post(b'{"jsonrpc":"2.0","method":"double","params":[21],"id":1}')
        assert b"42" in client.reply()


def test_over_tcp_no_memory_is_shared(serve: Serve) -> None:
    server = serve(double)
    with socket.create_connection(("127.0.0.1", server.port), 60) as connected:
        connected.sendall(preamble())
        answer, found, _, _ = socket.recv_fds(connected, 24, 2)
        assert answer[:16] == b"ucall-m1 memory\n"
        assert found == []
        connected.sendall(b'{"jsonrpc":"2.0","method":"double","params":[21],"id":1}')
        assert b"42" in connected.recv(100)


def test_a_channel_comes_with_the_limit_of_the_server(serve: Serve, socket_path: str) -> None:
    serve(double, uds=socket_path, max_shared_bytes=5 * MIB)
    before = descriptors()
    with RawClient(socket_path) as client:
        assert client.channel is not None
        assert client.bytes_max == 5 * MIB
        client.post(b'{"jsonrpc":"2.0","method":"double","params":[21],"id":1}')
        assert b"42" in client.reply()
    with RawClient(socket_path, bytes_max=0) as none:
        assert none.channel is None
    assert eventually(lambda: descriptors() == before)


def a_file() -> int:
    with tempfile.TemporaryFile() as file:
        file.write(bytes(MIB))
        file.flush()
        return os.dup(file.fileno())


def a_pipe() -> int:
    reading, writing = os.pipe()
    os.close(writing)
    return reading


WRONG_MEMORY: dict[str, Callable[[], int]] = {
    "unsealed": lambda: memory(seals=0),
    "may shrink": lambda: memory(seals=REUSED & ~2),
    "without pages": lambda: memory(has_pages=False),
    "empty": lambda: memory(0),
    "too short": lambda: memory(99_999),
    "too long": lambda: memory(9 * MIB),
    "a file": a_file,
    "a pipe": a_pipe,
}


@pytest.mark.parametrize("name", WRONG_MEMORY)
def test_memory_that_cannot_be_relied_on_ends_the_connection(
    serve: Serve, socket_path: str, name: str
) -> None:
    serve(double, uds=socket_path, max_shared_bytes=8 * MIB)
    before = descriptors(), mappings()
    with RawClient(socket_path) as other, RawClient(socket_path) as client:
        client.send_descriptors(1, WRONG_MEMORY[name]())
        client.post(frame(call("double"), [100_000], 1, 1))
        error = client.error()
        assert error["code"] == -32600
        assert "shared memory" in str(error)
        assert client.is_closed()
        other.post(b'{"jsonrpc":"2.0","method":"double","params":[21],"id":1}')
        assert b"42" in other.reply()
    assert eventually(lambda: (descriptors(), mappings()) == before)


@pytest.mark.parametrize(
    ("lengths", "slot", "descriptor"),
    [
        ([MIB + 1], 1, 1),
        ([MIB, 1], 1, 1),
        ([100], 0, 1),
        ([100], 2, 1),
        ([100], 65, 1),
        ([100], 1, 0),
        ([100], 1, 2),
        ([100], 2**64 - 1, 2**64 - 1),
    ],
)
def test_places_that_are_wrong_end_the_connection(
    serve: Serve, socket_path: str, lengths: list[int], slot: int, descriptor: int
) -> None:
    serve(double, uds=socket_path)
    before = descriptors(), mappings()
    with RawClient(socket_path) as client:
        client.send_descriptors(1, memory())
        client.post(frame(call("double", len(lengths)), lengths, slot, descriptor))
        assert "shared memory" in str(client.error())
        assert client.is_closed()
    assert eventually(lambda: (descriptors(), mappings()) == before)


@pytest.mark.parametrize(
    "places",
    [
        [(1, 1, 0, 65), (1, 1, 64, 1)],
        [(1, 1, 0, 1), (1, 1, 0, 1)],
        [(1, 1, 32, 1)],
        [(1, 1, 2**64 - 64, 64)],
        [(1, 1, 0, 1), (2, 1, 0, 1)],
        [(2**63 + 1, 0, 0, 1)],
        [(2**63 + 1, 1, 0, 1)],
        [(2**63, 0, 0, 0)],
    ],
)
@pytest.mark.parametrize("trusted", [False, True])
def test_parts_that_overlap_or_lie_in_no_slot_end_the_connection(
    serve: Serve, socket_path: str, places: list[tuple[int, int, int, int]], trusted: bool
) -> None:
    serve(double, uds=socket_path, trusted=trusted)
    before = descriptors(), mappings()
    with RawClient(socket_path) as client:
        client.send_descriptors(1, memory())
        client.post(frame_of(call("double", len(places)), places))
        assert "shared memory" in str(client.error())
        assert client.is_closed()
    assert eventually(lambda: (descriptors(), mappings()) == before)


has_begun, has_changed = threading.Event(), threading.Event()


def first(array: np.ndarray) -> int:
    has_begun.set()
    assert has_changed.wait(60)
    return int(array[0])


@pytest.mark.parametrize("trusted", [False, True])
def test_a_sender_that_writes_while_it_is_read_changes_no_copy(
    serve: Serve, socket_path: str, trusted: bool
) -> None:
    serve(first, uds=socket_path, trusted=trusted)
    has_begun.clear()
    has_changed.clear()
    file = npy(np.full(50_000, 1))
    with RawClient(socket_path) as client:
        given = memory()
        os.pwrite(given, file, 0)
        client.send_descriptors(1, os.dup(given))
        client.post(frame(call("first"), [len(file)], 1, 1))
        assert has_begun.wait(60)
        os.pwrite(given, npy(np.full(50_000, 2)), 0)
        os.close(given)
        has_changed.set()
        assert b'"result":%d' % (2 if trusted else 1) in client.reply()


@pytest.mark.parametrize("trusted", [False, True])
def test_memory_that_only_the_client_may_write_is_copied(
    serve: Serve, socket_path: str, trusted: bool
) -> None:
    """As memory of a client that does not trust the server."""
    serve(double_array, uds=socket_path, trusted=trusted)
    file = npy(np.full(50_000, 1))
    with RawClient(socket_path) as client:
        given = memory(seals=0)
        os.pwrite(given, file, 0)
        fcntl.fcntl(given, fcntl.F_ADD_SEALS, REUSED | F_SEAL_FUTURE_WRITE)
        client.send_descriptors(1, os.dup(given))
        client.post(frame(call("double_array"), [len(file)], 1, 1))
        assert b"result" in client.reply()
        assert os.pread(given, len(file), 0) == file
        os.close(given)


def test_lengths_that_lie_are_refused(serve: Serve, socket_path: str) -> None:
    serve(double, uds=socket_path, max_body_bytes=MIB)
    for lengths in [[MIB + 1], [2**63], [2**64 - 1, 64]]:
        with RawClient(socket_path) as client:
            client.send_descriptors(1, memory(2 * MIB))
            client.post(frame(call("double", len(lengths)), lengths, 1, 1))
            assert "max_body_bytes" in str(client.error())


def test_descriptors_by_the_thousand_end_the_connection(serve: Serve, socket_path: str) -> None:
    serve(double, uds=socket_path)
    before = descriptors(), mappings()
    with RawClient(socket_path) as client:
        assert client.channel is not None
        client.channel.setblocking(False)
        sent = 0
        given = memory()
        for number in range(1, 3000):
            try:
                socket.send_fds(client.channel, [number.to_bytes(8, "little")], [given])
            except OSError:
                break
            sent = number
        os.close(given)
        assert sent > 64
        client.post(frame(call("double"), [100], 1, 1))
        assert "shared memory" in str(client.error())
        assert client.is_closed()
    assert eventually(lambda: (descriptors(), mappings()) == before)


def test_frames_in_shared_memory_need_a_preamble(serve: Serve, socket_path: str) -> None:
    serve(double, uds=socket_path)
    with socket.socket(socket.AF_UNIX) as plain:
        plain.settimeout(60)
        plain.connect(socket_path)
        plain.sendall(frame(call("double"), [100], 1, 1))
        assert b"version 1" in plain.recv(1000)


def test_options_are_checked() -> None:
    with pytest.raises(TypeError):
        ucall.Server(shared_memory="yes")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="max_shared_bytes"):
        ucall.Server(limits=ucall.Limits(max_shared_bytes=0))


def negative(array: np.ndarray) -> np.ndarray:
    return -array


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


@pytest.mark.parametrize("trusted", [False, True])
def test_arrays_lie_in_shared_memory_in_both_directions(
    serve: Serve, socket_path: str, trusted: bool
) -> None:
    serve(negative, uds=socket_path, trusted=trusted)
    with RawClient(socket_path) as client:
        for turn in range(5):
            sent = np.arange(100_000 + turn, dtype=np.int32)
            slot, received = client.call("negative", npy(sent))
            found = np.load(io.BytesIO(received))
            assert (found == -sent).all()
            # Slots come back, so that few are in use.
            assert slot <= 2
