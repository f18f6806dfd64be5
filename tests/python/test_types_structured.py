"""Dataclasses, dates, unions and other types that msgspec builds."""

from __future__ import annotations

import collections
import datetime
import decimal
import enum
import functools
import json
import pathlib
import typing
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple, TypedDict

import msgspec
import numpy
import pydantic
import pytest
from typing_extensions import TypeAliasType

import ucall
from harness import Wire

ConnectTo = Callable[..., Wire]

Age = Annotated[int, msgspec.Meta(ge=0, le=150)]


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Access(enum.Flag):
    READ = 1
    WRITE = 2


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


@dataclass
class User:
    name: str
    age: Age
    tags: list[str] = field(default_factory=list)
    boss: User | None = None


class Options(TypedDict, total=False):
    verbose: typing.Required[bool]
    limit: int


class Point(NamedTuple):
    x: float
    y: float = 0.0


class Circle(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    radius: float


class Square(msgspec.Struct, tag=True, rename="camel"):
    side_length: float


class Even(msgspec.Struct):
    value: int

    def __post_init__(self) -> None:
        if self.value % 2:
            raise ValueError("the value must be even")


def serving(annotation: Any) -> Callable[..., Any]:
    """A function of one parameter that returns it, and keeps it for the test."""

    def echo(a):  # type: ignore[no-untyped-def]
        echo.last = a  # type: ignore[attr-defined]
        return a

    echo.__annotations__["a"] = annotation
    return echo


DATE = datetime.date(2026, 11, 21)
MOMENT = datetime.datetime(2026, 11, 21, 1, 2, 3, 400_000, datetime.UTC)
NUMBER = uuid.UUID("12345678-1234-5678-1234-567812345678")

VALID: list[tuple[Any, Any, Any]] = [
    (User, {"name": "a", "age": 3}, User("a", 3)),
    (
        User,
        {"name": "a", "age": 3, "boss": {"name": "b", "age": 4}},
        User("a", 3, [], User("b", 4)),
    ),
    (User | None, None, None),
    (list[User], [{"name": "a", "age": 3}], [User("a", 3)]),
    (dict[str, User], {"k": {"name": "a", "age": 3}}, {"k": User("a", 3)}),
    (Options, {"verbose": True}, {"verbose": True}),
    (Options, {"verbose": True, "limit": 2**70}, {"verbose": True, "limit": 2**70}),
    (Point, [1, 2.5], Point(1, 2.5)),
    (Circle, {"type": "Circle", "radius": 1.5}, Circle(1.5)),
    (Circle | Square, {"type": "Square", "sideLength": 2.0}, Square(2.0)),
    (Colour, "red", Colour.RED),
    (Level, 2, Level.HIGH),
    (dict[Colour, int], {"red": 1}, {Colour.RED: 1}),
    (Literal["a", 1, None], 1, 1),
    (Literal[True], True, True),
    (int | str, "a", "a"),
    (int | str | None, None, None),
    (int | list[int], [1], [1]),
    (datetime.datetime, "2026-11-21T01:02:03.400000Z", MOMENT),
    (datetime.date, "2026-11-21", DATE),
    (datetime.time, "01:02:03", datetime.time(1, 2, 3)),
    (datetime.timedelta, "P1DT2S", datetime.timedelta(1, 2)),
    (uuid.UUID, str(NUMBER), NUMBER),
    (dict[uuid.UUID, int], {str(NUMBER): 1}, {NUMBER: 1}),
    (decimal.Decimal, "1.50", decimal.Decimal("1.50")),
    (set[int], [1], {1}),
    (set, [1], {1}),
    (frozenset[str], ["a"], frozenset("a")),
    (tuple[int, str], [1, "a"], (1, "a")),
    (tuple[int, ...], [1, 2], (1, 2)),
    (tuple, [1, "a"], (1, "a")),
    (dict[int, str], {"1": "a"}, {1: "a"}),
    (Age, 150, 150),
    (Annotated[str, msgspec.Meta(min_length=1, pattern="^a")], "ab", "ab"),
    (list[Annotated[float, "a note"]], [1.5], [1.5]),
    (collections.abc.Sequence[int], [1], [1]),
    (collections.deque[datetime.date], ["2026-11-21"], collections.deque([DATE])),
    (collections.deque, [1, "a"], collections.deque([1, "a"])),
    (pathlib.PurePosixPath, "/a/b", pathlib.PurePosixPath("/a/b")),
    (dict[pathlib.Path, int], {"a": 1}, {pathlib.Path("a"): 1}),
    (numpy.float32, 1.5, numpy.float32(1.5)),
    (list[numpy.uint8], [255], [numpy.uint8(255)]),
    (numpy.bool_, True, numpy.bool_(True)),
    (tuple[bytes, bytearray], ["AAE=", "AA=="], (b"\0\1", bytearray(1))),
    (list[bytes | None], ["AAE=", None], [b"\0\1", None]),
]  # fmt: skip


@pytest.mark.parametrize(("annotation", "given", "built"), VALID)
def test_values_are_built_and_written(
    connect_to: ConnectTo, annotation: Any, given: Any, built: Any
) -> None:
    echo = serving(annotation)
    wire = connect_to(echo)
    result = wire.result("echo", {"a": given})
    last = echo.last  # type: ignore[attr-defined]
    assert last == built and type(last) is type(built)
    again = wire.result("echo", [result])
    assert again == result and echo.last == built  # type: ignore[attr-defined]
    if not isinstance(built, (User, list, dict)) or isinstance(given, list):
        assert result == given or annotation == list[User]


MISMATCHES: list[tuple[Any, Any, str]] = [
    (User, {"name": "a", "age": "x"}, ".age: expected int >= 0 and <= 150, got str"),
    (User, {"name": "a", "age": -1}, ".age: expected int >= 0 and <= 150, got -1"),
    (User, {"name": "a", "age": 1.0}, ".age: expected int >= 0 and <= 150, got float"),
    (User, {"name": "a", "age": True}, ".age: expected int >= 0 and <= 150, got bool"),
    (User, {"name": "a"}, ".age: missing, expected int >= 0 and <= 150"),
    (Access, 4, ": expected flags of 1, 2, got 4"),
    (User, {"name": "a", "age": 1, "tags": ["a", 5]}, ".tags[1]: expected str, got int"),
    (User, {"name": "a", "age": 1, "boss": {"name": 1, "age": 2}},
     ".boss.name: expected str, got int"),
    (User, [], ": expected User (dict), got list"),
    (User, None, ": expected User (dict), got None"),
    (User | None, 5, ": expected User (dict) | None, got int"),
    (User | None, {"name": 5, "age": 1}, ".name: expected str, got int"),
    (list[User], [{"name": "a", "age": 1}, {"age": 1}], "[1].name: missing, expected str"),
    (dict[str, User], {"a b": {"name": 5, "age": 1}}, '["a b"].name: expected str, got int'),
    (dict[str, set[int]], {"a": [1], "b": [None]}, ".b[0]: expected int, got None"),
    (dict[int, str], {"a": "b"}, ": key: expected int, got str"),
    (Options, {}, ".verbose: missing, expected bool"),
    (Point, [], ": expected Point (list), got list of length 0"),
    (Point, ["a"], "[0]: expected float, got str"),
    (Circle, {"type": "Circle", "radius": 1, "x": 1}, ".x: unexpected"),
    (Circle | Square, {"type": "Oval"}, ".type: invalid value 'Oval'"),
    (Even, {"value": 3}, ": the value must be even"),
    (list[Even], [{"value": 3}], "[0]: the value must be even"),
    (Colour, "green", ": expected one of 'blue', 'red', got 'green'"),
    (Colour, 1, ": expected one of 'blue', 'red', got int"),
    (Level, 3, ": expected one of 1, 2, got 3"),
    (Literal["a", "b"], "c", ": expected one of 'a', 'b', got 'c'"),
    (int | str, 1.5, ": expected int | str, got float"),
    (datetime.datetime, "soon", ": expected datetime (RFC 3339), got 'soon'"),
    (datetime.date, 5, ": expected date (RFC 3339), got int"),
    (datetime.timedelta, "1s", ": expected timedelta (ISO 8601), got '1s'"),
    (uuid.UUID, "x" * 99, f": expected UUID, got '{'x' * 59}…"),
    (decimal.Decimal, "x", ": expected Decimal, got 'x'"),
    (set[int], ["a"], "[0]: expected int, got str"),
    (collections.deque[int], [1, "a"], "[1]: expected int, got str"),
    (collections.deque[int], 5, ": expected list[int], got int"),
    (pathlib.Path, 5, ": expected path (str), got int"),
    (pathlib.Path, "\0", ": expected path (str) without NUL"),
    (numpy.uint8, 256, ": expected uint8, got 256"),
    (numpy.uint8, 1.0, ": expected uint8, got float"),
    (numpy.float32, 1e39, ": expected float32, got 1e+39"),
    (numpy.bool_, 1, ": expected bool, got int"),
    (tuple[int, str], [1], ": expected tuple[int, str] (list of length 2), got list of length 1"),
    (tuple[int, ...], [1, "a"], "[1]: expected int, got str"),
    (list[bytes], ["?"], "[0]: expected bytes in base64, got a str that is no base64"),
    (set[bytes | None], ["?"], "[0]: expected bytes in base64 | None, got '?'"),
    (Age, 151, ": expected int >= 0 and <= 150, got 151"),
    (Annotated[str, msgspec.Meta(pattern="^a")], "b", ": expected str matching '^a', got 'b'"),
    (Annotated[list[int], msgspec.Meta(max_length=1)], [1, 2],
     ": expected list[int] of length <= 1, got list of length 2"),
    (Annotated[float, msgspec.Meta(multiple_of=0.5)], 0.7,
     ": expected float a multiple of 0.5, got 0.7"),
]  # fmt: skip


@pytest.mark.parametrize(("annotation", "given", "problem"), MISMATCHES)
def test_mismatches_are_named(
    connect_to: ConnectTo, annotation: Any, given: Any, problem: str
) -> None:
    wire = connect_to(serving(annotation))
    error = wire.error("echo", {"a": given})
    assert (error["code"], error["data"]) == (-32602, "params.a" + problem)


@pytest.mark.parametrize(
    ("annotation", "text", "problem"),
    [
        (User, '{"name":"a","age":1e400}', ".age: number out of range"),
        (User, '{"name":"a","age":DIGITS}', ".age: integer value out of range"),
        (User, '{"name":1,"age":1e400}', ".name: expected str, got int"),
        (User, '{"more":1e400,"age":1}', ".name: missing, expected str"),
        (int | float, "1e400", ": number out of range"),
        (Annotated[float, msgspec.Meta(ge=0)], "-1e400", ": number out of range"),
        (Literal[1], "DIGITS", ": number out of range"),
        (Level, "1e400", ": number out of range"),
        (set[int], "[1, 1e400]", "[1]: number out of range"),
        (dict[int, float], '{"1": 1e400}', '["..."]: number out of range'),
    ],
)
def test_numbers_out_of_range_are_named(
    connect_to: ConnectTo, annotation: Any, text: str, problem: str
) -> None:
    wire = connect_to(serving(annotation))
    text = text.replace("DIGITS", "1" * 5_000)
    wire.send(f'{{"jsonrpc":"2.0","id":1,"method":"echo","params":[{text}]}}'.encode())
    error = json.loads(wire.line())["error"]
    assert (error["code"], error.get("data")) == (-32602, "params.a" + problem)


# The form of ``type Json = …`` before Python 3.12.
Json = TypeAliasType("Json", dict[str, "Json"] | list["Json"] | str | float | bool | None)
Deep = TypeAliasType("Deep", list["Deep"] | int)


@dataclass
class Document:
    body: Json
    more: pydantic.JsonValue = None


def test_recursive_names_are_built_by_pydantic(connect_to: ConnectTo) -> None:
    def deep(a: Deep, b: Json = None) -> list[Any]:
        return [a, b]

    def write(document: Document) -> Document:
        return document

    wire = connect_to(deep, write)
    assert wire.result("deep", [[1, [[2]], []], {"a": [None, 1.5]}]) == [
        [1, [[2]], []],
        {"a": [None, 1.5]},
    ]
    error = wire.error("deep", [[1, [["x"]]]])
    assert error["code"] == -32602
    assert (
        error["data"]
        == "params.a[1][0][0]: expected list, got str\nparams.a[1][0][0]: expected int, got str"
    )
    given = {"body": [{"a": ["b", True]}], "more": {"c": 1}}
    assert wire.result("write", [given]) == given


def test_recursive_names_with_parts_that_pydantic_does_not_check_are_refused() -> None:
    counts = TypeAliasType("counts", list["counts"] | Age)
    arrays = TypeAliasType("arrays", list["arrays"] | numpy.ndarray)
    for annotation in (counts, arrays):
        with pytest.raises(TypeError, match=r"thing: parameter 'a': .* cannot be served: "):
            ucall.Server(port=0).add(serving(annotation), name="thing")


def test_a_missing_param_names_its_type(connect_to: ConnectTo) -> None:
    wire = connect_to(serving(Age))
    assert wire.error("echo")["data"] == "params.a: missing, expected int >= 0 and <= 150"


def test_the_failing_key_is_found_in_large_values(connect_to: ConnectTo) -> None:
    wire = connect_to(serving(dict[str, Point]))
    given: dict[str, Any] = {f"k{i}": [1] for i in range(5_000)} | {"last": ["x"]}
    assert wire.error("echo", [given])["data"] == "params.a.last[0]: expected float, got str"


REFUSED: list[tuple[Any, str]] = [
    (complex, "complex cannot be served"),
    (set[complex], "complex cannot be served"),
    (dict[complex, int], "complex cannot be served"),
    (dict[str], "dict[str] cannot be served"),  # type: ignore[misc]
    (int | complex, "int | complex cannot be served: type unions containing a custom type"),
    (User | Options, "cannot be served: type unions may not contain more than one dict-like type"),
    (Annotated[int, range(3)], "typing.Annotated[int, range(0, 3)] cannot be served"),
    (set[Annotated[int, range(3)]], "typing.Annotated[int, range(0, 3)] cannot be served"),
    (Callable[[], int], "collections.abc.Callable[[], int] cannot be served"),
    (collections.abc.Iterator[int], "collections.abc.Iterator[int] cannot be served"),
    (range, "range cannot be served"),
    (dict[numpy.int64, int], "cannot be served: use int, float or str for its keys"),
    (numpy.complex64, "complex64 cannot be served"),
    (typing.NoReturn, "typing.NoReturn cannot be served"),
    (Annotated[int, msgspec.Meta(pattern="a")], "cannot be served: can only set pattern on a str"),
    (enum.IntEnum("Huge", {"MOST": 2**64 - 1}), "cannot be served: integer values > (2**63 - 1)"),
]


@pytest.mark.parametrize(("annotation", "problem"), REFUSED)
def test_unsupported_types_are_refused_at_registration(annotation: Any, problem: str) -> None:
    with pytest.raises(TypeError) as refused:
        ucall.Server(port=0).add(serving(annotation), name="thing")
    assert str(refused.value).startswith("thing: parameter 'a': ")
    assert problem in str(refused.value)


@dataclass
class Inner:
    value: complex


@dataclass
class Outer:
    inner: list[Inner]


def test_the_unsupported_field_is_named() -> None:
    def function(outer: Outer) -> None: ...

    with pytest.raises(TypeError) as refused:
        ucall.Server(port=0).add(function)
    expected = "function: parameter 'outer': Inner.value: complex cannot be served"
    assert str(refused.value) == expected


def test_names_are_found_where_the_function_is_defined(connect_to: ConnectTo) -> None:
    @dataclass
    class Local:
        value: int

    def plain(a: Local) -> int:
        return a.value

    class Service:
        def method(self, a: Local, *rest: Local, **more: Local) -> list[int]:
            return [one.value for one in (a, *rest, *more.values())]

    server = ucall.Server(port=0)
    server.add(plain)
    server.add(Service().method)
    server.add(functools.partial(plain), name="partial")
    with server, Wire(server.port) as wire:
        one, two = {"value": 1}, {"value": 2}
        assert wire.result("plain", [one]) == 1
        assert wire.result("partial", [one]) == 1
        assert wire.result("method", [one, two]) == [1, 2]
        assert wire.result("method", {"a": one, "b": two}) == [1, 2]
        assert wire.error("method", [one, {}])["data"] == "params[1].value: missing, expected int"
        error = wire.error("method", {"a": one, "b": 1})
        assert error["data"] == "params.b: expected Local (dict), got int"


def test_defaults_are_as_they_were_written(connect_to: ConnectTo) -> None:
    def paint(colour: Colour = Colour.BLUE, at: Point | None = None) -> list[object]:
        return [colour, at]

    wire = connect_to(paint)
    assert wire.result("paint") == ["blue", None]
    assert wire.result("paint", {"at": [1]}) == ["blue", [1.0, 0.0]]


def giving(value: object) -> Callable[[], object]:
    def give() -> object:
        return value

    return give


@dataclass
class Holder:
    value: object


RESULTS: list[tuple[object, Any]] = [
    (User("a", 1), {"name": "a", "age": 1, "tags": [], "boss": None}),
    ({"u": [User("a", 1)]}, {"u": [{"name": "a", "age": 1, "tags": [], "boss": None}]}),
    (Square(1.5), {"type": "Square", "sideLength": 1.5}),
    ([Colour.RED, Level.HIGH, Point(1)], ["red", 2, [1, 0.0]]),
    ({Colour.RED: 1, NUMBER: 2, DATE: 3}, {"red": 1, str(NUMBER): 2, "2026-11-21": 3}),
    (MOMENT, "2026-11-21T01:02:03.400000Z"),
    (datetime.datetime(2026, 1, 2), "2026-01-02T00:00:00"),
    (datetime.timedelta(0, 1), "PT1S"),
    (decimal.Decimal("1.10"), "1.10"),
    ({3}, [3]),
    ([range(2), collections.deque([DATE])], [[0, 1], ["2026-11-21"]]),
    ({pathlib.PurePosixPath("a"): pathlib.PurePosixPath("/b")}, {"a": "/b"}),
    (frozenset(), []),
    ({"all": {NUMBER}}, {"all": [str(NUMBER)]}),
    ([msgspec.Raw(b"[1]"), Holder(msgspec.Raw(b"2.0"))], [[1], {"value": 2.0}]),
]


@pytest.mark.parametrize(("value", "written"), RESULTS)
def test_results_need_no_annotation(connect_to: ConnectTo, value: object, written: Any) -> None:
    assert connect_to(giving(value)).result("give") == written


UNWRITABLE: list[tuple[object, str]] = [
    (Holder(float("nan")), "result.value: NaN cannot be written as JSON"),
    ([Holder(1j)], "result[0].value: complex cannot be written as JSON"),
    ({1j}, "result[0]: complex cannot be written as JSON"),
    (Holder("\ud800"), "result.value: a str with a lone surrogate cannot be written as JSON"),
    (Holder(10**5000), "result.value: an int of too many digits cannot be written as JSON"),
    (
        msgspec.Raw(b"[1"),
        "result: msgspec.Raw cannot be written as JSON: Input data was truncated",
    ),
]


@pytest.mark.parametrize(("value", "problem"), UNWRITABLE)
def test_unwritable_results_are_named(connect_to: ConnectTo, value: object, problem: str) -> None:
    error = connect_to(giving(value)).error("give")
    assert (error["code"], error["data"]) == (-32603, problem)


def test_bytes_in_a_class_are_written_whole(connect_to: ConnectTo) -> None:
    reply = connect_to(giving(Holder(bytes(range(256)) * 400))).result("give")
    assert len(reply["value"]) == 136_536


def test_an_error_may_carry_rich_data(connect_to: ConnectTo) -> None:
    def fail() -> None:
        raise ucall.RPCError(1, "no", User("a", 1))

    assert connect_to(fail).error("fail")["data"]["name"] == "a"


def test_escapes_and_duplicates_are_those_of_json(connect_to: ConnectTo) -> None:
    wire = connect_to(serving(User))
    text = r'{"name":"\u00e4\ud83d\ude00","age":1,"age":2}'
    wire.send(b'{"jsonrpc":"2.0","id":1,"method":"echo","params":[ %s ]}' % text.encode())
    result = json.loads(wire.line())["result"]
    assert (result["name"], result["age"]) == ("ä😀", 2)


PATH_LIKE = " - at `$.boss[0]`"


@pytest.mark.parametrize(
    ("annotation", "given", "problem"),
    [
        (Colour, PATH_LIKE, f": expected one of 'blue', 'red', got '{PATH_LIKE}'"),
        (Colour, PATH_LIKE * 250_000, ": expected one of 'blue', 'red', got '" + PATH_LIKE),
        (User, {"name": "a", "age": 1, "tags": [PATH_LIKE, 1]}, ".tags[1]: expected str, got int"),
        (Circle, {"type": "Circle", "radius": 1, "a" * 5_000 + PATH_LIKE: 1}, "unexpected"),
        (Circle, {"type": "Circle", "radius": 1, PATH_LIKE * 250_000: 1}, ": "),
    ],
)
def test_input_text_is_not_mistaken_for_a_path(
    connect_to: ConnectTo, annotation: Any, given: Any, problem: str
) -> None:
    """A long text with many candidates takes no quadratic time."""
    error = connect_to(serving(annotation)).error("echo", [given])
    assert error["code"] == -32602 and error["data"].startswith("params.a")
    assert problem in error["data"]
