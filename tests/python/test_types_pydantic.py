"""pydantic's models and annotated types."""

from __future__ import annotations

import datetime
import decimal
import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pydantic
import pytest
from annotated_types import Gt
from serving import Serve

import ucall
from harness import Wire
from ucall.client import Client

ConnectTo = Callable[..., Wire]


class Address(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")

    street: str = pydantic.Field(alias="Street", min_length=2)
    number: int = pydantic.Field(gt=0)


class Person(pydantic.BaseModel):
    name: str
    born: datetime.date | None = None
    addresses: list[Address] = []
    site: pydantic.HttpUrl | None = None


@pydantic.dataclasses.dataclass
class Size:
    width: int


@dataclass
class Order:
    person: Person


def greet(person: Person) -> Person:
    assert isinstance(person, Person)
    return person


def resize(
    size: Size, by: pydantic.PositiveInt = 1, many: set[Annotated[int, Gt(0)]] = frozenset()
) -> list[object]:
    return [Size(size.width * by), {size.width: Size(1)}]


PERSON = {
    "name": "a",
    "born": "2026-11-21",
    "addresses": [{"Street": "High", "number": 1}],
    "site": "https://example.com/",
}


def test_models_round_trip(connect_to: ConnectTo) -> None:
    assert connect_to(greet).result("greet", [PERSON]) == PERSON


def test_pydantic_dataclasses_round_trip(connect_to: ConnectTo) -> None:
    assert connect_to(resize).result("resize", [{"width": 2}, 3]) == [
        {"width": 6},
        {"2": {"width": 1}},
    ]


class Limits(pydantic.BaseModel):
    text: str = pydantic.Field("", max_length=3, pattern="^[a-z]*$")
    items: list[int] = pydantic.Field([1], min_length=1)
    digits: decimal.Decimal = pydantic.Field(decimal.Decimal(0), decimal_places=1)
    past: pydantic.PastDate | None = None
    aware: pydantic.AwareDatetime | None = None


MISMATCHES: list[tuple[Any, str]] = [
    ({}, ".name: missing"),
    ([], ": expected dict, got list"),
    ({"name": 5}, ".name: expected str, got int"),
    ({"name": "a", "born": "x"}, ".born: expected date or datetime, got 'x'"),
    ({"name": "a", "addresses": [{"Street": "High", "number": 0}]},
     ".addresses[0].number: expected a value greater than 0, got 0"),
    ({"name": "a", "addresses": [{"Street": "H", "number": 1}]},
     ".addresses[0].Street: expected at least 2 characters, got 'H'"),
    ({"name": "a", "addresses": [{"Street": "High", "number": "x", "more": 1}]},
     ".addresses[0].number: expected int, got 'x'\nparams.person.addresses[0].more: unexpected"),
    ({"name": "a", "addresses": [{"Street": "High", "number": 1, "more": 1}]},
     ".addresses[0].more: unexpected"),
    ({"name": "a", "site": "x"}, ".site: expected URL"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "problem"), MISMATCHES)
def test_mismatches_are_named(connect_to: ConnectTo, given: Any, problem: str) -> None:
    error = connect_to(greet).error("greet", {"person": given})
    assert error["code"] == -32602
    assert error["data"].startswith("params.person" + problem)


@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [
        ("text", "abcd", "at most 3 characters, got 'abcd'"),
        ("text", "A", "text that matches pattern '^[a-z]*$', got 'A'"),
        ("items", [], "at least 1 item, got list of length 0"),
        ("digits", "1.23", "no more than 1 decimal place, got '1.23'"),
        ("past", "2999-01-01", "a value in the past, got '2999-01-01'"),
        ("aware", "2026-01-31T12:00:00", "timezone info, got '2026-01-31T12:00:00'"),
    ],
)
def test_messages_are_grammatical(
    connect_to: ConnectTo, field: str, value: Any, problem: str
) -> None:
    def check(limits: Limits) -> None: ...

    error = connect_to(check).error("check", [{field: value}])
    assert error["data"] == f"params.limits.{field}: expected {problem}"


def test_annotated_types_are_strict(connect_to: ConnectTo) -> None:
    wire = connect_to(resize)
    size = {"width": 1}
    assert wire.error("resize", [size, 0])["data"] == (
        "params.by: expected a value greater than 0, got 0"
    )
    assert wire.error("resize", [size, "1"])["data"] == "params.by: expected int, got str"
    assert wire.error("resize", [size, 1.0])["data"] == "params.by: expected int, got float"
    assert wire.error("resize", [size, 1, [0]])["data"].startswith("params.many[0]: expected a val")


ShortBytes = Annotated[bytes, pydantic.Field(max_length=3)]


@dataclass
class Part:
    data: bytes


@pytest.mark.parametrize(
    ("annotation", "given", "built"),
    [
        (ShortBytes, b"\xfb\xff", b"\xfb\xff"),
        (ShortBytes | None, None, None),
        (dict[str, ShortBytes], {"a": b"abc"}, {"a": b"abc"}),
        (tuple[Person, bytes], [{"name": "a"}, b"\xff"], (Person(name="a"), b"\xff")),
        (Annotated[list[Part], pydantic.Field(min_length=1)], [{"data": b"\xff"}], [Part(b"\xff")]),
        (pydantic.Base64Bytes, b"\xff", b"\xff"),
        (pydantic.Base64Str, b"ab", "ab"),
    ],
)
def test_bytes_outside_models_are_base64(
    serve_once: Serve, annotation: Any, given: Any, built: Any
) -> None:
    received: list[Any] = []

    def take(a: Any) -> Any:
        received.append(a)
        return a if isinstance(a, bytes) else None

    take.__annotations__["a"] = annotation
    with Client(port=serve_once(take).port) as client:
        reply = client.take(given)
    assert received == [built]
    assert not isinstance(built, bytes) or reply.bytes == built


def test_texts_that_are_no_base64_are_refused(connect_to: ConnectTo) -> None:
    def take(a: ShortBytes) -> None: ...

    wire = connect_to(take)
    for given in ("?", "YWI=\n"):
        error = wire.error("take", [given])
        assert error["code"] == -32602
        assert error["data"] == f"params.a: expected valid base64, got {given!r}"
    assert wire.error("take", ["YWJjZA=="])["data"] == (
        "params.a: expected at most 3 bytes, got 'YWJjZA=='"
    )


@pytest.mark.parametrize(
    "annotation", [pydantic.PositiveFloat, list[pydantic.PositiveFloat], tuple[Person, float]]
)
def test_numbers_outside_models_are_finite(connect_to: ConnectTo, annotation: Any) -> None:
    def take(a: Any) -> None: ...

    take.__annotations__["a"] = annotation
    wire = connect_to(take)
    texts = {pydantic.PositiveFloat: "1e400", list[pydantic.PositiveFloat]: "[1, 1e400]"}
    text = texts.get(annotation, '[{"name":"a"}, -1e400]')
    wire.send(f'{{"jsonrpc":"2.0","id":1,"method":"take","params":[{text}]}}'.encode())
    error = json.loads(wire.line())["error"]
    assert error["code"] == -32602 and ": expected finite number, got " in error["data"]


class Upload(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(val_json_bytes="base64", ser_json_bytes="base64")

    data: bytes


@dataclass
class Uploads:
    first: Upload


def test_a_model_says_whether_its_bytes_are_base64(connect_to: ConnectTo) -> None:
    def alone(upload: Upload) -> Upload:
        assert upload.data == b"\xfb\xff"
        return upload

    def within(uploads: Uploads) -> Upload:
        return alone(uploads.first)

    wire = connect_to(alone, within)
    # pydantic reads both alphabets, and writes that of URLs.
    for text in ("+/8=", "-_8="):
        assert wire.result("alone", [{"data": text}]) == {"data": "-_8="}
        assert wire.result("within", [{"first": {"data": text}}]) == {"data": "-_8="}


def test_a_dataclass_may_hold_a_model(connect_to: ConnectTo) -> None:
    def order(order: Order) -> Order:
        assert isinstance(order.person, Person)
        return order

    wire = connect_to(order)
    assert wire.result("order", [{"person": PERSON}]) == {"person": PERSON}
    error = wire.error("order", [{"person": {"name": 1}}])
    assert error["data"] == "params.order.person.name: expected str, got int"


class Deferred(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(defer_build=True)
    numbers: list[int]


@dataclass
class HoldsDeferred:
    deferred: Deferred


def test_models_that_pydantic_builds_at_their_first_use(connect_to: ConnectTo) -> None:
    def take(one: Deferred, more: list[Deferred], held: HoldsDeferred) -> list[object]:
        return [one, more, held]

    given = {"numbers": [1]}
    wire = connect_to(take)
    assert wire.result("take", [given, [given], {"deferred": given}]) == [
        given,
        [given],
        {"deferred": given},
    ]


class Unfinished(pydantic.BaseModel):
    rest: Later  # noqa: F821


@pytest.mark.parametrize(
    ("annotation", "problem"),
    [
        (Annotated[range, pydantic.Field(gt=0)], "range"),
        (Annotated[str, pydantic.Field(pattern="(?=a)")], "look-ahead"),
        (list[Unfinished], "Later"),
    ],
)
def test_unsupported_annotations_are_refused_at_registration(annotation: Any, problem: str) -> None:
    def function(a: Any) -> None: ...

    function.__annotations__["a"] = annotation
    found = rf"function: parameter 'a': .* cannot be served: .*{problem}"
    with pytest.raises(TypeError, match=found):
        ucall.Server(port=0).add(function)


class Numbers(pydantic.BaseModel):
    many: list[int | bool | None] = []
    named: dict[str, int] = {}
    nested: list[Numbers] = []


@dataclass
class Holder:
    numbers: Numbers


def total(numbers: Numbers) -> int:
    return len(numbers.many) + len(numbers.named)


def held(holder: Holder) -> int:
    return total(holder.numbers)


@pytest.mark.parametrize(("method", "wrap"), [("total", "{}"), ("held", '{{"numbers":{}}}')])
def test_collected_errors_are_bounded(connect_to: ConnectTo, method: str, wrap: str) -> None:
    """Each error would take hundreds of bytes, for two bytes of input."""
    wire = connect_to(total, held)

    def ask(numbers: str) -> str:
        params = wrap.format(numbers)
        wire.send(f'{{"jsonrpc":"2.0","method":"{method}","params":[{params}],"id":1}}'.encode())
        data: str = json.loads(wire.line())["error"]["data"]
        return data

    many = ",".join(['"a"'] * 100_000)
    for numbers in (f'{{"many":[{many}]}}', f'{{"nested":[{{"many":[{many}]}}]}}'):
        assert re.search(r"\[0]\.int: .*\n.*\[0]\.bool: expected bool, got 'a'$", ask(numbers))
    named = ",".join(f'"{number}":[]' for number in range(1_000))
    listed = ask(f'{{"named":{{{named}}}}}').split("\n")
    assert listed[-2].endswith(f"named.{len(listed) - 2}: expected int, got list")
    assert listed[-1] == "and more"
    assert "invalid in 1001 places" in ask(f'{{"named":{{{named},"a":[]}}}}')
    assert wire.result(method, [json.loads(wrap.format('{"many":[1,null],"named":{"a":1}}'))]) == 3


class Cat(pydantic.BaseModel):
    kind: Literal["cat"]


class Dog(pydantic.BaseModel):
    kind: Literal["dog"]


class Owner(pydantic.BaseModel):
    pet: Annotated[Cat | Dog, pydantic.Field(discriminator="kind")]


def own(owner: Owner) -> None: ...


def test_a_long_text_in_a_message_is_searched_once(connect_to: ConnectTo) -> None:
    kind = " should be " * 300_000 + "\n"
    error = connect_to(own).error("own", [{"pet": {"kind": kind}}])
    assert error["code"] == -32602 and error["data"].startswith("params.owner.pet: input tag ")


class Anything(pydantic.BaseModel):
    value: Any
    raw: Any = None


class Lenient(Anything):
    model_config = pydantic.ConfigDict(ser_json_inf_nan="null")


def test_nan_in_fields_without_a_type_cannot_be_written(connect_to: ConnectTo) -> None:
    def give(form: str) -> Any:
        kind = Lenient if form == "lenient" else Anything
        value = {None: 1, math.nan: 2} if form == "keys" else [1.5, math.nan]
        return [kind(value=value)]

    wire = connect_to(give)
    error = wire.error("give", ["values"])
    assert error["data"] == "result[0].value[1]: NaN cannot be written as JSON"
    assert wire.result("give", ["lenient"]) == [{"value": [1.5, None], "raw": None}]
    (written,) = wire.result("give", ["keys"])
    assert list(written["value"].values()) == [1, 2]
