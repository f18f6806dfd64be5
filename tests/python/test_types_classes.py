"""Classes at any depth: an instance is what its constructor makes, and metadata means the same."""

from __future__ import annotations

import abc
import dataclasses
import datetime
import decimal
import enum
import json
import typing
import uuid
from collections.abc import Callable
from typing import Annotated, Any, Generic, NamedTuple, TypeVar

import annotated_types
import attrs
import msgspec
import pydantic
import pytest
from typing_extensions import TypedDict

import ucall
from harness import Wire
from ucall.client import Client
from ucall.schema import describe

ConnectTo = Callable[..., Wire]

T = TypeVar("T")


@dataclasses.dataclass
class User:
    name: str
    is_admin: bool = dataclasses.field(init=False, default=False)
    friends: list[User] = dataclasses.field(default_factory=list)


@attrs.define
class Account:
    name: str
    is_admin: bool = attrs.field(init=False, default=False)
    friends: list[Account] = attrs.field(factory=list)


@pydantic.dataclasses.dataclass
class Member:
    name: str
    is_admin: bool = dataclasses.field(init=False, default=False)
    friends: list[Member] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Noted:
    name: Annotated[str, pydantic.Field(min_length=1)]
    is_admin: bool = dataclasses.field(init=False, default=False)
    friends: list[Noted] = dataclasses.field(default_factory=list)


def holders(kind: Any) -> list[Any]:
    """The class, and a class of each sort with a field of it."""
    made = dataclasses.make_dataclass("InDataclass", [("held", kind)])
    of_attrs = attrs.make_class("InAttrs", {"held": attrs.field(type=kind)})
    of_struct = msgspec.defstruct("InStruct", [("held", kind)])
    mapping = TypedDict("InMapping", {"held": kind})  # type: ignore[misc]  # noqa: UP013
    row = NamedTuple("InRow", [("held", kind)])  # type: ignore[misc]  # noqa: UP014
    holding = [kind, made, of_attrs, of_struct, mapping, row]
    if attrs.has(kind):
        return holding  # pydantic builds no classes of attrs.
    return [*holding, pydantic.create_model("InModel", held=(kind, ...))]


def serving(annotation: Any) -> Callable[..., Any]:
    def echo(a):  # type: ignore[no-untyped-def]
        echo.last = a  # type: ignore[attr-defined]
        return a

    echo.__annotations__["a"] = annotation
    return echo


def within(value: Any, holder: Any) -> Any:
    if holder.__name__ == "InRow":
        return [value]
    return {"held": value} if holder.__name__.startswith("In") else value


def held_in(value: Any) -> Any:
    if isinstance(value, dict):
        return value["held"]
    if type(value).__name__ == "InRow":
        return value[0]
    return value.held if type(value).__name__.startswith("In") else value


NESTED = [it for kind in (User, Account, Member, Noted) for it in holders(kind)]


@pytest.fixture(scope="module")
def nested() -> typing.Iterator[tuple[Client, dict[int, Any]]]:
    server = ucall.Server(port=0)
    functions = {}
    for index, kind in enumerate(NESTED):
        functions[index] = serving(kind)
        server.add(functions[index], name=f"echo{index}")
    with server, Client(port=server.port) as client:
        yield client, functions


@pytest.mark.parametrize("index", range(len(NESTED)))
def test_what_the_constructor_does_not_take_is_not_set(
    nested: tuple[Client, dict[int, Any]], index: int
) -> None:
    client, functions = nested
    kind = NESTED[index]
    given = {"name": "eve", "friends": [{"name": "bob"}]}
    written = client.call(f"echo{index}", within(given, kind)).json
    built = held_in(functions[index].last)
    assert built.is_admin is False and built.friends[0].is_admin is False
    assert type(built.friends[0]) is type(built)
    friend = {"name": "bob", "is_admin": False, "friends": []}
    assert written == within(given | {"is_admin": False, "friends": [friend]}, kind)
    forged = client.call(f"echo{index}", within(given | {"is_admin": True}, kind))
    if isinstance(built, (User, Account)) and kind.__name__ != "InModel":
        inside = "[0]" if kind.__name__ == "InRow" else ".held"
        where = "" if kind in (User, Account) else inside
        error = forged.error
        assert (error.code, error.data) == (-32602, f"params.a{where}.is_admin: unexpected")
    else:  # pydantic ignores it, unless its configuration says otherwise.
        assert held_in(functions[index].last).is_admin is False


@pytest.mark.parametrize("kind", [User, Account, Member, Noted])
def test_schemas_have_what_the_constructor_takes(kind: Any) -> None:
    def echo(a):  # type: ignore[no-untyped-def]
        return a

    echo.__annotations__ |= {"a": kind, "return": kind}
    server = ucall.Server(port=0)
    server.add(echo)
    schemas = describe(server).components
    of_param, of_result = schemas.pop(kind.__name__), schemas.pop(f"{kind.__name__}_2")
    assert list(of_param["properties"]) == ["name", "friends"] and not schemas
    assert list(of_result["properties"]) == ["name", "is_admin", "friends"]
    assert of_param["required"] == ["name"]


@dataclasses.dataclass
class Area:
    width: int
    height: int
    area: int = dataclasses.field(init=False)
    scale: dataclasses.InitVar[int] = 1

    def __post_init__(self, scale: int) -> None:
        self.area = self.width * self.height * scale


@dataclasses.dataclass
class Positive:
    value: int

    def __init__(self, number: int, /, *, sign: int = 1) -> None:
        if not number:
            raise ValueError("expected another number than 0")
        self.value = abs(number) * sign


class Doubled(typing.NamedTuple("Doubled", [("value", int)])):  # type: ignore[misc]
    def __new__(cls, value: int) -> Doubled:
        return super().__new__(cls, value * 2)


@attrs.define
class Converted:
    _value: int = attrs.field(converter=int)
    factor: int = attrs.field(default=attrs.Factory(lambda self: self._value, takes_self=True))


@attrs.define
class Sorted:
    values: list[int] = attrs.field(converter=sorted)


class Guarded:
    __slots__ = ("value",)

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value + 1)


@dataclasses.dataclass
class Counted(Guarded):
    value: int


@dataclasses.dataclass
class Box(Generic[T]):
    value: T
    label: str = dataclasses.field(init=False, default="box")


@dataclasses.dataclass
class DateBox(Box[datetime.date]):
    pass


@pytest.mark.parametrize(
    ("kind", "given", "built"),
    [
        (Area, {"width": 2, "height": 3}, Area(2, 3)),
        (Area, {"width": 2, "height": 3, "scale": 2}, Area(2, 3, 2)),
        (Positive, {"number": -3}, Positive(3)),
        (Positive | int, {"number": -3, "sign": -1}, Positive(3, sign=-1)),
        (Positive | int, 5, 5),
        (Doubled, [3], Doubled(3)),
        (Converted, {"value": "7"}, Converted(7)),
        (list[Sorted], [{"values": [2, 1]}], [Sorted([1, 2])]),
        (dict[str, list[Counted | None]], {"a": [{"value": 1}, None]}, {"a": [Counted(1), None]}),
        (tuple[Box[int], ...], [{"value": 1}], (Box(1),)),
        (DateBox, {"value": "2026-01-31"}, DateBox(datetime.date(2026, 1, 31))),
    ],
)
def test_an_instance_is_what_its_constructor_makes(
    connect_to: ConnectTo, kind: Any, given: Any, built: Any
) -> None:
    echo = serving(kind)
    reply = connect_to(echo).call("echo", [given])
    assert "result" in reply, reply
    assert echo.last == built  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("kind", "given", "problem"),
    [
        (Positive, {"number": 0}, ": expected another number than 0"),
        (list[Positive], [{"number": "x"}], "[0].number: expected int, got str"),
        (Area, {"width": 1, "height": 1, "area": 5}, ".area: unexpected"),
        (Positive, {"number": 1, "value": 2}, ".value: unexpected"),
        (Positive | int, "x", ": expected Positive (dict) | int, got str"),
        (Box[int], {"value": "x"}, ".value: expected int, got str"),
        (DateBox, {"value": 1}, ".value: expected date (RFC 3339), got int"),
        (User, {"name": "a", "friends": [{"name": 1}]}, ".friends[0].name: expected str, got int"),
    ],
)
def test_mismatches_are_named(connect_to: ConnectTo, kind: Any, given: Any, problem: str) -> None:
    error = connect_to(serving(kind)).error("echo", [given])
    assert (error["code"], error["data"]) == (-32602, "params.a" + problem)


Quantity = Annotated[int, pydantic.Field(ge=1, le=100)]


@dataclasses.dataclass
class Order:
    quantity: Quantity
    note: Annotated[str, pydantic.AfterValidator(str.upper)] = ""


class OrderMapping(TypedDict):
    quantity: Quantity


class OrderRow(NamedTuple):
    quantity: Annotated[int, annotated_types.Interval(ge=1, le=100)]


class OrderModel(pydantic.BaseModel):
    quantity: Quantity


@pytest.mark.parametrize(
    "kind",
    [it for kind in (Order, OrderMapping, OrderRow, OrderModel) for it in holders(kind)],
    ids=lambda kind: kind.__name__,
)
def test_metadata_means_the_same_at_any_depth(connect_to: ConnectTo, kind: Any) -> None:
    wire = connect_to(serving(kind))
    for quantity, fits in ((1, True), (0, False), (101, False), ("1", None)):
        made = {"quantity": quantity}
        is_row = "OrderRow" in repr(typing.get_type_hints(kind)) or kind is OrderRow
        reply = wire.call("echo", [within([quantity] if is_row else made, kind)])
        if fits is not None:
            assert ("result" in reply) is fits, reply
            assert fits or reply["error"]["code"] == -32602


@dataclasses.dataclass
class OwnInit:
    value: int

    def __init__(self, value: int) -> None:
        self.value = value


class Money:
    pass


@dataclasses.dataclass
class Registered:
    value: int


class Abstract(abc.ABC):
    @abc.abstractmethod
    def run(self) -> None: ...


@dataclasses.dataclass
class Base(Abstract):
    value: int


@dataclasses.dataclass
class Any_:
    def __init__(self, **rest: int) -> None: ...


def field_of(annotation: Any, default: Any = dataclasses.MISSING) -> Any:
    field = dataclasses.field() if default is dataclasses.MISSING else default
    return dataclasses.make_dataclass("Field", [("value", annotation, field)])


@pytest.mark.parametrize(
    ("annotation", "problem"),
    [
        (msgspec.defstruct("Row", [("value", Quantity)]),
         "Row.value cannot be served: msgspec does not check metadata of pydantic's"),
        (attrs.make_class("Row", {"value": attrs.field(type=Quantity)}),
         "Row.value cannot be served: attrs does not check metadata of pydantic's"),
        (field_of(Annotated[int, range(3)]), "Field.value: typing.Annotated[int, range(0, 3)]"),
        (field_of(list[field_of(Annotated[int, object])]), "Field.value: typing.Annotated[int"),
        (Annotated[int, msgspec.Meta(ge=1), pydantic.Field(le=5)], "pydantic does not check"),
        (OrderModel | list[Annotated[int, msgspec.Meta(ge=1)]], "pydantic does not check msgspec"),
        (pydantic.create_model("M", value=(Annotated[int, msgspec.Meta(ge=1)], ...)),
         "M.value: typing.Annotated[int, msgspec.Meta(ge=1)] cannot be served: pydantic does"),
        (Annotated[list[OwnInit], pydantic.Field(min_length=1)],
         "OwnInit cannot be served: pydantic builds it without its own constructor"),
        (Annotated[list[Registered], pydantic.Field(min_length=1)],
         "Registered cannot be served: pydantic builds it there, not the registered decoder"),
        (field_of(int, pydantic.Field(default=1)),
         "Field.value cannot be served: its default is the FieldInfo itself"),
        (msgspec.defstruct("Row", [("first", int), ("value", int, pydantic.Field(default=1))]),
         "Row.value cannot be served: its default is the FieldInfo itself"),
        (Base, "Base cannot be served: it is abstract"),
        (Any_, "Any_ cannot be served: its constructor takes **rest"),
        (field_of(set[complex]), "Field.value: complex cannot be served"),
    ],
)  # fmt: skip
def test_what_nothing_checks_is_refused_at_registration(annotation: Any, problem: str) -> None:
    server = ucall.Server(port=0)
    server.register_type(Registered, lambda it: it.value, Registered)
    with pytest.raises(TypeError) as refused:
        server.add(serving(annotation))
    assert str(refused.value).startswith("echo: parameter 'a': ")
    assert problem in str(refused.value)


@pydantic.dataclasses.dataclass
class Profile:
    name: str
    password: Annotated[str, pydantic.Field(exclude=True)] = "hidden"
    shown_as: Annotated[str, pydantic.Field(serialization_alias="shownAs")] = "s"


@dataclasses.dataclass
class NotedProfile:
    name: str
    password: Annotated[str, pydantic.Field(exclude=True)] = "hidden"
    shown_as: Annotated[str, pydantic.Field(serialization_alias="shownAs")] = "s"
    day: datetime.date = datetime.date(2026, 1, 31)


@dataclasses.dataclass
class Loose:
    held: object


@dataclasses.dataclass
class Plain:
    name: str


class Secret(Plain):
    pass


@dataclasses.dataclass
class OfPlain:
    held: Plain


@pytest.mark.parametrize("kind", [Profile, NotedProfile, Registered], ids=lambda it: it.__name__)
def test_results_are_written_the_same_at_any_depth(kind: Any) -> None:
    value = kind(3) if kind is Registered else kind("eve")
    rows = [*holders(kind)[1:6], Loose]
    made = [holder(held=value) for holder in rows]
    made += [[value], {"a": value}, [Loose({"a": [value]})]]
    server = ucall.Server(port=0)
    server.register_type(Registered, lambda it: f"number {it.value}", Registered)
    server.add(lambda: made, name="give")
    with server, Client(port=server.port) as client:
        written = client.give().json
    one = {"name": "eve", "shownAs": "s"}
    one |= {"day": "2026-01-31"} if kind is NotedProfile else {}
    one = "number 3" if kind is Registered else one  # type: ignore[assignment]
    in_object = {"held": one}
    assert written == [
        *[[one] if it.__name__ == "InRow" else in_object for it in rows],
        [one], {"a": one}, [{"held": {"a": [one]}}],
    ]  # fmt: skip


def test_a_registered_class_is_encoded_where_its_base_is_expected() -> None:
    server = ucall.Server(port=0)
    server.register_type(Secret, lambda it: f"secret {it.name}", Secret)
    server.add(lambda: OfPlain(Secret("eve")), name="give")
    with server, Client(port=server.port) as client:
        assert client.give().json == {"held": "secret eve"}


class Compact(msgspec.Struct, tag="c", omit_defaults=True, rename="camel"):
    held_value: object
    some_list: list[int] = []
    number: int = 5
    unset: int | msgspec.UnsetType = msgspec.UNSET


class Listed(msgspec.Struct, tag="l", array_like=True):
    held: object


@attrs.define
class Public:
    shown: object
    _hidden: int = 3


def test_structs_and_attrs_keep_their_form_in_results() -> None:
    values = [Compact(1), Compact(1, [2], 6), Listed(2), Public(1)]
    server = ucall.Server(port=0)
    server.add(lambda: values, name="give")
    with server, Client(port=server.port) as client:
        assert client.give().json == [
            {"type": "c", "heldValue": 1},
            {"type": "c", "heldValue": 1, "someList": [2], "number": 6},
            ["l", 2],
            {"shown": 1},
        ]


class Colour(enum.Enum):
    RED = "r"


class Event(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)

    at: datetime.datetime | None = None
    id: uuid.UUID | None = None
    colour: Colour | None = None
    pair: tuple[int, int] | None = None
    price: decimal.Decimal | None = None
    counts: dict[int, int] | None = None


EVENT = {
    "at": "2026-01-01T00:00:00Z",
    "id": "12345678-1234-5678-1234-567812345678",
    "colour": "r",
    "pair": [1, 2],
    "price": "1.5",
    "counts": {"1": 2},
}


@pytest.mark.parametrize("kind", holders(Event), ids=lambda kind: kind.__name__)
def test_strict_models_take_json_at_any_depth(connect_to: ConnectTo, kind: Any) -> None:
    echo = serving(kind)
    wire = connect_to(echo)
    assert "result" in wire.call("echo", [within(EVENT, kind)])
    built = held_in(echo.last)  # type: ignore[attr-defined]
    assert built == Event.model_validate_json(json.dumps(EVENT))
    for name, value in (("at", 5), ("pair", ["1", 2])):
        assert wire.error("echo", [within({name: value}, kind)])["code"] == -32602


def test_what_is_beside_a_model_stays_strict(connect_to: ConnectTo) -> None:
    wire = connect_to(serving(tuple[OrderModel, int]))
    assert wire.result("echo", [[{"quantity": "5"}, 1]]) == [{"quantity": 5}, 1]
    error = wire.error("echo", [[{"quantity": 5}, "1"]])
    assert error["data"] == "params.a[1]: expected int, got str"


@dataclasses.dataclass
class Defaults:
    name: str
    count: int = 2
    inner: Plain | None = None


def test_defaults_are_written_too(connect_to: ConnectTo) -> None:
    wire = connect_to(serving(list[Defaults]))
    assert wire.result("echo", [[{"name": "a"}]]) == [{"name": "a", "count": 2, "inner": None}]
