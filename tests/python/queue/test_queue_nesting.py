"""`put` refuses values that nest too deep for a receiver, and no others."""

from __future__ import annotations

import collections
import pickle
import zoneinfo
from collections.abc import Callable
from typing import Any

import pytest

from ucall import queue as nq


@nq.allow
class Box:
    def __init__(self, value: Any) -> None:
        self.value = value


def cyclic(value: Any) -> Any:
    found: list[Any] = [value]
    found += [found, (found,)]
    return found


def pickled_by_name(value: Any) -> Any:
    return [zoneinfo.ZoneInfo("UTC"), "getattr", value]


KINDS: dict[str, Callable[[Any], Any]] = {
    "list": lambda value: [value],
    "many": lambda value: [[], value, "a]", ()],
    "tuple": lambda value: (value, 1),
    "long tuple": lambda value: (1, 2, 3, 4, value),
    "dict": lambda value: {"a": value},
    "frozenset": lambda value: frozenset([value]),
    "deque": lambda value: collections.deque([value]),
    "counter": lambda value: collections.OrderedDict(a=value),
    "class": Box,
    "cycle": cyclic,
    "zone": pickled_by_name,
    "long body": lambda value: [b"x" * 300_000, bytearray(70_000), value],
}


def nested(around: Callable[[Any], Any], count: int) -> Any:
    value: Any = 1
    for _ in range(count):
        value = around(value)
    return value


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_receiver_refuses_as_too_deep_is_not_dumped(kind: str) -> None:
    """Both sides of the limit, wherever it is for this kind."""
    serializer = nq.PickleSerializer(max_depth=8)
    plain = nq.PickleSerializer(trust=True)
    refused = []
    for count in range(1, 12):
        value = nested(KINDS[kind], count)
        try:
            serializer.load(plain.dump(value))
        except pickle.UnpicklingError as error:
            assert "max_depth" in str(error)
            refused.append(count)
            with pytest.raises(pickle.PicklingError, match="deeper than max_depth, 8 levels"):
                serializer.dump(value)
        else:
            serializer.load(serializer.dump(value))
    assert refused and 1 not in refused


def test_put_refuses_what_nests_over_128_levels() -> None:
    options = nq.CommunicatorOptions(netloc=nq.NetworkLocation("127.0.0.1", 0))
    # The core takes another way for the methods of a class derived from the serializer.
    derived = type("Derived", (nq.PickleSerializer,), {})()
    own = nq.SerializationOptions(derived.load, derived.dump)
    for serialization in (nq.SerializationOptions(), own):
        with nq.new(purpose="server", options=options) as server:
            at = nq.CommunicatorOptions(
                netloc=nq.NetworkLocation(*server.address), serialization=serialization
            )
            with nq.new(options=at) as client:
                with pytest.raises(pickle.PicklingError, match="deeper than max_depth, 128 levels"):
                    client.put(nested(KINDS["list"], 129))
                client.put(nested(KINDS["list"], 128))
                assert server.get(timeout=60).data == nested(KINDS["list"], 128)


def test_a_serializer_may_allow_more_levels() -> None:
    deeper = nq.PickleSerializer(max_depth=300)
    assert deeper.load(deeper.dump(nested(KINDS["tuple"], 300))) == nested(KINDS["tuple"], 300)
    trusting = nq.PickleSerializer(trust=True)
    assert trusting.load(trusting.dump(nested(KINDS["list"], 300)))
