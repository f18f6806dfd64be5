"""Pickles that attack the reader, sent by a peer over each transport: refused, and the next message
arrives."""

from __future__ import annotations

import pickle
import struct
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pairs import Pairs
from pickled import named, peak_bytes, peak_bytes_max, text, whole

from ucall import queue as nq

WAIT_S = 60
MODULUS = 2**61 - 1


class User:
    name = "nobody"

    def verify(self) -> bool:
        return False


def sends_array_changed_under_its_view() -> bytes:
    """Frees the memory of an array that another one views, and writes through the view."""
    dtype = named("numpy", "dtype") + text("u2") + b"\x89\x88\x87R"
    dtype += b"(K\x03" + text(">") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tb\x940"
    array = named("numpy._core.multiarray", "_reconstruct") + named("numpy", "ndarray")
    array += b"K\0\x85C\x01b\x87R\x94"
    count = b"J" + struct.pack("<i", 100_000)
    items = b"B" + struct.pack("<I", 200_000) + bytes(200_000)
    state = b"(K\x01" + count + b"\x85h\0\x89" + items + b"tb"
    view = named("numpy._core.numeric", "_frombuffer") + b"(h\1h\0K\x08\x85" + text("C") + b"tR\x94"
    again = b"0h\1(K\x01K\x08\x85h\0\x89C\x10" + bytes(16) + b"tb0"
    return whole(dtype, array, state, b"0", view, again, b"h\2K\0K\x05s")


def sends_key_that_is_empty_when_it_is_remembered() -> bytes:
    """A UUID, whose state nests later, is part of each of 60 levels of pairs."""
    doubled = b"".join(b"h" + bytes([n]) + b"h" + bytes([n]) + b"\x86\x94" for n in range(60))
    empty = named("uuid", "UUID") + b")\x81\x94"
    return whole(b"}", empty, doubled, b"K\x01s")


def sends_many_copies_of_what_is_remembered(name: str) -> bytes:
    data = b"B" + struct.pack("<I", 40_000) + bytes(40_000) + b"\x94"
    repeated = named("builtins", name) + b"\x940" + b"h\1h\0\x85R0" * 20_000
    return whole(data, b"0", repeated, b"N")


def sends_keys_of_one_hash() -> bytes:
    # To make such a dictionary takes a second.
    numbers = (pickle.dumps(MODULUS * number, 5)[2:-1] for number in range(1, 20_000))
    return whole(b"}(", *(number + b"N" for number in numbers), b"u")


def sends_array_of_empty_items() -> bytes:
    shape = b"\x8a\x08" + struct.pack("<q", 1 << 40) + b"\x85"
    array = named("ucall.queue.utils.arrays", "array")
    return whole(array, b"(C\0", text("<U0"), shape, text("C"), b"tR")


def sends_state_for_a_class() -> bytes:
    user = named(__name__, "User")
    return whole(user, b"N}", text("verify"), named("builtins", "slice"), b"s\x86b")


ATTACKS: list[Callable[[], bytes]] = [
    sends_array_changed_under_its_view,
    sends_key_that_is_empty_when_it_is_remembered,
    lambda: sends_many_copies_of_what_is_remembered("bytearray"),
    lambda: sends_many_copies_of_what_is_remembered("frozenset"),
    sends_keys_of_one_hash,
    sends_array_of_empty_items,
    sends_state_for_a_class,
]


def dump(value: Any) -> nq.Stream:
    """Sends bytes as a pickle, and pickles everything else."""
    return nq.Stream([value]) if isinstance(value, bytes) else nq.PickleSerializer().dump(value)


@pytest.fixture(autouse=True)
def traced() -> Iterator[None]:
    """Traces memory until the communicators are closed.

    CPython 3.11 may crash in `tracemalloc.stop` while another thread allocates memory without the
    interpreter lock, as the thread of a communicator does when it begins to call gRPC.
    """
    tracemalloc.start()
    yield
    tracemalloc.stop()


@pytest.mark.slow
def test_attacks_by_a_pickle_are_refused_and_the_next_message_arrives(pairs: Pairs) -> None:
    nq.allow(User)
    server = pairs.server()
    client = pairs.client(server, serialization=nq.SerializationOptions(dump=dump))
    client.put("first")
    assert server.get(timeout=WAIT_S).data == "first"
    for number, attack in enumerate(ATTACKS):
        hostile = attack()
        client.put(hostile)
        client.put(number)
        with peak_bytes() as peak:
            with pytest.raises(pickle.UnpicklingError, match=r"^refused: "):
                server.get(timeout=WAIT_S)
            assert peak() < peak_bytes_max(hostile)
        assert server.get(timeout=WAIT_S).data == number
    assert User().verify() is False
