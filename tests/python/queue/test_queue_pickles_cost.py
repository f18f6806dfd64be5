"""What a pickle may cost: memory, hashing, nesting and values are charged before they are made."""

from __future__ import annotations

import collections
import decimal
import gc
import pickle
import struct
import tracemalloc
import uuid
from typing import Any

import pytest
from pickled import MIB, load, named, peak_bytes, peak_bytes_max, text, whole

from ucall import queue as nq
from ucall.queue import PickleSerializer


def allocated(data: bytes, error: str) -> None:
    """A pickle that is refused for this, and takes at most what it may."""
    with peak_bytes() as peak:
        with pytest.raises(pickle.UnpicklingError, match=error):
            load(data)
        assert peak() < peak_bytes_max(data)


def nested(make: bytes, levels: int) -> bytes:
    return make * levels


EMPTY_UUID = named("uuid", "UUID") + b")\x81\x94"


def test_an_object_is_complete_before_it_is_used() -> None:
    number = b"}" + text("int") + b"K\x05sb"
    assert load(whole(EMPTY_UUID, number)) == uuid.UUID(int=5)
    for early in (b"h\0\x86", b"h\0", b"\x85", b"0K\x01"):
        with pytest.raises(pickle.UnpicklingError):
            load(whole(EMPTY_UUID, early))
    # A key that is a set, which is filled later, by way of an unfinished object.
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


def test_repeats_of_what_is_remembered_take_no_memory() -> None:
    data = b"B" + struct.pack("<I", 40_000) + bytes(40_000) + b"\x94"
    for name in ("bytearray", "frozenset", "set"):
        repeated = named("builtins", name) + b"\x940" + b"h\1h\0\x85R0" * 20_000
        allocated(whole(data, b"0", repeated, b"N"), "more memory|not those that CPython writes")
    times = named("collections", "Counter") + b"\x940"
    many = b"}(" + b"".join(b"M" + struct.pack("<H", n) + b"N" for n in range(10_000)) + b"u\x94"
    allocated(whole(times, many, b"0", b"h\0h\1\x85R0" * 10_000, b"N"), "more memory|too long")


def test_a_set_for_each_byte_is_too_much() -> None:
    allocated(whole(b"](" + b"\x8f" * (MIB // 4) + b"e"), "more memory")
    few = load(whole(b"](" + b"\x8f\x94" * 100_000 + b"e"))
    assert few == [set()] * 100_000


@pytest.mark.parametrize("limit", [10, 100])
def test_keys_of_one_hash_are_counted(limit: int) -> None:
    modulus = 2**61 - 1
    serializer = PickleSerializer(max_collisions=limit)
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
        with pytest.raises(pickle.UnpicklingError, match="max_collisions"):
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
    pytest.importorskip("numpy")  # Its first import takes more than a pickle may.
    for kind, shape in (("<U0", (1 << 40,)), ("<f8", (1 << 40, 0)), ("V0", (5,))):
        array = named("ucall.queue.utils.arrays", "array") + b"(C\0" + text(kind) + b"("
        dimensions = b"".join(b"\x8a\x08" + struct.pack("<q", count) for count in shape)
        allocated(whole(array, dimensions, b"t", text("C"), b"tR"), "refused")


def recalled(place: int) -> bytes:
    return b"h" + bytes([place]) if place < 256 else b"j" + struct.pack("<I", place)


def levels_of(value: Any) -> int:
    """Levels along the last items."""
    levels = 0
    while value:
        value = value[-1]
        levels += 1
    return levels


WRAPPED = b"\x85" * 900


def test_levels_do_not_hide_in_what_is_dropped() -> None:
    """A tuple refers to lists that are filled after it was made, and dropped without it."""
    operations, value = b"", b"N"
    for place in range(0, 60, 3):
        filled = recalled(place) + recalled(place + 1) + b"\x86\x940" + value + WRAPPED + b"a00"
        operations += b"]\x94]\x94" + filled
        value = recalled(place + 2)
    with pytest.raises(pickle.UnpicklingError, match="max_depth"):
        load(whole(operations, value))
    operations, value = b"", b"N"
    for place in range(0, 40, 2):
        around = recalled(place) + WRAPPED[:500] + b"\x940"
        operations += b"]\x94" + around + value + b"a0"
        value = recalled(place + 1)
    with pytest.raises(pickle.UnpicklingError, match="max_depth"):
        load(whole(operations, value))


def test_levels_do_not_hide_in_what_lies_side_by_side() -> None:
    """Each list holds the one beside it, and none is consumed before all are there."""

    def beside(count: int) -> bytes:
        lists = (b"]\x94" + recalled(place) + b"a" for place in range(count))
        return whole(b"](]\x94", *lists, b"e")

    assert levels_of(load(beside(100))) == 101
    with pytest.raises(pickle.UnpicklingError, match="max_depth"):
        load(beside(129))


@pytest.mark.parametrize(
    ("first", "doubled"),
    [
        (b")\x94", b"%s%s\x86\x94"),
        (b"]\x94", b"](%s%se\x94"),
        (b"]\x94", b"]\x94(%s%se"),
        (b"}\x94", b"}\x94K\x01%ssK\x02%ss"),
        (
            named("builtins", "ValueError") + b")R\x94",
            named("builtins", "KeyError") + b"%s%s\x86R\x94",
        ),
    ],
    ids=["tuples", "lists", "lists side by side", "dicts side by side", "exceptions"],
)
def test_values_are_counted_as_often_as_they_are_reached(first: bytes, doubled: bytes) -> None:
    again = [doubled % (recalled(place), recalled(place)) for place in range(40)]
    load(whole(b"(", first, *again[:15], b"t"))
    with pytest.raises(pickle.UnpicklingError, match="too many values"):
        load(whole(b"(", first, *again, b"t"))


def test_sets_of_sets_are_charged_for_comparing_them() -> None:
    """Members of one hash in sets of one hash are each compared with each other's."""
    numbers = [(2**61 - 1) * number for number in range(1, 60)]
    sets = [frozenset(numbers[:39] + numbers[at : at + 1]) for at in range(39, 50)]
    outer = [frozenset([*sets[:-2], last]) for last in sets[-2:]]
    assert len({*map(hash, sets)}) == len({*map(hash, outer)}) == 1
    assert load(pickle.dumps(dict.fromkeys(sets[:3], 1), 5)).keys() == {*sets[:3]}
    with pytest.raises(pickle.UnpicklingError, match="too long to hash"):
        load(pickle.dumps(dict.fromkeys(outer, 1), 5))


def long(number: int) -> bytes:
    data = number.to_bytes(number.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8b" + struct.pack("<I", len(data)) + data


def test_nothing_is_divided_that_is_long() -> None:
    for name, module in (("range", "builtins"), ("Fraction", "fractions")):
        start = b"" if name == "Fraction" else b"K\0"
        for bits, is_loaded in ((16_000, True), (16_400, False), (1 << 22, False)):
            parts = start + long(1 << bits) + long(3 << (bits // 2))
            data = whole(named(module, name), b"(", parts, b"tR")
            if is_loaded:
                assert type(load(data)).__name__ == name
            else:
                with pytest.raises(pickle.UnpicklingError, match="not those that CPython writes"):
                    load(data)


def test_long_integers_are_not_compared_with_decimals() -> None:
    """CPython converts them for it, in quadratic time."""
    modulus = 2**61 - 1
    value = {decimal.Decimal(modulus): 1, modulus << 100_000: 2}
    with pytest.raises(pickle.UnpicklingError, match="keys of one hash"):
        load(pickle.dumps(value, 5))
    for fine in ({decimal.Decimal(5): 1, 3 << 100_000: 2}, {modulus: 1, modulus << 100_000: 2}):
        assert load(pickle.dumps(fine, 5)) == fine


def dtype_of(state: bytes, name: str = "V8") -> bytes:
    return named("numpy", "dtype") + text(name) + b"\x89\x88\x87R" + state + b"b"


def test_fields_that_lie_over_each_other_are_charged() -> None:
    """A dtype of a few bytes may have any number of fields: 40 of 40 of 40, all at its start."""
    kind = dtype_of(b"(K\x03" + text("<") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0t", "u8")
    names = b"(" + b"".join(text(f"f{number}") for number in range(40)) + b"t\x94"
    operations, place = names + b"0" + kind + b"\x940", 1
    for _ in range(4):
        fields = b"".join(text(f"f{number}") + recalled(place) + b"K\0\x86" for number in range(40))
        state = b"(K\x03" + text("|") + b"Nh\0}(" + fields + b"uK\x08K\x01K\0t"
        operations += dtype_of(state) + b"\x940"
        place += 1
    multiarray = "numpy._core.multiarray"
    scalar = named(multiarray, "scalar") + recalled(place) + b"C\x08" + bytes(8) + b"\x86R"
    array = named(multiarray, "_reconstruct") + named("numpy", "ndarray") + b"K\0\x85C\x01b\x87R"
    array += b"(K\x01K\x01\x85" + recalled(place) + b"\x89C\x08" + bytes(8) + b"tb"
    for made in (scalar, array, b"}" + scalar + b"Ns"):
        allocated(whole(operations, made), "more memory|too long to hash")


def test_fields_are_charged_each_time() -> None:
    """A dtype of many fields, again and again by a few bytes that recall its state."""
    kind = dtype_of(b"(K\x03" + text("<") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0t", "u1")
    names = b"(" + b"".join(text(f"f{number}") for number in range(1000)) + b"t\x94"
    fields = b"".join(
        text(f"f{number}") + b"h\1M" + struct.pack("<H", number) + b"\x86" for number in range(1000)
    )
    state = b"(K\x03" + text("|") + b"Nh\0}(" + fields + b"uM\xe8\x03K\x01K\0t\x94"
    again = named("numpy", "dtype") + b"\x940" + text("V1000") + b"\x89\x88\x87\x940"
    again += b"h\3h\4Rh\2b0" * 10_000
    allocated(whole(kind, b"\x940", names, b"0", state, b"0", again, b"N"), "more memory")


def test_an_array_of_no_items_has_no_long_items() -> None:
    """NumPy allocates one item even for an array of none."""
    kind = named("numpy", "dtype") + text("S2000000000") + b"\x85R"
    array = named("numpy._core.multiarray", "_reconstruct") + named("numpy", "ndarray")
    array += b"K\0\x85C\x01b\x87R(K\x01K\0\x85" + kind + b"\x89C\0tb"
    allocated(whole(array), "more memory")


def test_a_path_of_many_parts_is_charged_each_time() -> None:
    path = named("pathlib", "PurePosixPath") + b"\x940" + text("a/" * 100_000) + b"\x940"
    allocated(whole(path, b"](", b"h\0h\1\x85R" * 2000, b"e"), "more memory")
    loaded = load(whole(path, b"](", b"h\0h\1\x85R" * 5, b"e"))
    assert [len(one.parts) for one in loaded] == [100_000] * 5


def test_slices_hold_no_slices() -> None:
    """CPython frees slices in slices by recursion."""
    for item in (named("builtins", "slice") + b"NNN\x87R", b"]", b"}"):
        with pytest.raises(pickle.UnpicklingError, match="not those that CPython writes"):
            load(whole(named("builtins", "slice"), b"NN", item, b"\x87R"))


def test_the_limits_have_limits() -> None:
    for depth in (1, 10_000):
        PickleSerializer(max_depth=depth)
    for refused in ({"max_depth": 0}, {"max_depth": 10_001}, {"max_collisions": 0}):
        with pytest.raises(ValueError, match="must be"):
            PickleSerializer(**refused)
    deep = whole(b"}", b")" + b"\x85" * 9999, b"Ns")
    assert len(load(deep, PickleSerializer(max_depth=10_000))) == 1


def blocks_kept(make: Any, count: int = 1000) -> int:
    """Bytes that stay allocated for each of so many loads, after some to begin with."""
    for number in range(50):
        load(make(number))
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(count):
            load(make(1000 + number))
        gc.collect()
        return (tracemalloc.get_traced_memory()[0] - before) // count
    finally:
        tracemalloc.stop()


def test_networks_are_kept_by_nobody() -> None:
    """`ipaddress` keeps each prefix that it has parsed by its text, for good."""
    for prefix in ("/24", "/0", ""):
        address = text("10.0.0.0" + prefix) if prefix != "/0" else text("0.0.0.0/0")
        assert load(whole(named("ipaddress", "IPv4Network"), address, b"\x85R"))
    for prefix in ("/024", "/0000", "/255.0.0.0", "/1234"):
        with pytest.raises(pickle.UnpicklingError, match="not those that CPython writes"):
            load(whole(named("ipaddress", "IPv4Network"), text("0.0.0.0" + prefix), b"\x85R"))


def test_names_of_attributes_are_kept_by_nobody() -> None:
    def noted(number: int) -> bytes:
        state = b"}" + text(f"attribute {number} " + "x" * 500) + b"Ns"
        return whole(named("builtins", "ValueError"), b")R", state, b"b")

    def owned(number: int) -> bytes:
        state = b"}" + text(f"attribute {number} " + "x" * 500) + b"Ns"
        return whole(named(__name__, "Own"), b")\x81", state, b"b")

    def slotted(number: int) -> bytes:
        state = b"N}" + text(f"attribute {number} " + "x" * 500) + b"Ns\x86"
        return whole(named(__name__, "Own"), b")\x81", state, b"b")

    nq.allow(Own)
    assert blocks_kept(noted) < 100
    assert blocks_kept(owned) < 100
    assert blocks_kept(slotted) < 100


def test_slots_are_set_and_unknown_ones_are_refused() -> None:
    def slotted(name: str) -> bytes:
        state = b"N}" + text(name) + b"K\x05s\x86"
        return whole(named(__name__, "Slotted"), b")\x81", state, b"b")

    nq.allow(Slotted)
    assert load(slotted("size")).size == 5
    with pytest.raises(pickle.UnpicklingError, match="'Slotted' object has no attribute 'length'"):
        load(slotted("length"))


class Own:
    pass


class Slotted:
    __slots__ = ("size",)
