"""Bytes and pickles of unidentified peers: refused, without running code or taking memory."""

from __future__ import annotations

import contextlib
import os
import pickle
import pickletools
import random
import resource
import struct
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from frames import frame, hello
from pairs import Pairs
from raw_links import sent

from ucall import queue as nq
from ucall.queue.utils.stream import PickleSerializer, Stream

WAIT_S = 60


class Runs:
    """Its pickle runs a command when it is loaded."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self._path}",)


class Calls:
    """Its pickle calls a function."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self._call = function, arguments

    def __reduce__(self) -> Any:
        return self._call

    def __repr__(self) -> str:
        function, arguments = self._call
        return f"{function.__name__}{arguments}"


def load(data: bytes, serializer: PickleSerializer | None = None) -> Any:
    return (serializer or PickleSerializer()).load(Stream([data]))


def dump_hidden(value: Any) -> Stream:
    """A pickle in which `put` does not find the names, as a hostile sender writes it."""
    return Stream([pickletools.optimize(pickle.dumps(value, 5))])


def test_a_pickle_runs_nothing(pairs: Pairs, tmp_path: Path) -> None:
    server = pairs.server()
    client = pairs.client(server, serialization=nq.SerializationOptions(dump=dump_hidden))
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
        KeyboardInterrupt("x"),
        Calls(ValueError.with_traceback, ValueError("x"), None),
        ValueError,
    ],
    ids=repr,
)
def test_only_allowed_names_are_loaded(hostile: Any) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(pickle.UnpicklingError):
        load(pickle.dumps(hostile, 5))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000


def test_an_arrays_bytes_match_its_shape() -> None:
    array = np.arange(6.0).reshape(2, 3)
    kind, arguments, state = array.__reduce__()

    class Says:
        def __reduce__(self) -> Any:
            return kind, arguments, state

    assert np.array_equal(load(pickle.dumps(Says(), 5)), array)
    for shape in ((2, 3000), (0,)):

        class Lies:
            def __reduce__(self, shape: Any = shape) -> Any:
                return kind, arguments, (state[0], shape, *state[2:])

        with pytest.raises(pickle.UnpicklingError):
            load(pickle.dumps(Lies(), 5))


def test_names_can_be_allowed_except_forbidden_ones() -> None:
    from types import SimpleNamespace

    data = pickle.dumps(SimpleNamespace(a=1), 5)
    with pytest.raises(pickle.UnpicklingError):
        load(data)
    for name in ("types", "types.SimpleNamespace"):
        serializer = PickleSerializer(PickleSerializer.allow_by_name(name))
        assert load(data, serializer) == SimpleNamespace(a=1)
    with pytest.raises(pickle.UnpicklingError):
        load(data, PickleSerializer(PickleSerializer.allow_by_name("type")))
    builtins = PickleSerializer(PickleSerializer.allow_by_name("builtins"))
    assert load(pickle.dumps(ValueError, 5), builtins) is ValueError
    for never in (eval, exec, compile, open, getattr, setattr, delattr, __import__, globals, vars):
        with pytest.raises(pickle.UnpicklingError):
            load(pickle.dumps(never, 5), builtins)
    with pytest.raises(pickle.UnpicklingError):
        load(pickle.dumps(Calls(bytearray, 10**12), 5), builtins)


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def named(module: str, name: str) -> bytes:
    return text(module) + text(name) + b"\x93"


F8 = named("numpy", "dtype") + text("f8") + b"\x85R"
# The state of a dtype with one field, "f", at offset 64.
FAR_FIELD = b"(K\x03X\x01\0\0\0|N" + text("f") + b"\x85}" + text("f") + F8 + b"K\x40\x86s"


@pytest.mark.parametrize(
    "state",
    [
        FAR_FIELD + b"K\x01K\x01K\0t",
        b"(K\x03X\x01\0\0\0|" + F8 + b"J@B\x0f\0\x85\x86NNK\x01K\x01K\0t",
        b"(K\x03X\x01\0\0\0|NNNK\x40K\x01K\0t",
    ],
    ids=["a field outside", "a subarray", "more bytes"],
)
def test_a_dtype_never_reads_past_its_bytes(state: bytes) -> None:
    kind = named("numpy", "dtype") + text("V1") + b"\x85R" + state + b"b"
    scalar = named("numpy._core.multiarray", "scalar") + kind + b"C\x01a\x86R."
    with pytest.raises(pickle.UnpicklingError):
        load(b"\x80\x05" + scalar)


def test_a_later_dtype_change_changes_no_array() -> None:
    kind = named("numpy", "dtype") + text("S1") + b"\x85R\x94"
    array = named("numpy._core.numeric", "_frombuffer") + b"(C\x04abcdh\0K\x04\x85X\x01\0\0\0CtR"
    later = b"h\0(K\x03X\x01\0\0\0|NNNK\x40K\x01K\0tb0"
    with pytest.raises(pickle.UnpicklingError):
        load(b"\x80\x05" + kind + b"0" + array + later + b".")


@pytest.mark.parametrize(
    "kind",
    ["f8", ">i4", "?", "S5", "U3", "M8[25us]", "m8[D]", "c16", "V3"],
)
def test_arrays_of_every_kind_round_trip(kind: str) -> None:
    array = np.zeros((2, 3), dtype=kind)
    for sent_array in (array, array[:, ::2]):
        received = load(pickle.dumps(sent_array, 5))
        # NumPy itself converts numbers to this machine's byte order.
        assert received.dtype.newbyteorder("=") == array.dtype.newbyteorder("=")
        assert received.tolist() == sent_array.tolist()
    if array.dtype.kind != "V":
        received = load(pickle.dumps(array[0, 0], 5))
        assert (received, received.dtype) == (array[0, 0], array[0, 0].dtype)


def test_structured_arrays_round_trip() -> None:
    array = np.array([(1, 2.5), (3, 4.5)], dtype=[("a", "<i4"), ("b", "<f8")])
    received = load(pickle.dumps(array, 5))
    assert received.dtype == array.dtype
    assert received.tolist() == array.tolist()


@pytest.mark.parametrize(
    "names",
    [
        ("fractions.Fraction", "fractions", "Fraction.__new__.__builtins__.get"),
        ("fractions", "fractions", "sys"),
        ("queue", "queue", "deque"),
        ("fractions", "fractions", "operator"),
        ("builtins", "builtins", "eval.__call__"),
        ("io", "io", "open"),
        ("io.open", "io", "open"),
    ],
    ids=repr,
)
def test_names_resolve_to_nothing_else(names: tuple[str, str, str]) -> None:
    allowed, module, name = names
    serializer = PickleSerializer(PickleSerializer.allow_by_name(allowed))
    with pytest.raises(pickle.UnpicklingError, match="is not allowed"):
        load(b"\x80\x05" + named(module, name) + b".", serializer)


def test_constructors_cannot_be_changed() -> None:
    state = b"N}" + text("__defaults__") + b"Ns\x86"
    with pytest.raises(pickle.UnpicklingError):
        load(b"\x80\x05" + named("builtins", "set") + state + b"b.")
    assert load(b"\x80\x05" + named("builtins", "set") + b")R.") == set()


@pytest.mark.parametrize(
    "hostile",
    [
        b"})" + b"\x85" * 300_000 + b"K\x01s.",
        b"Nr" + struct.pack("<I", 1 << 31) + b".",
        b"\x8e" + struct.pack("<Q", 1 << 40) + b"x.",
        b"\x95" + struct.pack("<Q", 1 << 40) + b"N.",
        b")"
        + b"\x94h\0\x86"
        + b"".join(b"\x94h" + bytes([n]) + b"\x86" for n in range(1, 60))
        + b".",
        b"\x82\x01.",
        b"X\x02\0\0\0\xff\xff.",
        b"R.",
        b"",
    ],
    ids=["deep", "memo", "bytes", "frame", "shared", "extension", "text", "empty stack", "nothing"],
)
def test_claims_of_a_pickle_are_validated_first(hostile: bytes) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(pickle.UnpicklingError):
        load(b"\x80\x05" + hostile)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000


UNKNOWN_PEER = b"c" * 16


@pytest.mark.parametrize(
    "sent_bytes",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        random.Random(5).randbytes(4096),
        frame(4, 1 << 60),
        frame(1, 1 << 60),
        hello(b"s" * 16),
        hello(UNKNOWN_PEER) + frame(4, 1 << 60, sequence=1, segments=1),
        hello(UNKNOWN_PEER) + frame(4, 10, b"x" * 10, sequence=5, segments=1),
        hello(UNKNOWN_PEER) + frame(4, 1 << 20, struct.pack("<Q", 1 << 60), 1, 2),
        hello(UNKNOWN_PEER) + hello(UNKNOWN_PEER),
    ],
    ids=["http", "garbage", "early", "long hello", "own id", "huge", "number", "table", "twice"],
)
def test_hostile_bytes_are_refused(pairs: Pairs, sent_bytes: bytes) -> None:
    server = pairs.server(id=uuid.UUID(bytes=b"s" * 16))
    client = pairs.client(server)
    client.put("before").result(WAIT_S)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with sent(pairs, server, sent_bytes):
        client.put("still here").result(WAIT_S)
        assert [server.get(timeout=WAIT_S).data for _ in range(2)] == ["before", "still here"]
    # None of their messages has arrived.
    with pytest.raises(TimeoutError):
        server.get(timeout=0.05)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000


def test_claimed_lengths_allocate_no_memory(pairs: Pairs) -> None:
    server = pairs.server()
    client = pairs.client(server)
    client.put("before").result(WAIT_S)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with contextlib.ExitStack() as unidentified:
        for number in range(20):
            begun = hello(bytes([number + 1]) * 16) + frame(4, 1 << 30, b"x" * 99, 1, 1)
            unidentified.enter_context(sent(pairs, server, begun))
        client.put("still here").result(WAIT_S)
        assert [server.get(timeout=WAIT_S).data for _ in range(2)] == ["before", "still here"]
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000


def test_a_pickle_from_an_unidentified_peer_runs_nothing(pairs: Pairs, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    data = pickle.dumps(Runs(ran), 5)
    server = pairs.server()
    client = pairs.client(server)
    # A broker keeps no messages for a server that has not subscribed yet.
    client.put("before").result(WAIT_S)
    assert server.get(timeout=WAIT_S).data == "before"
    with sent(pairs, server, hello(UNKNOWN_PEER) + frame(4, len(data), data, 1, 1)):
        with pytest.raises(pickle.UnpicklingError, match="system is not allowed"):
            server.get(timeout=WAIT_S)
        client.put("still here").result(WAIT_S)
        assert server.get(timeout=WAIT_S).data == "still here"
    assert not ran.exists()
