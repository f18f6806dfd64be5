"""The default loader and the program's own classes: only those that it allows come back."""

from __future__ import annotations

import dataclasses
import enum
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from pickled import both_ways, load, named, text, whole

from ucall import queue as nq
from ucall.queue import PickleSerializer
from ucall.queue.utils import allow


class Color(enum.Enum):
    RED = 1


class Flags(enum.Flag):
    A = enum.auto()
    B = enum.auto()


@dataclasses.dataclass
class Point:
    x: int
    neighbours: list[Point]


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
    """One object of it exists."""

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
    point.neighbours.append(point)
    for received in both_ways(point):
        assert received.neighbours[0] is received


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
        POINT + b"N}" + text("neighbours") + b"K\x05s\x86b",
        POINT + b"}" + text("neighbours") + b"K\x05sb",
        POINT + text("neighbours") + b"K\x05s",
        POINT + b"K\x05a",
        POINT + b"\x94h\0}" + text("neighbours") + b"K\x05sb",
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
