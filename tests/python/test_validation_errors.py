"""All errors of the params of a call: in order, each on a line with its path, and bounded."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import json
from collections.abc import Callable
from typing import Any, NamedTuple, NotRequired

import attrs
import msgspec
import pydantic
import pytest
from serving import Serve
from typing_extensions import TypedDict

from harness import Wire

ConnectTo = Callable[..., Wire]


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Item:
    count: int
    name: str
    is_new: bool = True


@dataclasses.dataclass
class Basket:
    """It has a form, since its constructor does not take all fields."""

    owner: str
    is_paid: bool = dataclasses.field(init=False, default=False)
    items: list[Item] = dataclasses.field(default_factory=list)


class Place(NamedTuple):
    x: float
    y: float


class Trip(TypedDict):
    id: int
    places: NotRequired[list[Place]]


@attrs.define
class Driver:
    age: int
    trip: Trip


class Order(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    order_id: int
    due: dict[str, datetime.date]
    pair: tuple[int, str] = (1, "")


class Row(msgspec.Struct, array_like=True, tag="row"):
    first: int
    second: str


class Cat(msgspec.Struct, tag=True):
    lives: int


class Dog(msgspec.Struct, tag=True):
    tricks: list[int]


class Model(pydantic.BaseModel):
    size: int
    sizes: list[int] = []


@dataclasses.dataclass
class Mixed:
    model: Model
    basket: Basket | None = None
    pets: list[Cat | Dog] = dataclasses.field(default_factory=list)


class Tree(msgspec.Struct):
    values: list[int]
    inner: list[Tree] = []


def place(a: int, b: str, c: list[int], *, d: dict[str, bool] | None = None) -> None: ...


INT, STR = "expected int, got str", "expected str, got int"

ERRORS: list[tuple[Any, Any, list[str]]] = [
    (Item, {"count": "x", "name": 1, "is_new": None},
     [f".count: {INT}", f".name: {STR}", ".is_new: expected bool, got None"]),
    (Item, {"is_new": 3},
     [".is_new: expected bool, got int", ".count: missing, expected int",
      ".name: missing, expected str"]),
    (Basket, {"owner": 1, "is_paid": True, "items": [{"count": 1, "name": ""}, {"count": ""}, 3]},
     [f".owner: {STR}", ".is_paid: unexpected", f".items[1].count: {INT}",
      ".items[1].name: missing, expected str", ".items[2]: expected Item (dict), got int"]),
    (Order, {"orderId": "", "due": {"a": "x", "b": "2026-01-01", "c": 1}, "pair": ["", 1], "z": 1},
     [f".orderId: {INT}", ".due.a: expected date (RFC 3339), got 'x'",
      ".due.c: expected date (RFC 3339), got int", f".pair[0]: {INT}", f".pair[1]: {STR}",
      ".z: unexpected"]),
    (Row, ["row", "", 2], [f"[1]: {INT}", f"[2]: {STR}"]),
    (Driver, {"age": "", "trip": {"id": "", "places": [[1, ""], [2, 3], ["", ""]]}},
     [f".age: {INT}", f".trip.id: {INT}", ".trip.places[0][1]: expected float, got str",
      ".trip.places[2][0]: expected float, got str",
      ".trip.places[2][1]: expected float, got str"]),
    (Mixed, {"model": {"size": "x", "sizes": [1, "y", "z"]}, "basket": {"is_paid": 1},
             "pets": [{"type": "Cat", "lives": ""}, {"type": "Dog", "tricks": ["", ""]}]},
     [".model.size: expected int, got 'x'", ".model.sizes[1]: expected int, got 'y'",
      ".model.sizes[2]: expected int, got 'z'", ".basket.is_paid: unexpected",
      ".basket.owner: missing, expected str", f".pets[0].lives: {INT}",
      f".pets[1].tricks[0]: {INT}", f".pets[1].tricks[1]: {INT}"]),
    (list[Model], [{}, {"size": "x"}], ["[0].size: missing", "[1].size: expected int, got 'x'"]),
    (dict[str, list[Colour]], {"a": ["red", "x"], "b": [1]},
     [".a[1]: expected one of 'red', got 'x'", ".b[0]: expected one of 'red', got int"]),
    (set[int] | None, ["", 1, None], [f"[0]: {INT}", "[2]: expected int, got None"]),
]  # fmt: skip


@pytest.mark.parametrize(("annotation", "given", "problems"), ERRORS)
def test_all_errors_of_a_param_are_listed(
    connect_to: ConnectTo, annotation: Any, given: Any, problems: list[str]
) -> None:
    def take(a: annotation) -> None: ...

    error = connect_to(take).error("take", [given])
    assert (error["code"], error["message"]) == (-32602, "Invalid params")
    assert error["data"].split("\n") == [f"params.a{problem}" for problem in problems]


def test_all_params_are_checked(connect_to: ConnectTo) -> None:
    wire = connect_to(place)
    given = {"a": "", "b": 1, "c": [1, "", None], "d": {"k": 1, "l": True}, "e": 4}
    assert wire.error("place", given)["data"].split("\n") == [
        f"params.a: {INT}",
        f"params.b: {STR}",
        f"params.c[1]: {INT}",
        "params.c[2]: expected int, got None",
        "params.d.k: expected bool, got int",
        "params.e: unexpected, expected a, b, c, d",
    ]


@pytest.mark.parametrize("annotation", [list[int], set[int], list[Colour]])
def test_the_list_of_errors_is_bounded(connect_to: ConnectTo, annotation: Any) -> None:
    def take(a: annotation) -> None: ...

    wire = connect_to(take)
    lines = {
        number: wire.error("take", [["x"] * number])["data"].split("\n") for number in (20, 21, 999)
    }
    assert len(lines[20]) == 20 and lines[20][-1].startswith("params.a[19]: ")
    assert lines[21] == lines[999] == [*lines[20], "and more"]


def test_the_text_of_errors_is_bounded(connect_to: ConnectTo) -> None:
    """So that it fits a datagram. The first error is always whole."""

    def take(a: dict[str, int]) -> None: ...

    wire = connect_to(take)
    data = wire.error("take", [{f"{i}{'k' * 60}": "" for i in range(20)}])["data"]
    assert 900 < len(data) <= 1_000 + len("\nand more") and data.endswith("\nand more")


def test_a_message_with_several_lines_is_one(serve_once: Serve) -> None:
    class Money: ...

    def decode(value: object) -> Money:
        raise ValueError("write it as\n1.23")

    def take(a: list[Money]) -> None: ...

    server = serve_once()
    server.register_type(Money, str, decode)
    server.add(take)
    data = Wire(server.port).error("take", [[1, 2]])["data"]
    assert [line.partition(": ")[0] for line in data.split("\n")] == ["params.a[0]", "params.a[1]"]


def test_the_search_reads_a_text_a_limited_number_of_times(
    connect_to: ConnectTo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However deep the error is, the search converts at most twice the text a level."""

    def grow(tree: Tree) -> None: ...

    converted = 0
    convert = msgspec.convert

    def counted(value: Any, *arguments: Any, **options: Any) -> Any:
        nonlocal converted
        converted += len(json.dumps(value))
        return convert(value, *arguments, **options)

    wire = connect_to(grow)
    monkeypatch.setattr(msgspec, "convert", counted)
    for items, factor in ((30_000, 2 * 8), (10, 2 * 60)):
        tree: Any = {"values": [0] * items + [""]}
        for _ in range(40):
            tree = {"values": [], "inner": [tree]}
        converted = 0
        data = wire.error("grow", [tree])["data"]
        assert data.endswith(f".values[{items}]: {INT}") and data.count(".inner[0]") == 40
        assert 0 < converted <= factor * len(json.dumps(tree))
