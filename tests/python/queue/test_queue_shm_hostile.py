"""Peers that violate the rules of shared memory: they are refused, without leaks."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import os
import pickle
import socket
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from frames import (
    CLIENT_PREAMBLE,
    HEADER,
    PREAMBLE_BYTES,
    RELEASE,
    SHARED,
    TAKES_SHARED,
    TRUSTS,
    frame,
    hello,
    shared,
)
from pairs import Pairs
from resources import descriptors, shared_maps, wait_until

from ucall import queue as nq

WAIT_S = 60
# Large enough for a view in trusted mode.
LONG = 300_000
SIZE = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
ALL = SIZE | fcntl.F_SEAL_SEAL | fcntl.F_SEAL_WRITE
REUSED = SIZE | fcntl.F_SEAL_SEAL


pytestmark = pytest.mark.parametrize("pairs", ["shm"], indirect=True)


def memory(data: bytes = bytes(LONG), seals: int = ALL, flags: int = 0, size: int = 0) -> int:
    descriptor = os.memfd_create("hostile", os.MFD_ALLOW_SEALING | flags)
    os.ftruncate(descriptor, size or len(data))
    if not size:
        os.pwrite(descriptor, data, 0)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


def a_file() -> int:
    with tempfile.TemporaryFile() as file:
        file.write(bytes(LONG))
        file.flush()
        return os.dup(file.fileno())


def a_file_in_memory() -> int:
    with tempfile.TemporaryFile(dir="/dev/shm") as file:
        file.write(bytes(LONG))
        file.flush()
        return os.dup(file.fileno())


def a_pipe() -> int:
    reading, writing = os.pipe()
    os.close(writing)
    return reading


def huge_pages() -> int:
    try:
        descriptor = os.memfd_create("hostile", os.MFD_ALLOW_SEALING | os.MFD_HUGETLB)
    except OSError:
        pytest.skip("there are no huge pages here")
    os.ftruncate(descriptor, 2 << 20)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, ALL)
    return descriptor


class RawClient:
    """A client that sends arbitrary frames and descriptors."""

    def __init__(self, server: nq.Communicator, trusts: bool = False) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(WAIT_S)
        self.socket.connect(server.options.netloc.host)
        self.socket.sendall(CLIENT_PREAMBLE)
        _, (channel,), _, _ = socket.recv_fds(self.socket, PREAMBLE_BYTES, 2)
        self.channel = socket.socket(fileno=channel)
        flags = TAKES_SHARED | (TRUSTS if trusts else 0)
        self.socket.sendall(hello(os.urandom(16), flags))
        welcome = self.socket.recv(128, socket.MSG_WAITALL)
        assert welcome[0] == 2
        assert struct.unpack_from("<Q", welcome, 120)[0] & TAKES_SHARED

    def send_descriptors(self, number: int, *given: int) -> None:
        """Sends descriptors over the channel, and closes them here."""
        try:
            socket.send_fds(self.channel, [number.to_bytes(8, "little")], list(given))
        finally:
            for descriptor in given:
                os.close(descriptor)

    def wait_released(self, slots: int) -> None:
        while slots > 0:
            kind, *_, length = HEADER.unpack(self.socket.recv(HEADER.size, socket.MSG_WAITALL))
            slots -= kind == RELEASE
            self.socket.recv(length, socket.MSG_WAITALL)

    def wait_closed(self) -> None:
        with contextlib.suppress(ConnectionError):
            while self.socket.recv(4096):
                pass

    def close(self) -> None:
        self.socket.close()
        self.channel.close()


WHOLE = shared(1, 0, 1, LONG)
# The descriptors for the channel, each with its number, and the bytes for the stream.
Given = list[tuple[int, list[Callable[[], int]]]]
CASES: dict[str, tuple[Given, bytes]] = {
    "nothing given": ([], WHOLE),
    "a message without a descriptor": ([(1, [])], WHOLE),
    "two descriptors": ([(1, [memory, memory])], WHOLE),
    "many descriptors": ([(1, [memory] * 100)], WHOLE),
    "another number": ([(2, [memory])], WHOLE),
    "told another number": ([(1, [memory])], shared(1, 0, 2, LONG)),
    "told no number": ([(1, [memory])], shared(1, 0, 0, LONG)),
    "told a huge number": ([(1, [memory])], shared(1, 0, (1 << 64) - 1, LONG)),
    "not sealed": ([(1, [lambda: memory(seals=0)])], WHOLE),
    "may be written": ([(1, [lambda: memory(seals=REUSED)])], WHOLE),
    "may be unsealed": ([(1, [lambda: memory(seals=SIZE | fcntl.F_SEAL_WRITE)])], WHOLE),
    "may shrink": ([(1, [lambda: memory(seals=ALL & ~fcntl.F_SEAL_SHRINK)])], WHOLE),
    "may grow": ([(1, [lambda: memory(seals=ALL & ~fcntl.F_SEAL_GROW)])], WHOLE),
    "a file": ([(1, [a_file])], WHOLE),
    "a file in memory": ([(1, [a_file_in_memory])], WHOLE),
    "a pipe": ([(1, [a_pipe])], WHOLE),
    "a socket": ([(1, [lambda: socket.socket().detach()])], WHOLE),
    "a directory": ([(1, [lambda: os.open("/tmp", os.O_RDONLY)])], WHOLE),
    "a path": ([(1, [lambda: os.open("/tmp", os.O_PATH)])], WHOLE),
    "a device": ([(1, [lambda: os.open("/dev/zero", os.O_RDWR)])], WHOLE),
    "huge pages": ([(1, [huge_pages])], WHOLE),
    "holes": ([(1, [lambda: memory(size=1 << 30)])], shared(1, 0, 1, 1 << 30)),
    "empty": ([(1, [lambda: memory(b"")])], shared(1, 0, 1, 0)),
    "longer than the memory": ([(1, [memory])], shared(1, 0, 1, LONG + 1)),
    "segments beyond the memory": ([(1, [memory])], shared(1, 0, 1, LONG - 10, 10)),
    "lengths that wrap": ([(1, [memory])], shared(1, 0, 1, (1 << 64) - 64, 128)),
    "longer than allowed": ([(1, [memory])], shared(1, 0, 1, 1 << 40)),
    "no segments": ([(1, [memory])], shared(1, 0, 1)),
    "fewer lengths": ([(1, [memory])], frame(SHARED, 24, WHOLE[24:], 1, 2)),
    "a record too long": ([(1, [memory])], frame(SHARED, 1 << 40, b"", 1, 1)),
    "a slot that is not there": ([], shared(1, 1, 0, LONG)),
    "nothing to release": ([], frame(RELEASE, 0, sequence=1)),
    "a release of none": ([], frame(RELEASE, 0)),
    "a release with a body": ([], frame(RELEASE, 1, b"x", sequence=1)),
    "an end out of order": ([(1, [memory])], shared(7, 0, 1, LONG)),
}

TRUSTED_CASES: dict[str, tuple[Given, bytes]] = {
    "not sealed": ([(1, [lambda: memory(seals=0)])], shared(1, 1, 1, LONG)),
    "may shrink": ([(1, [lambda: memory(seals=fcntl.F_SEAL_GROW)])], shared(1, 1, 1, LONG)),
    "the second first": ([(1, [lambda: memory(seals=REUSED)])], shared(1, 2, 1, LONG)),
    "a huge slot": ([(1, [lambda: memory(seals=REUSED)])], shared(1, (1 << 64) - 1, 1, LONG)),
    "longer than the slot": ([(1, [lambda: memory(seals=REUSED)])], shared(1, 1, 1, LONG + 1)),
    "holes": ([(1, [lambda: memory(seals=REUSED, size=1 << 30)])], shared(1, 1, 1, LONG)),
    "a slot in use": (
        [(1, [lambda: memory(seals=REUSED)])],
        shared(1, 1, 1, LONG) + shared(2, 1, 0, LONG),
    ),
    "other memory for a slot in use": (
        [(1, [lambda: memory(seals=REUSED)]), (2, [lambda: memory(seals=REUSED)])],
        shared(1, 1, 1, LONG) + shared(2, 1, 2, LONG),
    ),
    "may be written, once": ([(1, [lambda: memory(seals=REUSED)])], WHOLE),
}


def slot(size: int = 2 * LONG) -> int:
    """A slot with all its pages."""
    descriptor = os.memfd_create("hostile", os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, size)
    os.posix_fallocate(descriptor, 0, size)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, REUSED)
    return descriptor


# Without trust all slots together have at most 16 MiB.
LONGEST = 16 << 20
UNTRUSTED_CASES: dict[str, tuple[Given, bytes]] = {
    "a slot too long": ([(1, [lambda: slot(LONGEST + 1)])], shared(1, 1, 1, LONG)),
    "slots too long together": (
        [(number, [lambda: slot(LONGEST // 2)]) for number in (1, 2, 3)],
        b"".join(shared(number, number, number, LONG) for number in (1, 2, 3)),
    ),
}


def refuse(pairs: Pairs, trusts: bool, given: Given, sent: bytes) -> None:
    # The connection is not closed for silence.
    server = pairs.server(trusted=trusts, keepalive_s=3000)
    client = pairs.client(server)
    client.put("before").result(WAIT_S)
    assert server.get(timeout=WAIT_S).data == "before"
    before = descriptors()
    raw_client = RawClient(server, trusts)
    for number, makers in given:
        raw_client.send_descriptors(number, *[make() for make in makers])
    raw_client.socket.sendall(sent)
    raw_client.wait_closed()
    raw_client.close()
    client.put("still here").result(WAIT_S)
    peers = set()
    while True:
        with contextlib.suppress(pickle.UnpicklingError):
            message = server.get(timeout=WAIT_S)
            peers.add(message.peer)
            if message.data == "still here":
                break
    assert peers == {client.id}
    wait_until(lambda: descriptors() <= before)
    wait_until(lambda: not shared_maps())
    server.close(0)


@pytest.mark.parametrize("case", CASES)
def test_invalid_shared_memory_is_refused(pairs: Pairs, case: str) -> None:
    refuse(pairs, False, *CASES[case])


@pytest.mark.parametrize("case", [*TRUSTED_CASES, *UNTRUSTED_CASES])
def test_copied_memory_is_validated(pairs: Pairs, case: str) -> None:
    refuse(pairs, False, *(TRUSTED_CASES | UNTRUSTED_CASES)[case])


@pytest.mark.parametrize("case", TRUSTED_CASES)
def test_memory_of_trusted_peers_is_validated(pairs: Pairs, case: str) -> None:
    refuse(pairs, True, *TRUSTED_CASES[case])


def test_unannounced_descriptors_are_closed(pairs: Pairs) -> None:
    server = pairs.server()
    before = descriptors()
    raw_client = RawClient(server)
    raw_client.channel.setblocking(False)
    with contextlib.suppress(BlockingIOError, OSError):
        for number in range(1, 10_000):
            raw_client.send_descriptors(number, memory(b"x"))
    raw_client.close()
    wait_until(lambda: descriptors() <= before)
    client = pairs.client(server)
    client.put(np.arange(LONG)).result(WAIT_S)
    assert (server.get(timeout=WAIT_S).data == np.arange(LONG)).all()


@pytest.mark.parametrize("trusts", [False, True], ids=["stranger", "trusted"])
def test_slots_that_are_as_long_as_they_may_be_are_taken(pairs: Pairs, trusts: bool) -> None:
    server = pairs.server(trusted=trusts)
    raw_client = RawClient(server, trusts)
    for number in (1, 2):
        raw_client.send_descriptors(number, slot(LONGEST // 2))
        raw_client.socket.sendall(shared(number, number, number, LONG))
        with pytest.raises(pickle.UnpicklingError):
            server.get(timeout=WAIT_S)
    raw_client.wait_released(2)
    # Memory that replaces the first counts in its place.
    raw_client.send_descriptors(3, slot(LONGEST // 2))
    raw_client.socket.sendall(shared(3, 1, 3, LONG))
    with pytest.raises(pickle.UnpicklingError):
        server.get(timeout=WAIT_S)
    raw_client.close()


def test_a_peer_that_takes_no_answers_gets_none_that_wait(pairs: Pairs) -> None:
    server = pairs.server()
    raw_client = RawClient(server)
    raw_client.send_descriptors(1, slot())
    raw_client.socket.sendall(shared(1, 1, 1, LONG))
    # Each, if accepted, would get a reply of half its length; and the socket buffers some.
    again = shared(1, 1, 0, LONG) * 1000
    with pytest.raises(ConnectionError):
        for _ in range(200):
            raw_client.socket.sendall(again)
    raw_client.close()


def test_a_peer_that_fills_all_mappings_keeps_nobody_from_sending(pairs: Pairs) -> None:
    server = pairs.server()
    client = pairs.client(server)
    client.put("before").result(WAIT_S)
    raw_client = RawClient(server)
    mapped = 0
    with pytest.raises(ConnectionError):
        for number in range(1, 20_000):
            raw_client.send_descriptors(number, memory(b"x"))
            raw_client.socket.sendall(shared(number, 0, number, 1))
            mapped = number
    assert mapped >= 16_384
    raw_client.close()
    array = np.arange(1 << 20)
    client.put(array).result(WAIT_S)
    while True:
        with contextlib.suppress(pickle.UnpicklingError):
            found = server.get(timeout=WAIT_S).data
            if isinstance(found, np.ndarray):
                break
    # It came through the socket.
    assert found.flags.writeable
    assert (found == array).all()


def array_in(data: bytearray | mmap.mmap, value: int) -> tuple[int, int]:
    """Writes an array in two segments, as `put` does; returns their lengths."""
    buffers: list[Any] = []
    array = np.full(LONG, value, np.uint8)
    stream = pickle.dumps(array, 5, buffer_callback=buffers.append)
    start = -(-len(stream) // 64) * 64
    data[: len(stream)] = stream
    data[start : start + LONG] = bytes(buffers[0].raw())
    return len(stream), LONG


def test_concurrently_modified_memory_stays_readable(pairs: Pairs) -> None:
    server = pairs.server(trusted=True)
    raw_client = RawClient(server, trusts=True)
    descriptor = os.memfd_create("hostile", os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, 2 * LONG)
    libc = ctypes.CDLL(None, use_errno=True)
    offset = ctypes.c_long
    assert libc.fallocate(descriptor, 0, offset(0), offset(2 * LONG)) == 0
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, REUSED)
    written = mmap.mmap(descriptor, 2 * LONG)
    lengths = array_in(written, 7)
    raw_client.send_descriptors(1, os.dup(descriptor))
    raw_client.socket.sendall(shared(1, 1, 1, *lengths))
    array = server.get(timeout=WAIT_S).data
    assert (array == 7).all()
    assert not array.flags.writeable
    with pytest.raises(ValueError, match="WRITEABLE"):
        array.flags.writeable = True
    with pytest.raises(TypeError):
        memoryview(array.base)[0] = 1
    # A trusted peer may change the memory, and the reader must not crash.
    written[:] = bytes([9]) * (2 * LONG)
    assert (array == 9).all()
    for length in (0, 4 * LONG):
        with pytest.raises(PermissionError):
            os.ftruncate(descriptor, length)
    keep_size, punch_hole = 1, 2
    libc.fallocate(descriptor, keep_size | punch_hole, offset(0), offset(2 * LONG))
    assert (array == 0).all()
    written.close()
    os.close(descriptor)
    raw_client.close()
    assert (array == 0).all()


def test_copies_never_change(pairs: Pairs) -> None:
    server = pairs.server()
    raw_client = RawClient(server)
    descriptor = os.memfd_create("hostile", os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, 2 * LONG)
    written = mmap.mmap(descriptor, 2 * LONG)
    held = []
    for value in (7, 8, 9):
        # The same slot, at once, before it has been returned.
        lengths = array_in(written, value)
        if value == 7:
            written[2 * LONG - 1] = 1
            os.posix_fallocate(descriptor, 0, 2 * LONG)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, REUSED)
            raw_client.send_descriptors(1, os.dup(descriptor))
        raw_client.socket.sendall(shared(value - 6, 1, int(value == 7), *lengths))
        held.append(server.get(timeout=WAIT_S).data)
        written[:] = bytes(2 * LONG)
    assert [set(array.tolist()) for array in held] == [{7}, {8}, {9}]
    held[0][:] = 1
    written.close()
    os.close(descriptor)
    raw_client.close()
    assert (held[0] == 1).all()
    assert (held[2] == 9).all()


def test_sealed_memory_never_changes(pairs: Pairs) -> None:
    server = pairs.server()
    raw_client = RawClient(server)
    data = bytearray(2 * LONG)
    lengths = array_in(data, 7)
    descriptor = memory(bytes(data))
    raw_client.send_descriptors(1, os.dup(descriptor))
    raw_client.socket.sendall(shared(1, 0, 1, *lengths))
    array = server.get(timeout=WAIT_S).data
    with pytest.raises(PermissionError):
        os.pwrite(descriptor, b"x", 0)
    with pytest.raises(PermissionError):
        mmap.mmap(descriptor, LONG)
    os.close(descriptor)
    raw_client.close()
    assert (array == 7).all()


SERVER_PREAMBLE = b"ucall-q1 memory\n"
SERVER_PREAMBLES: dict[str, tuple[bytes, Callable[[], list[int]]]] = {
    "another word": (b"x" * 16, list),
    "a short one": (SERVER_PREAMBLE[:15], list),
    "a long one": (SERVER_PREAMBLE + b"x" * 100, list),
    "two descriptors": (SERVER_PREAMBLE, lambda: [memory(), memory()]),
    "many descriptors": (SERVER_PREAMBLE, lambda: [memory() for _ in range(50)]),
    "no socket": (SERVER_PREAMBLE, lambda: [memory()]),
    "a stream": (SERVER_PREAMBLE, lambda: [socket.socket(socket.AF_UNIX).detach()]),
    "another family": (SERVER_PREAMBLE, lambda: [socket.socket(socket.AF_INET).detach()]),
    "nothing": (b"", list),
}


@pytest.mark.parametrize("case", SERVER_PREAMBLES)
def test_a_wrong_server_preamble_closes_the_connection(
    pairs: Pairs, tmp_path: Path, case: str
) -> None:
    told, make = SERVER_PREAMBLES[case]
    path = str(tmp_path / "hostile.sock")
    before = descriptors()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        given = {"netloc": nq.NetworkLocation(path, 0), "reconnect": (0.01, 0.02)}
        client = pairs._new("client", pairs.options(**given))
        future = client.put(np.arange(LONG))
        held = descriptors()
        for _ in range(3):
            client_side, _ = listener.accept()
            client_side.settimeout(WAIT_S)
            descriptors_given = make()
            if told:
                socket.send_fds(client_side, [told], descriptors_given)
            for descriptor in descriptors_given:
                os.close(descriptor)
            if not told:
                client_side.shutdown(socket.SHUT_WR)
            with contextlib.suppress(ConnectionError):
                while client_side.recv(4096):
                    pass
            client_side.close()
        # The client's next attempt may have begun.
        assert descriptors() <= held + 4
        os.unlink(path)
    server = pairs.server(netloc=nq.NetworkLocation(path, 0))
    assert (server.get(timeout=WAIT_S).data == np.arange(LONG)).all()
    future.result(WAIT_S)
    client.close()
    server.close()
    wait_until(lambda: descriptors() <= before)
