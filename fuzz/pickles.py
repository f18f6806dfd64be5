"""Mutated pickles, read by the default loader of queues.

    python fuzz/pickles.py SECONDS [SEED]

Any bytes are refused with `UnpicklingError`, or come as a value that can be read completely; and
reading them allocates no more than the limits say. `tools/fuzz.sh` runs it, also with a loader that
was built with AddressSanitizer; `tests/python/queue/test_queue_pickles_generated.py` for seconds.
"""

from __future__ import annotations

import collections
import datetime
import decimal
import enum
import fractions
import gc
import ipaddress
import pathlib
import pickle
import pickletools
import random
import struct
import sys
import time
import tracemalloc
import uuid
import zoneinfo
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy

from ucall import queue as nq

#: What objects may take, and what errors, frames and a module's first import take beside them.
BASE_BYTES = 1 << 20
BYTES_EACH = 256
OVERHEAD_BYTES = 1 << 20
PICKLE_BYTES_MAX = 1 << 16
BUFFERS = [b"12345678" * 4, bytearray(64), memoryview(bytes(16))]


class Color(enum.Enum):
    RED = 1


class Point:
    def __init__(self, x: Any = None, neighbours: Any = None) -> None:
        self.x = x
        self.neighbours = neighbours

    def __hash__(self) -> int:
        return hash(self.x)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Point) and self.x == other.x


class Named(NamedTuple):
    x: Any
    y: Any


class Label(str):
    pass


class Slotted:
    __slots__ = ("a", "b")


class Own:
    """Has a state and a reduction of its own."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments

    def __reduce__(self) -> Any:
        return Own, self.arguments, {"x": self.arguments}, iter([1, 2]), iter({"k": 3}.items())

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def append(self, item: Any) -> None:
        self.last = item

    def __setitem__(self, key: Any, value: Any) -> None:
        setattr(self, f"item_{len(vars(self))}", (key, value))


class Listed(list[Any]):
    pass


class Mapped(dict[Any, Any]):
    def __missing__(self, key: Any) -> Any:
        return key


class Members(set[Any]):
    pass


class Failure(ValueError):
    code = 0


class Array(numpy.ndarray[Any, Any]):
    def __reduce__(self) -> Any:
        return Array, (self.shape,)


CLASSES = (Color, Point, Named, Label, Slotted, Own, Listed, Mapped, Members, Failure, Array)


def values() -> Iterator[Any]:
    """Values of each type that the loader makes, with references that are shared or recursive."""
    yield [None, True, 1, 300, -(10**9), 10**30, 1.5, "a", "é\ud800", "x" * 300, b"b", b"c" * 300]
    yield [bytearray(b"a"), 1 + 2j, range(1, 9, 2), slice(None, "a", 2), {1, "a"}, frozenset({2.5})]
    yield [(), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), [[]], {1: {"a": []}}, {(1, 2.5): 1}]
    yield [decimal.Decimal("1.5"), fractions.Fraction(7, 3), uuid.UUID(int=5), Color.RED]
    yield [datetime.date(2024, 2, 29), datetime.timedelta(1, 2, 3), datetime.time(1, 2, fold=1)]
    yield [datetime.datetime(2024, 1, 1, tzinfo=zoneinfo.ZoneInfo("UTC")), datetime.UTC]
    yield [ipaddress.ip_address("::1"), ipaddress.ip_network("10.0.0.0/8"), pathlib.Path("/a/b")]
    yield [collections.OrderedDict(a=1), collections.deque([1], 5), collections.Counter("aab")]
    yield [ValueError("x", 1), ExceptionGroup("g", [KeyError(1)])]
    yield [UnicodeDecodeError("a", b"x", 0, 1, "r"), OSError(2, "no", "file")]
    yield [numpy.arange(6.0).reshape(2, 3), numpy.arange(6).T, numpy.array(["a", "bc"])]
    yield [numpy.zeros(2, "i4,f8"), numpy.zeros((0, 3)), numpy.zeros((), "V3")]
    yield [numpy.float32(1), numpy.str_("a"), numpy.datetime64("2024-01-01", "us")]
    shared: list[Any] = [1, "shared"]
    yield [shared, shared, (shared, {1: shared})]
    shared.append(shared)
    yield shared
    pair: tuple[Any, ...] = ([], {})
    pair[0].append(pair)
    pair[1]["pair"] = pair
    yield pair
    point = Point(1, [])
    point.neighbours.append((point, Named(point, 2)))
    yield [point, {Point(2): point}, Named(1, [2]), {Label("a"): Label("b")}]
    slotted = Slotted()
    slotted.a = [slotted]
    yield [slotted, Own(1, 2), Listed([1]), Mapped(a=1), Members([1, 2])]
    failure = Failure("x")
    failure.code = 5
    failure.add_note("a note")
    yield [failure, AttributeError("x", name="n"), {failure: failure}]
    modulus = 2**61 - 1
    yield [{modulus * number: number for number in range(1, 50)}, {modulus * 5.0, -1, -2}]
    yield frozenset(frozenset([modulus * number, (number, 1.5)]) for number in range(1, 9))


def seeds() -> list[bytes]:
    """Pickles as CPython writes them, and as ours, with buffers apart."""
    found = [pickle.dumps(value, 5) for value in values()]
    serializer = nq.PickleSerializer()
    arrays = [numpy.arange(4.0), numpy.ones(64, "u1"), numpy.arange(2)]
    assert [array.nbytes for array in arrays] == [len(buffer) for buffer in BUFFERS]
    found.append(serializer.dump([*arrays, arrays]).toview().tobytes())
    return found


def operations_of(data: bytes) -> list[bytes]:
    """The operations behind the head of a pickle."""
    places = [place for _, _, place in pickletools.genops(data) if place is not None]
    ends = [*places[1:], len(data)]
    return [data[start:end] for start, end in zip(places, ends, strict=True)][1:]


class Mutations:
    """Mutated pickles, the same each time for a seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._seeds = seeds()
        self._operations = [operations_of(data) for data in self._seeds]

    def next(self) -> bytes:
        if self._random.random() < 0.2:
            return self._of_bytes()
        operations = list(self._random.choice(self._operations))
        for _ in range(self._random.choice((1, 1, 2, 3, 8))):
            self._mutate(operations)
        return (b"\x80\x05" + b"".join(operations))[:PICKLE_BYTES_MAX]

    def _of_bytes(self) -> bytes:
        data = bytearray(self._random.choice(self._seeds))
        for _ in range(self._random.randrange(1, 4)):
            at = self._random.randrange(len(data))
            match self._random.randrange(4):
                case 0:
                    data[at] ^= 1 << self._random.randrange(8)
                case 1:
                    data[at] = self._random.randrange(256)
                case 2:
                    del data[at : at + self._random.randrange(9)]
                    data += b"." * (not data)
                case _:
                    data[at:at] = data[at : at + 40] * self._random.choice((1, 2, 30))
        return bytes(data)

    def _mutate(self, operations: list[bytes]) -> None:
        choose = self._random
        at = choose.randrange(len(operations))
        piece = operations[at : at + choose.choice((1, 1, 2, 3, 5, 9, 30))]
        match choose.randrange(8):
            case 0:
                del operations[at : at + len(piece)]
                operations or operations.append(b".")
            case 1:
                operations[at:at] = piece * choose.choice((1, 1, 2, 10, 100))
            case 2:
                other = choose.choice(self._operations)
                start = choose.randrange(len(other))
                operations[at:at] = other[start : start + choose.choice((1, 3, 9, 30))]
            case 3:
                operations[at] = self._argument(operations[at])
            case 4:
                operations.insert(at, b"h" + bytes([choose.randrange(40)]))
            case 5:
                operations.insert(at, choose.choice(SIMPLE))
            case 6:
                nested = choose.choice((b"\x85", b"]\x94", b"K\1\x86"))
                operations[at:at] = [nested] * choose.choice((3, 1100))
            case _:
                operations[-1:-1] = [b"0", b"h" + bytes([choose.randrange(40)])]

    def _argument(self, operation: bytes) -> bytes:
        """The operation with another argument of the same length."""
        if len(operation) < 2:
            return operation
        data = bytearray(operation)
        if operation[:1] == b"j" or self._random.random() < 0.3:
            data[1:] = self._random.randbytes(len(data) - 1)
        else:
            at = self._random.randrange(1, len(data))
            data[at] = (data[at] + self._random.choice((1, 255, 128))) % 256
        return bytes(data)


SIMPLE = [b"\x94", b"(", b"t", b"a", b"e", b"s", b"u", b"b", b"R", b"\x81", b"\x92", b"0", b"1"]
SIMPLE += [
    b"]",
    b"}",
    b")",
    b"\x8f",
    b"\x90",
    b"\x91",
    b"N",
    b"\x85",
    b"\x86",
    b"Q",
    b"\x97",
    b"\x98",
]
SIMPLE += [b"K\1", b"J" + struct.pack("<i", -2), b"\x8a\x08" + struct.pack("<q", 2**61 - 1)]


def read_all(value: Any) -> None:
    """Reads all memory that a value leads to."""
    seen: set[int] = set()
    found = [value]
    while found:
        one = found.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, numpy.ndarray):
            one.tobytes()
        elif isinstance(one, bytes | bytearray | memoryview | str):
            len(bytes(one, "utf-8", "surrogatepass") if isinstance(one, str) else bytes(one))
        elif not isinstance(one, type):
            # Classes lead to all of the program.
            found.extend(gc.get_referents(one))


class Reading:
    """The loader, and what its users do with it."""

    def __init__(self) -> None:
        nq.allow(*CLASSES)
        loaded = nq.PickleSerializer(load=lambda name: name, allow=None)
        self._restore = loaded._restore
        for data in seeds():
            self._restore(data, list(BUFFERS))
        self.loaded = 0
        self.refused = 0

    def run(self, data: bytes) -> None:
        """Reads it.

        Raises:
            AssertionError: It allocates too much.
            Exception: It is refused with anything but `UnpicklingError`.
        """
        if tracemalloc.is_tracing():
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
        try:
            value = self._restore(data, list(BUFFERS))
        except pickle.UnpicklingError:
            self.refused += 1
            value = None
        else:
            self.loaded += 1
        if tracemalloc.is_tracing():
            taken = tracemalloc.get_traced_memory()[1] - before
            most = BASE_BYTES + BYTES_EACH * len(data) + OVERHEAD_BYTES
            assert taken <= most, f"{taken} bytes allocated, where {most} may be"
        read_all(value)


def main() -> None:
    seconds = float(sys.argv[1])
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(1 << 32)
    print(f"seed {seed}", flush=True)
    mutations, reading = Mutations(seed), Reading()
    end = time.monotonic() + seconds
    done = 0
    while time.monotonic() < end:
        data = mutations.next()
        try:
            reading.run(data)
        except BaseException:
            print(f"the input was {data!r}", flush=True)
            raise
        done += 1
        if done % 1000 == 0:
            gc.collect()
    print(f"{done} pickles: {reading.loaded} loaded, {reading.refused} refused", flush=True)


if __name__ == "__main__":
    main()
