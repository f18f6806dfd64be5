"""The default loader: values of the listed types come back equal, and nothing else is made."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import ipaddress
import pathlib
import pickle
import resource
import struct
import uuid
import zoneinfo
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from ucall import queue as nq
from ucall.queue import PickleSerializer
from ucall.queue.utils import allow

MIB = 1 << 20
UTC = datetime.UTC
TURKU = zoneinfo.ZoneInfo("Europe/Helsinki")


def load(data: bytes, serializer: PickleSerializer | None = None) -> Any:
    return (serializer or PickleSerializer()).load(nq.Stream([data]))


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def named(module: str, name: str) -> bytes:
    return text(module) + text(name) + b"\x93"


def whole(*operations: bytes) -> bytes:
    return b"\x80\x05" + b"".join(operations) + b"."


def both_ways(value: Any) -> Iterator[Any]:
    """The value pickled by ucall and by CPython, with out-of-band and in-band buffers."""
    serializer = PickleSerializer()
    yield serializer.load(serializer.dump(value))
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(value, 5, buffer_callback=buffers.append)
    yield serializer.load(nq.Stream([data], [buffer.raw() for buffer in buffers]))
    yield load(pickle.dumps(value, 5))


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
        # Numbers are not memoised.
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
        with pytest.raises(pickle.UnpicklingError, match="points outside"):
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


# --- classes of the program


class Color(enum.Enum):
    RED = 1


class Flags(enum.Flag):
    A = enum.auto()
    B = enum.auto()


@dataclasses.dataclass
class Point:
    x: int
    client_side: list[Point]


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    x: Any


class Pair(tuple[Any, ...]):
    def __new__(cls, first: Any, second: Any) -> Pair:
        return super().__new__(cls, (first, second))

    def __getnewargs_ex__(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (self[0],), {"second": self[1]}


class Slotted:
    __slots__ = ("a", "b")


class Listed(list[Any]):
    pass


class Mapped(dict[str, Any]):
    pass


class Failure(ValueError):
    pass


class Once:
    """A class with one instance."""

    made: Once | None = None
    value = "first"

    def __new__(cls) -> Once:
        cls.made = cls.made or super().__new__(cls)
        return cls.made


OWN = (Color, Flags, Point, Frozen, Pair, Slotted, Listed, Mapped, Failure, Once)


@pytest.fixture
def allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allow, "_allowed", {})
    nq.allow(*OWN)


def slotted() -> Slotted:
    made = Slotted()
    made.a = 1
    return made


OWN_VALUES: list[Callable[[], Any]] = [
    lambda: Color.RED,
    lambda: Flags.A | Flags.B,
    lambda: Point(1, [Point(2, [])]),
    lambda: {Frozen(1): Frozen((2, 3))},
    lambda: Pair(1, [2]),
    lambda: Listed([1, 2]),
    lambda: Mapped(a=1),
]


@pytest.mark.parametrize("make", OWN_VALUES)
@pytest.mark.usefixtures("allowed")
def test_allowed_classes_come_back(make: Callable[[], Any]) -> None:
    for received in both_ways(make()):
        assert received == make()
        assert type(received) is type(make())


@pytest.mark.usefixtures("allowed")
def test_state_and_slots_come_back() -> None:
    for received in both_ways(slotted()):
        assert received.a == 1
        assert not hasattr(received, "b")
    error = Failure("text", 5)
    error.code = 7  # type: ignore[attr-defined]
    for received in both_ways(error):
        assert (type(received), received.args, received.code) == (Failure, ("text", 5), 7)
    point = Point(1, [])
    point.client_side.append(point)
    for received in both_ways(point):
        assert received.client_side[0] is received


def test_only_allowed_classes_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allow, "_allowed", {})
    for make in OWN_VALUES:
        with pytest.raises(pickle.UnpicklingError, match="is not allowed"):
            load(pickle.dumps(make(), 5))
    with pytest.raises(TypeError, match="takes classes"):
        nq.allow(slotted)  # type: ignore[type-var]

    @nq.allow
    class Decorated:
        pass

    assert Decorated.__name__ == "Decorated"


SERIALIZER = PickleSerializer(PickleSerializer.allow_by_name(f"{__name__}.Point"))
POINT = named(__name__, "Point")


@pytest.mark.parametrize(
    "hostile",
    [
        POINT + b"N}" + text("near") + b"K\x05s\x86b",
        POINT + b"}" + text("near") + b"K\x05sb",
        POINT + text("near") + b"K\x05s",
        POINT + b"K\x05a",
        POINT + b"\x94h\0}" + text("near") + b"K\x05sb",
    ],
    ids=["slots", "state", "item", "append", "from the memo"],
)
def test_a_class_is_never_changed(hostile: bytes) -> None:
    before = dict(vars(Point))
    with pytest.raises(pickle.UnpicklingError, match="may not change"):
        load(whole(hostile), SERIALIZER)
    assert dict(vars(Point)) == before


@pytest.mark.usefixtures("allowed")
def test_only_a_new_object_gets_state() -> None:
    state = b"}" + text("value") + text("second") + b"sb"
    Once()
    for make in (b")\x81", b")R"):
        with pytest.raises(pickle.UnpicklingError, match="may not change"):
            load(whole(named(__name__, "Once"), make, state))
    assert Once().value == "first"
    with pytest.raises(pickle.UnpicklingError, match="may not change"):
        load(whole(named(__name__, "Color"), b"K\x01\x85R", state))
    new = named(__name__, "Point") + b")\x81"
    assert load(whole(new, b"}", text("x"), b"K\x05sb")).x == 5
    for twice in (b"}" + text("x") + b"K\x05sb", text("x") + b"K\x06s", b"K\x06a"):
        with pytest.raises(pickle.UnpicklingError, match="may not change"):
            load(whole(new, b"}", text("x"), b"K\x05sb", twice))
    special = b"N}" + text("__class__") + named(__name__, "Listed") + b"s\x86b"
    with pytest.raises(pickle.UnpicklingError, match="state that is none"):
        load(whole(new, special))


# --- limits of a pickle


def allocated(data: bytes, error: str) -> None:
    """The pickle is refused for this reason, within the memory limit."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(pickle.UnpicklingError, match=error):
        load(data)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
    assert grown < 8 * MIB + 256 * len(data)


def nested(make: bytes, levels: int) -> bytes:
    return make * levels


EMPTY_UUID = named("uuid", "UUID") + b")\x81\x94"


def test_an_object_is_complete_before_it_is_used() -> None:
    number = b"}" + text("int") + b"K\x05sb"
    assert load(whole(EMPTY_UUID, number)) == uuid.UUID(int=5)
    for early in (b"h\0\x86", b"h\0", b"\x85", b"0K\x01"):
        with pytest.raises(pickle.UnpicklingError):
            load(whole(EMPTY_UUID, early))
    # A key that is a set, which an unfinished object fills later.
    with pytest.raises(pickle.UnpicklingError, match="before it is complete"):
        load(whole(b"}", EMPTY_UUID, b"}", text("int"), b"h\0sbK\x01s"))


def test_hashing_is_charged() -> None:
    doubled = (b"0h" + bytes([n]) + b"h" + bytes([n]) + b"\x86\x94" for n in range(60))
    shared = b")\x94" + b"".join(doubled)
    with pytest.raises(pickle.UnpicklingError, match="too many values"):
        load(whole(shared))
    for key in (b"}" + shared + b"K\x01s", b"\x8f(" + shared + b"\x90", b"(" + shared + b"\x91"):
        with pytest.raises(pickle.UnpicklingError, match="too long to hash"):
            load(whole(key))
    long_number = b"\x8b" + struct.pack("<I", 1 << 16) + b"\x7f" * (1 << 16) + b"\x94"
    keys = b"}(" + long_number + b"N" + b"h\0N" * 60_000 + b"u"
    with pytest.raises(pickle.UnpicklingError, match=r"too long to hash|of one hash"):
        load(whole(keys))


def test_repeats_of_memoised_objects_are_charged() -> None:
    data = b"B" + struct.pack("<I", 40_000) + bytes(40_000) + b"\x94"
    for name in ("bytearray", "frozenset", "set"):
        repeated = named("builtins", name) + b"\x940" + b"h\1h\0\x85R0" * 20_000
        allocated(whole(data, b"0", repeated, b"N"), "more memory|does not take")
    times = named("collections", "Counter") + b"\x940"
    many = b"}(" + b"".join(b"M" + struct.pack("<H", n) + b"N" for n in range(10_000)) + b"u\x94"
    allocated(whole(times, many, b"0", b"h\0h\1\x85R0" * 10_000, b"N"), "more memory|too long")


def test_a_set_for_each_byte_is_too_much() -> None:
    allocated(whole(b"](" + b"\x8f" * MIB + b"e"), "more memory")
    few = load(whole(b"](" + b"\x8f\x94" * 100_000 + b"e"))
    assert few == [set()] * 100_000


@pytest.mark.parametrize("limit", [10, 100])
def test_keys_of_one_hash_are_counted(limit: int) -> None:
    modulus = 2**61 - 1
    serializer = PickleSerializer(max_alike=limit)
    for collide in (
        lambda count: {modulus * n: n for n in range(1, count + 1)},
        lambda count: {modulus * n for n in range(1, count + 1)},
        lambda count: frozenset(modulus * n for n in range(1, count + 1)),
        lambda count: {(modulus * n, 1.5): n for n in range(1, count + 1)},
        lambda count: {decimal.Decimal(modulus * n): n for n in range(1, count + 1)},
        lambda count: {uuid.UUID(int=modulus * n): n for n in range(1, count + 1)},
        lambda count: collections.OrderedDict((modulus * n, n) for n in range(1, count + 1)),
    ):
        value = collide(limit)
        assert load(pickle.dumps(value, 5), serializer) == value
        with pytest.raises(pickle.UnpicklingError, match="max_alike"):
            load(pickle.dumps(collide(limit + 1), 5), serializer)
    two = [{modulus * n: n for n in range(1, limit + 1)} for _ in range(3)]
    assert load(pickle.dumps(two, 5), serializer) == two


def test_depth_is_limited() -> None:
    serializer = PickleSerializer(max_depth=50)
    for around in (lambda it: [it], lambda it: (it,), lambda it: {1: it}):
        value: Any = []
        for _ in range(50):
            value = around(value) if value != [] else [[]]
        data = pickle.dumps(value, 5)
        assert len(load(data, serializer)) == len(value)
        with pytest.raises(pickle.UnpicklingError, match="max_depth"):
            load(pickle.dumps([value], 5), serializer)
    allocated(whole(b")" + b"\x85" * 300_000), "max_depth")


def test_expansion_is_limited() -> None:
    data = pickle.dumps([{} for _ in range(50_000)], 5)
    assert len(load(data)) == 50_000
    assert len(load(data, PickleSerializer(max_expansion=60))) == 50_000
    with pytest.raises(pickle.UnpicklingError, match="max_expansion"):
        load(data, PickleSerializer(max_expansion=10))


def test_an_array_of_nothing_has_no_long_dimensions() -> None:
    for kind, shape in (("<U0", (1 << 40,)), ("<f8", (1 << 40, 0)), ("V0", (5,))):
        array = named("ucall.queue.utils.arrays", "array") + b"(C\0" + text(kind) + b"("
        dimensions = b"".join(b"\x8a\x08" + struct.pack("<q", count) for count in shape)
        allocated(whole(array, dimensions, b"t", text("C"), b"tR"), "refused")


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


def test_trust_is_plain_pickle() -> None:
    trusting = PickleSerializer(trust=True)
    assert trusting.load(trusting.dump(slotted)) is slotted
    array = trusting.load(trusting.dump({"array": np.arange(3)}))["array"]
    assert array.tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="leave out allow="):
        PickleSerializer(allow=lambda name: True, trust=True)


def test_callable_allow_finds_nested_names() -> None:
    serializer = PickleSerializer(allow=lambda name: name == f"{__name__}.Outer.Inner")
    assert type(load(pickle.dumps(Outer.Inner(), 5), serializer)) is Outer.Inner


class Outer:
    class Inner:
        pass


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
        data = pickle.dumps([str(number) for number in range(1_000_000)], 5)
        before = counted[0]
        load(data)
        assert counted[0] > before
    finally:
        stop.set()
        thread.join()


def test_the_attack_on_an_array_that_is_looked_at() -> None:
    """BUILD runs once, on the object just made, and never while the object is viewed."""
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
    changed = view + b"K\0K\x05s"
    with pytest.raises(pickle.UnpicklingError, match="may not change"):
        load(whole(dtype, array, state, b"0", changed))
