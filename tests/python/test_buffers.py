"""Buffers whose memory has addresses, or another order than its items, wherever they enter."""

from __future__ import annotations

import ctypes
import logging
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ucall
from harness import Wire
from ucall.client import Client

numpy = pytest.importorskip("numpy", reason="numpy is not installed")

RECORD = numpy.dtype([("id", "i4"), ("name", "O")])


class Pointers(ctypes.Structure):
    _fields_ = (("number", ctypes.c_int), ("text", ctypes.c_wchar_p))


class Numbers(ctypes.Structure):
    _fields_ = (("number", ctypes.c_int), ("Z", ctypes.c_double * 2))


ADDRESSES: list[Any] = [
    numpy.array(["Ada", None], dtype=object),
    numpy.zeros(1, RECORD),
    memoryview(numpy.array([None], dtype=object)),
    (ctypes.py_object * 2)("a", "b"),
    ctypes.c_char_p(b"abc"),
    ctypes.c_wchar_p("abc"),
    ctypes.pointer(ctypes.c_int(1)),
    (ctypes.CFUNCTYPE(None) * 1)(),
    (Pointers * 2)(),
]
NUMBERS: list[Any] = [
    numpy.arange(3, dtype="c8"),
    numpy.arange(3, dtype=">i2"),
    numpy.array(["é", "ab"]),
    numpy.zeros(2, [("O", "f4", 3), ("P", "?")]),
    numpy.zeros((0, 2)),
    (Numbers * 2)(),
    (ctypes.c_wchar * 2)("a", "b"),
]
#: The memory of each has another order than its items.
ORDERS: list[Any] = [
    numpy.arange(10)[::2],
    numpy.asfortranarray(numpy.arange(6).reshape(2, 3)),
    memoryview(b"abcdef")[::2],
]


@pytest.fixture
def store(tmp_path: Path) -> ucall.store.Store:
    pytest.importorskip("ucall.store", reason="built without it")
    return ucall.store.open(tmp_path / "kv")


def described(value: Any) -> str:
    return f"{type(value).__name__}-{memoryview(value).format}"


@pytest.mark.parametrize("value", ADDRESSES, ids=described)
def test_a_store_takes_no_addresses(store: ucall.store.Store, value: Any) -> None:
    expected = "value: expected bytes or an array of numbers, got .*: its memory has addresses"
    with pytest.raises(TypeError, match=expected):
        store.put("k", value)
    with pytest.raises(TypeError, match=expected):
        store.batch([("increment", "n"), ("cas", "k", 0, value)])
    assert list(store.scan()) == []


def test_a_store_takes_numbers_of_any_format(store: ucall.store.Store) -> None:
    for value in NUMBERS:
        store.put("k", value)
        found = store.get("k")
        assert found is not None and found.value == memoryview(value).tobytes()
    for value in ORDERS:
        with pytest.raises(TypeError, match="not contiguous in C order"):
            store.put("k", value)
    with pytest.raises(TypeError, match="value: expected bytes or an array of numbers"):
        store.put("k", numpy.zeros(1, "M8[s]"))


@pytest.mark.parametrize(
    "key", [3, numpy.int64(3), numpy.float64(3), numpy.arange(2), bytearray(b"a"), None], ids=repr
)
def test_the_keys_of_a_store_are_text_or_bytes(store: ucall.store.Store, key: Any) -> None:
    for use in (
        lambda: store.put(key, 1),
        lambda: store.get(key),
        lambda: store.delete(key),
        lambda: store.increment(key),
        lambda: store.batch([("put", key, 1)]),
        lambda: list(store.scan(prefix=key)),
    ):
        with pytest.raises(TypeError, match=r"key: expected str or bytes, got "):
            use()
    assert store.put(numpy.str_("a"), 1) and store.put(numpy.bytes_(b"b"), 1)


@pytest.mark.parametrize("value", ADDRESSES, ids=described)
def test_a_memoryview_of_addresses_is_neither_a_result_nor_a_param(
    serve: Callable[..., ucall.Server], caplog: pytest.LogCaptureFixture, value: Any
) -> None:
    def of_addresses() -> Any:
        return [memoryview(value)]

    caplog.set_level(logging.CRITICAL, "ucall")
    server = serve(of_addresses)
    with Wire(server.port) as wire:
        assert wire.error("of_addresses")["code"] == -32603
    expected = r"params\[0\]: expected bytes or an array of numbers, got memoryview: its memory"
    client = Client(f"127.0.0.1:{server.port}")
    with client, pytest.raises(ValueError, match=expected):
        client.of_addresses(memoryview(value))


def test_a_memoryview_is_written_in_the_order_of_its_items(
    connect_to: Callable[..., Wire],
) -> None:
    def in_order(index: int) -> Any:
        return [memoryview(ORDERS[index]), memoryview(ORDERS[index]).tobytes()]

    wire = connect_to(in_order)
    for index in range(len(ORDERS)):
        written, expected = wire.result("in_order", [index])
        assert written == expected


def test_a_queue_of_bytes_takes_no_addresses_and_no_number() -> None:
    nq = pytest.importorskip("ucall.queue", reason="built without it")
    dump = nq.BytesSerializer().dump
    for value in ADDRESSES:
        with pytest.raises(TypeError, match="its memory has addresses"):
            dump(value)
    for value in ORDERS:
        with pytest.raises(TypeError, match="not contiguous in C order"):
            dump(value)
    for value in (numpy.int64(5), numpy.array(5), ctypes.c_int(5)):
        with pytest.raises(TypeError, match="a single number"):
            dump(value)
    for value in NUMBERS:
        if memoryview(value).ndim:
            assert dump(value).read() == memoryview(value).tobytes()


def test_the_pieces_of_a_serializer_and_of_a_pickle_have_no_addresses() -> None:
    nq = pytest.importorskip("ucall.queue", reason="built without it")
    with pytest.raises(TypeError, match="its memory has addresses"):
        nq.PickleSerializer().dump(Addresses())
    options = nq.SerializationOptions(load=bytes, dump=list)
    for merge in (True, False):
        settings = nq.CommunicatorOptions(
            netloc=nq.NetworkLocation("127.0.0.1", 0),
            serialization=options,
            connection=nq.ConnectionOptions(put_merge=merge),
        )
        with nq.new(purpose="server", options=settings) as server:
            for pieces in ([ADDRESSES[0]], [b"a", ADDRESSES[0]]):
                with pytest.raises(TypeError, match="its memory has addresses"):
                    server.put(pieces)


class Addresses:
    def __reduce_ex__(self, protocol: Any) -> Any:
        return bytes, (pickle.PickleBuffer(ADDRESSES[0]),)


FORKS_DURING_AN_IMPORT = """
import os, pickle, signal, sys, threading, types
from ucall import _core

parent, imports, has_forked = os.getpid(), threading.Event(), threading.Event()

class Module(types.ModuleType):
    def __getattr__(self, name):
        if name != "PickleBuffer":
            raise AttributeError(name)
        if os.getpid() == parent:
            imports.set()
            has_forked.wait()
        return pickle.PickleBuffer

sys.modules["pickle"] = Module("pickle")
thread = threading.Thread(target=_core.bytes_view, args=(b"ab",))
thread.start()
imports.wait()
child = os.fork()
if child == 0:
    signal.alarm(30)
    os._exit(bytes(_core.bytes_view(b"ab")) != b"ab")
has_forked.set()
thread.join()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_child_that_is_forked_during_an_import_waits_for_nothing() -> None:
    """The thread that imports is missing in the child."""
    # From 3.12 on Python warns of a fork beside threads.
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKS_DURING_AN_IMPORT]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert (done.stdout, done.stderr) == ("0\n", "")
