"""Pickles made by hand, and read by the default loader."""

from __future__ import annotations

import contextlib
import pickle
import struct
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

from ucall import queue as nq
from ucall.queue import PickleSerializer

MIB = 1 << 20


def load(data: bytes, serializer: PickleSerializer | None = None) -> Any:
    return (serializer or PickleSerializer()).load(nq.Stream([data]))


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def named(module: str, name: str) -> bytes:
    return text(module) + text(name) + b"\x93"


def whole(*operations: bytes) -> bytes:
    return b"\x80\x05" + b"".join(operations) + b"."


def both_ways(value: Any) -> Iterator[Any]:
    """The value by our own pickler, and by CPython's, with buffers apart and within."""
    serializer = PickleSerializer()
    yield serializer.load(serializer.dump(value))
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(value, 5, buffer_callback=buffers.append)
    yield serializer.load(nq.Stream([data], [buffer.raw() for buffer in buffers]))
    yield load(pickle.dumps(value, 5))


@contextlib.contextmanager
def peak_bytes() -> Iterator[Callable[[], int]]:
    """Gives the most bytes that Python had allocated at once since then."""
    starts = not tracemalloc.is_tracing()
    if starts:
        tracemalloc.start()
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    try:
        yield lambda: tracemalloc.get_traced_memory()[1] - before
    finally:
        if starts:
            tracemalloc.stop()


def peak_bytes_max(data: bytes) -> int:
    """What a pickle may take by the defaults, and as much for what surrounds it."""
    return 2 * (MIB + 128 * len(data))
