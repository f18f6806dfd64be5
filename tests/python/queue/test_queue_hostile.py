"""Bytes and pickles of strangers: refused, with nothing run and no memory taken."""

from __future__ import annotations

import os
import pickle
import resource
import socket
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pairs import Pairs

from ucall.queue.utils.stream import PickleSerializer, Stream

WAIT_S = 10


class Runs:
    """A pickle of it runs a command where it is loaded."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self._path}",)


class Calls:
    """A pickle of it calls something."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self._call = function, arguments

    def __reduce__(self) -> Any:
        return self._call


def load(data: bytes, serializer: PickleSerializer | None = None) -> Any:
    return (serializer or PickleSerializer()).load(Stream([data]))


def test_a_pickle_runs_nothing(pairs: Pairs, tmp_path: Path) -> None:
    server = pairs.server()
    client = pairs.client(server)
    ran = tmp_path / "ran"
    client.put(Runs(ran))
    client.put("next")
    with pytest.raises(pickle.UnpicklingError, match="system is not allowed"):
        server.get(timeout=WAIT_S)
    assert server.get(timeout=WAIT_S).data == "next"
    assert not ran.exists()


@pytest.mark.parametrize(
    "hostile",
    [
        Calls(bytearray, 10**12),
        Calls(set, range(10**12)),
        Calls(frozenset, range(10**12)),
        Calls(eval, "1"),
        Calls(getattr, "", "upper"),
        Calls(np.zeros, 10**12),
        Calls(np.ndarray, (10**12,)),
        Calls(np.dtype, "O"),
        Calls(np.dtype, [("a", "O")]),
        np.array([None, {}], dtype=object),
        Calls(np._core.numeric._frombuffer, b"12345678", np.dtype("O"), (1,), "C"),
        Calls(np._core.multiarray.scalar, np.dtype("f8"), b"123"),
        Calls(__import__, "os"),
        ValueError("x"),
    ],
    ids=repr,
)
def test_only_what_is_listed_is_loaded(hostile: Any) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(Exception) as caught:
        load(pickle.dumps(hostile, 5))
    assert isinstance(caught.value, pickle.UnpicklingError | TypeError | ValueError)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000


def test_an_array_has_as_many_bytes_as_its_shape_says() -> None:
    array = np.arange(6.0).reshape(2, 3)
    assert np.array_equal(load(pickle.dumps(array, 4)), array)
    kind, arguments, state = array.__reduce__()
    for shape in ((2, 3000), (0,)):

        class Lies:
            def __reduce__(self, shape: Any = shape) -> Any:
                return kind, arguments, (state[0], shape, *state[2:])

        with pytest.raises((pickle.UnpicklingError, ValueError)):
            load(pickle.dumps(Lies(), 4))


def test_more_is_allowed_by_name_and_some_things_never() -> None:
    from fractions import Fraction

    data = pickle.dumps(Fraction(1, 3))
    with pytest.raises(pickle.UnpicklingError):
        load(data)
    for name in ("fractions", "fractions.Fraction"):
        serializer = PickleSerializer(PickleSerializer.allow_by_name(name))
        assert load(data, serializer) == Fraction(1, 3)
    with pytest.raises(pickle.UnpicklingError):
        load(data, PickleSerializer(PickleSerializer.allow_by_name("fraction")))
    builtins = PickleSerializer(PickleSerializer.allow_by_name("builtins"))
    assert load(pickle.dumps(ValueError), builtins) is ValueError
    for never in (eval, exec, compile, open, getattr, setattr, delattr, __import__, globals, vars):
        with pytest.raises(pickle.UnpicklingError):
            load(pickle.dumps(never), builtins)
    with pytest.raises(pickle.UnpicklingError):
        load(pickle.dumps(Calls(bytearray, 10**12)), builtins)


streams = pytest.mark.parametrize("pairs", ["tcp", "unix"], indirect=True)


def frame(kind: int, length: int, body: bytes = b"", sequence: int = 0, segments: int = 0) -> bytes:
    return struct.pack("<BBH4sQQ", kind, 0, segments, b"uclQ", sequence, length) + body


def hello(id: bytes) -> bytes:
    numbers = struct.pack("<6Q", 0, 0, 1 << 20, 1, 1 << 20, 0)
    return frame(1, 104, b"ucall-q1" + id + b"\1" * 16 + bytes(16) + numbers)


@streams
@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        os.urandom(4096),
        frame(4, 1 << 60),
        frame(1, 1 << 60),
        hello(b"s" * 16),
        hello(b"c" * 16) + frame(4, 1 << 60, sequence=1, segments=1),
        hello(b"c" * 16) + frame(4, 10, b"x" * 10, sequence=5, segments=1),
        hello(b"c" * 16) + hello(b"c" * 16),
    ],
    ids=["http", "garbage", "early", "long hello", "own id", "huge", "number", "twice"],
)
def test_hostile_bytes_are_refused(pairs: Pairs, sent: bytes) -> None:
    import uuid

    server = pairs.server(id=uuid.UUID(bytes=b"s" * 16))
    client = pairs.client(server)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    kind = socket.AF_INET if server.address else socket.AF_UNIX
    with socket.socket(kind) as stranger:
        stranger.settimeout(WAIT_S)
        stranger.connect(server.address or server.options.netloc.host)
        stranger.sendall(sent)
        try:
            while stranger.recv(4096):
                pass
        except ConnectionError:
            pass
    client.put("still here").result(WAIT_S)
    assert server.get(timeout=WAIT_S).data == "still here"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000


@streams
def test_claimed_lengths_take_no_memory(pairs: Pairs) -> None:
    server = pairs.server()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    strangers = []
    for number in range(50):
        kind = socket.AF_INET if server.address else socket.AF_UNIX
        stranger = socket.socket(kind)
        stranger.connect(server.address or server.options.netloc.host)
        stranger.sendall(hello(bytes([number + 1]) * 16) + frame(4, 1 << 30, b"x" * 99, 1, 1))
        strangers.append(stranger)
    client = pairs.client(server)
    client.put("still here").result(WAIT_S)
    assert server.get(timeout=WAIT_S).data == "still here"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 30_000
    for stranger in strangers:
        stranger.close()
