"""The default loader and the program's own classes: only those that it allows come back."""

from __future__ import annotations

import dataclasses
import enum
import pickle
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

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
    with pytest.raises(pickle.UnpicklingError, match="state of an object is invalid"):
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


# --- values of classes without state


class Named(NamedTuple):
    x: int


class Label(str):
    pass


class Reduced:
    def __init__(self, key: Any) -> None:
        self.key = key

    def __reduce__(self) -> Any:
        return Reduced, (self.key,)

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Reduced) and self.key == other.key


@pytest.mark.parametrize("value", [Named(1), Label("a"), Reduced(5), Color.RED], ids=type)
@pytest.mark.usefixtures("allowed")
def test_values_are_keys_as_well(value: Any) -> None:
    """Such a value is complete as soon as it is made, and nothing in the pickle says so."""
    nq.allow(Named, Label, Reduced)
    holder = Reduced({})
    for whole_value in (
        [value, {value: 1}],
        (value, {(value, value, 1): value}, frozenset([value])),
        {1: [value], 2: {value}, 3: [[value], {(value, (value,))}]},
        [holder, {value: holder}, [holder, {value}]],
    ):
        for came in both_ways(whole_value):
            assert came == whole_value
    came = load(pickle.dumps([value, {value: 1}, {(value,): 2}], 5))
    assert came == [value, {value: 1}, {(value,): 2}]
    assert next(iter(came[1])) is came[0] is next(iter(came[2]))[0]


class Parent:
    """Hashed by a key that it has from the beginning."""

    def __init__(self, key: int) -> None:
        self.key = key
        self.near: Any = None

    def __reduce__(self) -> Any:
        return Parent, (self.key,), {"near": self.near}

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Parent) and self.key == other.key


@pytest.mark.usefixtures("allowed")
def test_an_object_is_no_key_within_its_own_state() -> None:
    """What will still change is not hashed, and holds itself only in other ways."""
    nq.allow(Parent)
    parent = Parent(1)
    parent.near = [parent, (parent,), Parent(2)]
    came = load(pickle.dumps(parent, 5))
    assert came is came.near[0] is came.near[1][0]
    for near in ({parent: 1}, {(parent,)}):
        parent.near = near
        with pytest.raises(pickle.UnpicklingError, match="not hashable"):
            load(pickle.dumps([parent, {parent: 1}], 5))


class Coded(Exception):
    code = 0
    text = "default"


@pytest.mark.usefixtures("allowed")
def test_exceptions_have_attributes_of_their_own() -> None:
    nq.allow(Coded)
    error = Coded("x")
    error.code, error.text = 5, "given"
    for came in both_ways(error):
        assert (came.args, came.code, came.text) == (("x",), 5, "given")
    for name in ("args", "__cause__", "with_traceback"):
        state = b"}" + text(name) + b"Ns"
        with pytest.raises(pickle.UnpicklingError, match="of an exception"):
            load(whole(named(__name__, "Coded"), b")R", state, b"b"))


def test_the_state_of_an_attribute_error_has_its_args() -> None:
    """Since CPython 3.12."""
    error = named("builtins", "AttributeError") + text("x") + b"\x85\x94R"
    came = load(whole(error, b"}(", text("name"), text("n"), text("args"), b"h\0ub"))
    assert (came.args, came.name) == (("x",), "n")
    for args in (b"]", b"K\x01", b"N"):
        with pytest.raises(pickle.UnpicklingError, match="attribute args of an exception"):
            load(whole(error, b"}", text("args"), args, b"sb"))


# --- names and memory


def test_a_name_stands_only_where_it_is_asked_for() -> None:
    array = named("numpy", "ndarray")
    serializer = PickleSerializer(PickleSerializer.allow_by_name(f"{__name__}.Reduced"))
    for call in (
        named("builtins", "ValueError") + array + b"\x85R",
        named("builtins", "slice") + array + b"NN\x87R",
        named(__name__, "Reduced") + array + b"\x85R",
        named(__name__, "Reduced") + array + b"\x85\x81",
        named("builtins", "ValueError") + array + b"\x85\x85R",
        b"]" + array + b"a",
    ):
        with pytest.raises(pickle.UnpicklingError, match="name is used as a value"):
            load(whole(call), serializer)


class Own(np.ndarray[Any, Any]):
    def __reduce__(self) -> Any:
        return Own, (self.shape,)


class OwnBytes(bytearray):
    pass


OBJECTS = np.dtype("O")
U2 = named("numpy", "dtype") + text(">u2") + b"\x85R"


@pytest.mark.parametrize("name", ["Own", "OwnBytes"])
@pytest.mark.usefixtures("allowed")
def test_nothing_views_an_object_whose_state_may_follow(name: str) -> None:
    """Its memory is freed when the state is set, and a view of it would stay."""
    nq.allow(Own, OwnBytes)
    made = named(__name__, name) + b"K\x08\x85\x81"
    load(whole(made))
    for view in (
        named("numpy._core.numeric", "_frombuffer")
        + b"(%s"
        + U2
        + b"K\x04\x85"
        + text("C")
        + b"tR",
        named("ucall.queue.utils.arrays", "array")
        + b"(%s"
        + text("u1")
        + b"K\x08\x85"
        + text("C")
        + b"tR",
        b"%s\x98",
    ):
        with pytest.raises(pickle.UnpicklingError, match="no buffer"):
            load(whole(view.replace(b"%s", made)))
        with pytest.raises(pickle.UnpicklingError, match="no buffer"):
            load(whole(made, b"\x94", view.replace(b"%s", b"h\0"), b"\x86"))


def test_memory_that_an_array_looks_at_is_not_resized() -> None:
    block = b"\x96" + struct.pack("<Q", 64) + bytes(64) + b"\x94"
    kind = named("numpy", "dtype") + text("u1") + b"\x85R"
    rest = kind + b"(K\x08K\x08t" + text("F") + b"tR"
    view = named("numpy._core.numeric", "_frombuffer") + b"(h\0" + rest
    memory, array = load(whole(block, view, b"\x86"))
    assert array.flags.writeable and array.flags.f_contiguous
    array[1, 0] = 7
    assert memory[1] == 7
    with pytest.raises(BufferError):
        memory.extend(bytes(1 << 20))


def test_no_array_holds_objects_of_an_allowed_dtype() -> None:
    serializer = PickleSerializer(lambda name: name == f"{__name__}.OBJECTS")
    kind = named(__name__, "OBJECTS")
    array = named("numpy._core.numeric", "_frombuffer") + b"(C\x08" + bytes(8) + kind
    scalar = named("numpy._core.multiarray", "scalar") + kind + b"C\x08" + bytes(8) + b"\x86R"
    field = b"(K\x03" + text("|") + b"N" + text("f") + b"\x85}" + text("f") + kind + b"K\0\x86s"
    structured = named("numpy", "dtype") + text("V8") + b"\x85R" + field + b"K\x08K\x08K\0tb"
    for made in (array + b"K\x01\x85" + text("C") + b"tR", scalar, structured):
        with pytest.raises(pickle.UnpicklingError):
            load(whole(made), serializer)


def test_what_ends_the_program_stays_what_it_is() -> None:
    def interrupt(name: str) -> bool:
        raise KeyboardInterrupt

    serializer = PickleSerializer(interrupt)
    for data in (named("app", "User"), b"]" + named("uuid", "UUID") + b"a"):
        with pytest.raises(KeyboardInterrupt):
            load(whole(data), serializer)
