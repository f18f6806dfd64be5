"""The default loader: values of the listed types come back equal, and nothing else is made."""

from __future__ import annotations

import collections
import datetime
import decimal
import fractions
import ipaddress
import pathlib
import pickle
import struct
import uuid
import zoneinfo
from typing import Any

import numpy as np
import pytest
from pickled import both_ways, load, named, text, whole

from ucall.queue import PickleSerializer

UTC = datetime.UTC
TURKU = zoneinfo.ZoneInfo("Europe/Helsinki")


VALUES = [
    None,
    True,
    *(sign * (1 << bits) + add for sign in (1, -1) for bits in range(0, 71, 7) for add in (0, -1)),
    0.1,
    float("inf"),
    1 + 2j,
    "",
    "aé€😀",
    "\ud800",
    "long" * 100,
    b"",
    b"bytes" * 100,
    bytearray(b"array"),
    (),
    (1,),
    (1, 2),
    (1, 2, 3),
    (1, 2, 3, 4),
    [],
    [1, [2, [3]]],
    list(range(2500)),
    {},
    {"a": {"b": {}}, 1: None, (1, "x"): 2.5},
    {number: str(number) for number in range(2500)},
    set(),
    {1, "a", (2, 3)},
    set(range(2500)),
    frozenset({1, frozenset({2})}),
    range(1, 10, 3),
    slice(1, None, 2),
    decimal.Decimal("-1.50"),
    fractions.Fraction(-7, 3),
    datetime.date(2024, 2, 29),
    datetime.datetime(2024, 12, 31, 23, 59, 59, 999_999),
    datetime.datetime(2024, 10, 27, 3, 30, fold=1, tzinfo=TURKU),
    datetime.datetime(1, 1, 1, tzinfo=UTC),
    datetime.time(23, 59, 59, 1, fold=1),
    datetime.time(1, tzinfo=UTC),
    datetime.timedelta(-1, 2, 3),
    datetime.timezone(datetime.timedelta(hours=-3, minutes=-30), "NST"),
    TURKU,
    uuid.UUID(int=5),
    uuid.UUID(int=2**100, is_safe=uuid.SafeUUID.safe),
    collections.OrderedDict(b=1, a=[2]),
    collections.deque([1, 2, 3], maxlen=2),
    collections.deque("ab"),
    collections.Counter("hello"),
    ipaddress.ip_address("192.0.2.1"),
    ipaddress.ip_address("fe80::1%eth0"),
    ipaddress.ip_network("192.0.2.0/24"),
    ipaddress.ip_interface("2001:db8::1/64"),
    pathlib.Path("/usr", "lib"),
    pathlib.PurePosixPath("a"),
    pathlib.PureWindowsPath("c:/x"),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_values_come_back(value: Any) -> None:
    for received in both_ways([value, (value, value)]):
        assert received == [value, (value, value)]
        assert type(received[0]) is type(value)
        # Numbers are written again each time.
        if not isinstance(value, int | float):
            assert received[0] is received[1][0] is received[1][1]


@pytest.mark.parametrize(
    "error",
    [
        ValueError("text", 1),
        KeyError("key"),
        FileNotFoundError(2, "no such file", "name"),
        ImportError("text", name="module", path="path"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid"),
        UnicodeEncodeError("ascii", "é", 0, 1, "invalid"),
        UnicodeTranslateError("é", 0, 1, "invalid"),
        StopIteration(5),
        DeprecationWarning("old"),
        ExceptionGroup("both", [ValueError(1), TypeError(2)]),
    ],
    ids=repr,
)
def test_exceptions_come_back(error: Exception) -> None:
    error.add_note("a note")
    error.seen = [1]  # type: ignore[attr-defined]
    for received in both_ways(error):
        assert type(received) is type(error)
        assert repr(received.args) == repr(error.args)
        assert (received.__notes__, received.seen) == (["a note"], [1])
        assert str(received) == str(error)


def test_an_error_of_text_points_into_its_text() -> None:
    decode = named("builtins", "UnicodeDecodeError") + b"(" + text("utf-8") + b"C\x01x"
    assert str(load(whole(decode, b"K\0K\x01", text("bad"), b"tR")))
    for positions in (b"J" + struct.pack("<i", -5) + b"K\x01", b"K\x01K\x02", b"K\0K\x02"):
        with pytest.raises(pickle.UnpicklingError, match="outside of its text"):
            load(whole(decode, positions, text("bad"), b"tR"))
    for name in ("start", "object", "args", "with_traceback", "__class__"):
        state = b"}" + text(name) + b"K\x05s"
        with pytest.raises(pickle.UnpicklingError, match="of an exception"):
            load(whole(decode, b"K\0K\x01", text("bad"), b"tR", state, b"b"))


ARRAYS = [
    np.arange(6.0).reshape(2, 3),
    np.arange(6.0).reshape(2, 3).T,
    np.arange(12.0).reshape(3, 4)[:, ::2],
    np.arange(24).reshape(2, 3, 4).transpose(2, 0, 1),
    np.array(5),
    np.zeros((0, 3)),
    np.arange(5, dtype=">i4"),
    np.array([True, False]),
    np.array([1 + 2j]),
    np.array(["a", "bcd"]),
    np.array([b"a", b"bcd"]),
    np.array(["2024-02-29"], "M8[D]"),
    np.array([5], "m8[25us]"),
    np.array([(1, 2.5)], dtype=[("a", "<i4"), ("b", "<f8")]),
    np.array([(1, (2, "x"))], dtype=[("a", "u1"), ("b", [("c", ">i2"), ("d", "U1")])]),
    np.arange(10, dtype="f2"),
]


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: f"{array.dtype}{array.shape}")
def test_arrays_come_back(array: np.ndarray[Any, Any]) -> None:
    for received in both_ways({"array": array, "again": [array]}):
        assert received["again"][0] is received["array"]
        assert received["array"].shape == array.shape
        assert received["array"].dtype.newbyteorder("=") == array.dtype.newbyteorder("=")
        assert received["array"].tolist() == array.tolist()


@pytest.mark.parametrize(
    "scalar",
    [
        np.float64(1.5),
        np.int8(-1),
        np.bool_(True),
        np.str_(""),
        np.str_("abc"),
        np.bytes_(b"x"),
        np.datetime64("2024-01-01T00", "us"),
        np.timedelta64(5, "D"),
        np.complex64(1j),
    ],
    ids=repr,
)
def test_scalars_come_back(scalar: Any) -> None:
    for received in both_ways(scalar):
        assert received == scalar
        assert type(received) is type(scalar)
        assert received.dtype == scalar.dtype


def test_containers_may_hold_themselves() -> None:
    inner: list[Any] = []
    inner.append(inner)
    for received in both_ways(inner):
        assert received[0] is received
    mapping: dict[str, Any] = {}
    mapping["self"] = (mapping, [mapping])
    for received in both_ways(mapping):
        assert received["self"][0] is received["self"][1][0] is received
    pair: tuple[Any, ...] = ([],)
    pair[0].append(pair)
    for received in both_ways(pair):
        assert received[0][0] is received
    queue: collections.deque[Any] = collections.deque()
    queue.append(queue)
    for received in both_ways(queue):
        assert received[0] is received


@pytest.mark.parametrize("code", sorted(set(b"12FIJLPSTUVcdgilopqr\x80\x82\x83\x84") - set(b"1J")))
def test_operations_of_other_protocols_are_refused(code: int) -> None:
    with pytest.raises(pickle.UnpicklingError, match=f"operation 0x{code:02x}"):
        load(whole(b"N" + bytes([code]) + b"\x01\n\x01\n\x01\n\x01"))
    for protocol in (0, 1, 2, 3, 4, 6):
        with pytest.raises(pickle.UnpicklingError, match="protocol"):
            load(bytes([0x80, protocol]) + b"N.")


def test_nothing_may_follow_or_be_left() -> None:
    assert load(whole(b"N")) is None
    for data in (whole(b"NN"), whole(b"N") + b"N", whole(b"(N"), whole(b"("), b"\x80\x05N"):
        with pytest.raises(pickle.UnpicklingError):
            load(data)


def test_persistent_ids_need_a_loader() -> None:
    shared = object()
    serializer = PickleSerializer(
        dump=lambda value: "shared" if value is shared else None,
        load=lambda name: {"shared": shared}[name],
    )
    received = serializer.load(serializer.dump([shared, {"x": shared}]))
    assert received[0] is received[1]["x"] is shared
    with pytest.raises(pickle.UnpicklingError, match="persistent id"):
        PickleSerializer().load(serializer.dump([shared]))


def test_other_threads_run_while_a_long_pickle_is_read() -> None:
    import threading

    counted = [0]
    stop = threading.Event()

    def count() -> None:
        while not stop.wait(0):
            counted[0] += 1

    thread = threading.Thread(target=count)
    thread.start()
    try:
        data = pickle.dumps([str(number) for number in range(300_000)], 5)
        before = counted[0]
        load(data)
        assert counted[0] > before
    finally:
        stop.set()
        thread.join()


def test_the_attack_on_an_array_that_is_looked_at() -> None:
    """BUILD runs once, on the object that was just made: never again while it is viewed."""
    dtype = named("numpy", "dtype") + text("u2") + b"\x89\x88\x87R"
    dtype += b"(K\x03" + text(">") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tb\x940"
    array = named("numpy._core.multiarray", "_reconstruct") + named("numpy", "ndarray")
    array += b"K\0\x85C\x01b\x87R\x94"
    state = b"(K\x01K\x08\x85h\0\x89C\x10" + bytes(16) + b"tb"
    view = named("numpy._core.numeric", "_frombuffer") + b"(h\1h\0K\x08\x85" + text("C") + b"tR"
    assert load(whole(dtype, array, state)).tolist() == [0] * 8
    for again in (b"h\1" + state, state, view + b"0" + b"h\1" + state):
        with pytest.raises(pickle.UnpicklingError):
            load(whole(dtype, array, state, again))
    with pytest.raises(pickle.UnpicklingError, match="no buffer"):
        load(whole(dtype, array, state, b"0", view))
    view = view.replace(b"h\1", b"C\x10" + bytes(16), 1)
    assert load(whole(dtype, view)).tolist() == [0] * 8
    changed = view + b"K\0K\x05s"
    with pytest.raises(pickle.UnpicklingError, match="may not change"):
        load(whole(dtype, array, state, b"0", changed))
