"""Generated pickles: of any values, as two picklers write them, and mutated ones.

`UCALL_PICKLE_EXAMPLES=10000` looks further.
"""

from __future__ import annotations

import collections
import datetime
import importlib.util
import ipaddress
import math
import os
import pathlib
import pickle
import pickletools
import struct
import sys
import tracemalloc
import zoneinfo
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pickled import load, whole

from ucall import queue as nq
from ucall.queue import PickleSerializer

EXAMPLES = int(os.environ.get("UCALL_PICKLE_EXAMPLES", "60"))
MUTATIONS = 50 * EXAMPLES

specification = importlib.util.spec_from_file_location(
    "fuzz_pickles", Path(__file__).parents[3] / "fuzz/pickles.py"
)
assert specification and specification.loader
fuzz = importlib.util.module_from_spec(specification)
# Its classes are found by name.
sys.modules["fuzz_pickles"] = fuzz
specification.loader.exec_module(fuzz)
nq.allow(*fuzz.CLASSES)

many = settings(
    max_examples=EXAMPLES,
    deadline=None,
    database=None,
    derandomize="UCALL_PICKLE_EXAMPLES" not in os.environ,
    suppress_health_check=list(HealthCheck),
)

# --- values

zones = st.sampled_from(
    [
        datetime.UTC,
        datetime.timezone(datetime.timedelta(hours=-3, minutes=-30), "NST"),
        zoneinfo.ZoneInfo("Europe/Helsinki"),
    ]
)
texts = st.text(st.characters(exclude_categories=()), max_size=20)
numbers = st.one_of(
    st.integers(),
    st.integers(-(2**70), 2**70).map(lambda number: number * (2**61 - 1)),
    st.floats(),
    st.complex_numbers(),
    st.booleans(),
)
dtypes = st.sampled_from(
    ["?", "i1", "<i4", ">u2", "f2", "f8", "c16", "S3", "U2", "M8[us]", "m8[25s]", "V3", "i4,f8"]
)
hashable_leaves = st.one_of(
    st.none(),
    numbers,
    texts,
    st.binary(max_size=300),
    st.decimals(allow_nan=False),
    st.fractions(),
    st.dates(),
    st.times(timezones=st.none() | zones),
    st.datetimes(timezones=st.none() | zones),
    st.timedeltas(),
    zones,
    st.uuids(),
    st.ip_addresses(),
    st.sampled_from(
        [
            ipaddress.ip_network("192.0.2.0/24"),
            ipaddress.ip_interface("2001:db8::1/64"),
            pathlib.Path("/usr", "lib"),
            pathlib.PurePosixPath("."),
            pathlib.PureWindowsPath("c:/x"),
            range(1, 10, 3),
            fuzz.Color.RED,
            fuzz.Label("label"),
            np.float32(1.5),
            np.int64(-1),
            np.str_("text"),
            np.datetime64("2024-01-01", "us"),
        ]
    ),
)
hashables = st.recursive(
    hashable_leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4).map(tuple),
        st.frozensets(inner, max_size=4),
        st.builds(fuzz.Named, inner, inner),
    ),
    max_leaves=5,
)


@st.composite
def arrays(draw: Any) -> Any:
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    dtype = np.dtype(draw(dtypes))
    data = draw(st.binary(min_size=dtype.itemsize * math.prod(shape), max_size=1000))
    if dtype.kind in "Uf?":
        # Any bytes are no text, and there are many that are no number.
        data = bytes(len(data))
    flat = np.frombuffer(bytearray(data), dtype, math.prod(shape)) if math.prod(shape) else None
    array = np.zeros(shape, dtype) if flat is None else flat.reshape(shape)
    return draw(st.sampled_from([array, array.T, array[..., ::2] if shape else array]))


leaves = st.one_of(
    hashables,
    arrays(),
    st.binary(max_size=20).map(bytearray),
    st.builds(slice, st.none() | st.integers(), st.none() | texts),
    st.sets(hashables, max_size=4),
    st.dictionaries(hashables, st.none(), max_size=4).map(collections.OrderedDict),
    st.lists(hashables, max_size=5).map(collections.Counter),
)
CONTAINERS = ["list", "tuple", "dict", "ordered", "deque", "error", "group", "point", "slotted"]
CONTAINERS += ["listed", "mapped", "own"]


@st.composite
def graphs(draw: Any) -> Any:
    """A list of values that refer to each other, to the ones before and, later, to any."""
    nodes = draw(st.lists(leaves, min_size=1, max_size=4))
    some = st.lists(st.sampled_from(range(1000)), max_size=3)
    for _ in range(draw(st.integers(0, 8))):
        parts = [nodes[index % len(nodes)] for index in draw(some)]
        keys = draw(st.lists(hashables, min_size=len(parts), max_size=len(parts)))
        nodes.append(container(draw(st.sampled_from(CONTAINERS)), keys, parts))
    for index in draw(some):
        refer(nodes[index % len(nodes)], nodes[draw(st.integers(0, len(nodes) - 1))])
    return draw(st.permutations(nodes)) + nodes[-1:]


def container(kind: str, keys: list[Any], parts: list[Any]) -> Any:
    match kind:
        case "list":
            return list(parts)
        case "tuple":
            return tuple(parts)
        case "dict":
            return dict(zip(keys, parts, strict=True))
        case "ordered":
            return collections.OrderedDict(zip(keys, parts, strict=True))
        case "deque":
            return collections.deque(parts, maxlen=len(parts) + 1)
        case "error":
            error = KeyError(*parts)
            error.add_note("a note")
            return error
        case "group":
            return ExceptionGroup("group", [ValueError(part) for part in parts] or [TypeError()])
        case "point":
            return fuzz.Point(keys, parts)
        case "slotted":
            made = fuzz.Slotted()
            made.a = parts
            return made
        case "listed":
            return fuzz.Listed(parts)
        case "mapped":
            return fuzz.Mapped(zip(keys, parts, strict=True))
        case _:
            return fuzz.Own(*keys)


def refer(one: Any, other: Any) -> None:
    """Makes one value hold another, if it can."""
    if isinstance(one, list | collections.deque):
        one.append(other)
    elif type(one) in (dict, collections.OrderedDict, fuzz.Mapped):
        one["refers"] = other
    elif isinstance(one, KeyError):
        one.refers = other  # type: ignore[attr-defined]
    elif isinstance(one, fuzz.Point):
        one.neighbours = other


# --- equal, and shared in the same way


def parts_of(value: Any) -> list[Any]:
    """What a value holds, in an order that is the same for an equal one."""
    if isinstance(value, dict):
        return [part for pair in value.items() for part in pair]
    if isinstance(value, list | tuple | collections.deque):
        return list(value)
    if isinstance(value, BaseException):
        return [value.args, value.__dict__]
    if isinstance(value, fuzz.Slotted):
        return [value.a]
    return [vars(value)]


HOLDERS = (list, tuple, dict, collections.deque, BaseException, fuzz.Point, fuzz.Slotted, fuzz.Own)


def assert_same(ours: Any, expected: Any) -> None:
    """Both are equal, and what is one object in one of them is one in the other."""
    pairs: dict[int, int] = {}
    back: dict[int, int] = {}
    kept: list[Any] = []
    waiting = [(ours, expected)]
    while waiting:
        one, other = waiting.pop()
        assert type(one) is type(other)
        if isinstance(one, np.ndarray):
            assert (one.shape, one.dtype.newbyteorder("=")) == (
                other.shape,
                other.dtype.newbyteorder("="),
            )
            assert one.tolist().__repr__() == other.tolist().__repr__()
        elif isinstance(one, set | frozenset):
            assert sorted(map(repr, one)) == sorted(map(repr, other))
        elif not isinstance(one, HOLDERS):
            assert repr(one) == repr(other)
            continue
        if id(one) in pairs or id(other) in back:
            assert pairs.get(id(one)) == id(other) or one in ((), frozenset())
            continue
        pairs[id(one)], back[id(other)] = id(other), id(one)
        if isinstance(one, HOLDERS):
            first, second = parts_of(one), parts_of(other)
            assert len(first) == len(second)
            # Kept, so that no other gets its address.
            kept += [first, second]
            waiting += zip(first, second, strict=True)


@many
@given(graphs())
def test_any_values_come_back_as_pickle_reads_them(value: Any) -> None:
    data = pickle.dumps(value, 5)
    assert_same(load(data), pickle.loads(data))
    serializer = PickleSerializer()
    dumped = serializer.dump(value)
    data, buffers = dumped.toview().tobytes(), dumped.buffers
    assert_same(serializer.load(nq.Stream([data], buffers)), pickle.loads(data, buffers=buffers))


# --- operations

#: Written at protocol 5 only for what is longer than 4 GiB.
LONG = {b"\x8d": b"a", b"\x8e": b"a"}


def written() -> Iterator[bytes]:
    """Pickles that have every operation that the pickler writes."""
    for value in fuzz.values():
        yield pickle.dumps(value, 5)
    yield pickle.dumps([[number] for number in range(300)] * 2, 5)
    yield pickle.dumps({"long": 1 << 5000, "bytes": bytes(300), "text": "x" * 300}, 5)
    recursive: tuple[Any, ...] = ([], 1, 2, 3)
    recursive[0].append(recursive)
    yield pickle.dumps(recursive, 5)
    shared = object()
    named = PickleSerializer(dump=lambda value: "shared" if value is shared else None)
    yield named.dump([shared]).toview().tobytes()
    views = [np.zeros(4), np.broadcast_to(np.float64(1), (1,))]
    yield pickle.dumps(views, 5, buffer_callback=lambda _: None)


class Keyed:
    """Pickled with keyword arguments."""

    def __new__(cls, *, x: Any = None) -> Keyed:
        made = super().__new__(cls)
        made.x = x
        return made

    def __getnewargs_ex__(self) -> Any:
        return (), {"x": self.x}


def test_every_operation_that_the_pickler_writes_is_read_and_no_other() -> None:
    nq.allow(Keyed)
    serializer = PickleSerializer(load=lambda name: name)
    emitted = set(LONG)
    for data in (*written(), pickle.dumps(Keyed(x=1), 5)):
        serializer.load(nq.Stream([data], [bytes(32), bytes(8)]))
        emitted |= {
            operation.code.encode("latin-1") for operation, _, _ in pickletools.genops(data)
        }
    for code, text in LONG.items():
        loaded = load(whole(code + struct.pack("<Q", len(text)) + text))
        assert loaded in (text, text.decode())
    assert len(emitted) == 47
    for operation in pickletools.opcodes:
        code = operation.code.encode("latin-1")
        if code in emitted - {b"\x80"}:
            continue
        with pytest.raises(pickle.UnpicklingError, match=f"operation 0x{code[0]:02x}"):
            load(whole(b"N" + code + b"\x01\n\x01\n\x01\n\x01\n"))
    for number in set(range(256)) - {ord(it.code) for it in pickletools.opcodes}:
        with pytest.raises(pickle.UnpicklingError, match=f"operation 0x{number:02x}"):
            load(whole(b"N", bytes([number]), b"."))


# --- mutated pickles


def test_mutated_pickles_are_refused_or_read_within_their_bounds() -> None:
    mutations, reading = fuzz.Mutations(5), fuzz.Reading()
    tracemalloc.start()
    try:
        for _ in range(MUTATIONS):
            data = mutations.next()
            try:
                reading.run(data)
            except BaseException:
                print(f"the input was {data!r}")
                raise
    finally:
        tracemalloc.stop()
    # Both are seen.
    assert reading.loaded > MUTATIONS // 50
    assert reading.refused > MUTATIONS // 50


@many
@given(graphs(), st.data())
def test_mutations_of_any_values_are_refused_or_read(value: Any, data: Any) -> None:
    operations = fuzz.operations_of(pickle.dumps(value, 5))
    for _ in range(4):
        start = data.draw(st.integers(0, len(operations) - 1))
        end = start + data.draw(st.integers(0, 5))
        other = data.draw(st.integers(0, len(operations) - 1))
        operations[start:end] = operations[other : other + data.draw(st.integers(0, 5))] or [b"N"]
        try:
            load(b"\x80\x05" + b"".join(operations))
        except pickle.UnpicklingError as refused:
            assert str(refused).startswith("refused: ")
