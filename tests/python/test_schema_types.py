"""Schemas and the server agree on valid params, and results are as their schemas say.

Some values are left out, because JSON Schema and the server are known to differ on them:
``1.0`` as an integer, strings that a format or base64 refuses, numbers of many digits, nested lists
of unequal lengths, lists of ints for an abstract kind of floats, and keys of a dict that are no
str.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import functools
import json
import re
import typing
import uuid
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple, TypedDict

import jsonschema
import msgspec
import numpy as np
import PIL.Image
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import ucall
import ucall.posix
from ucall.client import Client
from ucall.schema import describe


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Access(enum.IntFlag):
    READ = 1
    WRITE = 2


@dataclasses.dataclass
class User:
    name: str
    age: Annotated[int, msgspec.Meta(ge=0, le=200)]
    friend: User | None = None


@dataclasses.dataclass
class Sample:
    x: NDArray[np.uint8]
    next: Sample | None = None


class Movie(TypedDict):
    name: str
    year: int


class Point(NamedTuple):
    x: int
    y: float = 0.5


class Cat(msgspec.Struct, tag="cat"):
    lives: int


class Dog(msgspec.Struct, tag="dog", forbid_unknown_fields=True):
    name: str


class Item(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True, extra="forbid")
    sku: str
    count: int = pydantic.Field(1, gt=0)
    parts: list[Item] = []


#: Each with values that show the difference.
TYPES: dict[str, tuple[Any, list[Any]]] = {
    "any": (Any, [None]),
    "int": (int, [1, -5]),
    "float": (float, [1, 1.5]),
    "bool": (bool, [True]),
    "str": (str, ["", "a"]),
    "none": (None, [None]),
    "bare list": (list, [[], [1, "a"]]),
    "bare dict": (dict, [{}, {"a": 1}]),
    "bare List": (typing.List, [[], [1, "a"], {}]),  # noqa: UP006
    "bare Dict": (typing.Dict, [{}, {"a": 1}, []]),  # noqa: UP006
    "list": (list[int], [[], [1]]),
    "lists": (list[list[bool] | None], [[[True], None], [[1]]]),
    "frozen set": (frozenset[str], [["a", "a"], [1]]),
    "long tuple": (tuple[int, ...], [[], [1, 2], ["a"]]),
    "dict": (dict[str, float], [{}, {"a": 1}]),
    "optional": (int | None, [None, 1]),
    "union": (int | str | None, [None, 1, "a"]),
    "bytes": (bytes, ["AAAA", ""]),
    "bytearray": (bytearray, ["AAAA", 1]),
    "memoryview": (memoryview, ["AAAA", [1]]),
    "array": (NDArray[np.float64], [[1, 2.5], [[1]], []]),
    "uint8": (NDArray[np.uint8], [[0, 255], [256], [-1], [[3]]]),
    "matrix": (np.ndarray[tuple[int, int], np.dtype[np.int32]], [[[1]], [1], [[[1]]]]),
    "any array": (np.ndarray, [[1, 2.5], [True, False], [True, 1], [[True], [False]]]),
    "floating": (NDArray[np.floating], [[0.5], [], [True]]),
    "integer": (NDArray[np.integer], [[1], [], [[]], [2**63, 1]]),
    "unsigned": (NDArray[np.unsignedinteger], [[1], []]),
    "complex kind": (NDArray[np.complexfloating], [[1.5], []]),
    "complex": (NDArray[np.complex64], [[1.5, 1], [True], [1e39]]),
    "float16": (NDArray[np.float16], [[65519], [65520], [-65519.5], [-65520.5], [[1e300]]]),
    "float32": (NDArray[np.float32], [[3.40282356e38], [3.4028236e38], [1e38]]),
    "two dtypes": (NDArray[np.int64 | np.float32], [[1], [1, 1.5], [True]]),
    "maybe array": (NDArray[np.bool_] | None, [None, [True], [1], [True, 1]]),
    "arrays": (dict[str, list[NDArray[np.int8]]], [{"a": [[1]]}, {"a": [[128]]}, {"a": [1]}]),
    "bools": (NDArray[np.bool_], [[True], [1]]),
    "image": (PIL.Image.Image, []),
    "dataclass": (User, [{"name": "a", "age": 1}, {"name": "a", "age": -1}, {"name": "a"}]),
    "class with arrays": (Sample, [{"x": [1]}, {"x": [256]}, {"x": [True]}, {"x": [], "next": {}}]),
    "typed dict": (Movie, [{"name": "a", "year": 1}, {"name": "a"}]),
    "named tuple": (Point, [[1], [1, 2], [1, 2, 3], []]),
    "tuple": (tuple[int, str], [[1, "a"], [1], [1, "a", 2]]),
    "set": (set[int], [[1, 2], ["a"]]),
    "enum": (Colour, ["red", "green"]),
    "flags": (Access, [0, 1, 3, 4, "a"]),
    "flags in a dict": (dict[str, Access | None], [{"a": 3, "b": None}, {"a": "b"}]),
    "literal": (Literal["a", 1], ["a", 1, 2]),
    "datetime": (datetime.datetime, ["2026-01-01T00:00:00Z"]),
    "date": (datetime.date, ["2026-01-01"]),
    "time": (datetime.time, ["10:00:00"]),
    "timedelta": (datetime.timedelta, ["PT1S"]),
    "uuid": (uuid.UUID, ["5b1b7b1a-2b5f-4c0e-9f62-6c5f6f1f3c11"]),
    "decimal": (Decimal, ["1.5", 1, 1.5]),
    "tagged union": (
        Cat | Dog,
        [{"type": "cat", "lives": 9}, {"type": "dog", "name": "a", "x": 1}],
    ),
    "int keys": (dict[int, str], [{"1": "a"}]),
    "bounded": (Annotated[int, msgspec.Meta(gt=0, lt=10)], [1, 0, 10]),
    "short": (Annotated[list[int], msgspec.Meta(max_length=2)], [[1, 2], [1, 2, 3]]),
    "pattern": (Annotated[str, msgspec.Meta(pattern="^a")], ["a", "b"]),
    "model": (Item, [{"sku": "a"}, {"sku": "a", "count": 0}, {"sku": "a", "x": 1}]),
    "annotated by pydantic": (Annotated[int, pydantic.Field(ge=3)], [3, 2]),
    "bytes of pydantic": (Annotated[bytes, pydantic.Field(max_length=3)], ["AAAA", "", 1]),
}

#: Types whose schema does not check the contents of strings.
_STRINGS = {
    *("bytes", "bytearray", "memoryview", "image", "bytes of pydantic"),
    *("array", "uint8", "matrix", "bools", "any array", "floating", "unsigned", "complex kind"),
    *("integer", "complex", "float16", "float32", "two dtypes", "maybe array", "arrays"),
    "class with arrays",
    *("datetime", "date", "time", "timedelta", "uuid", "decimal", "int keys"),
}

_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-300, 300)
    | st.floats(-300, 300).filter(lambda number: not number.is_integer())
    | st.sampled_from(["", "a", "red", "cat"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["name", "age", "year", "type", "sku", "count", "x"]), inner, max_size=3
        )
    ),
    max_leaves=5,
)


@functools.cache
def _values() -> list[Any]:
    """Values that all types are tried with: making them takes longer than trying them."""
    values: list[Any] = []

    @settings(max_examples=60, deadline=None, database=None)
    @given(_JSON)
    def keep(value):
        values.append(value)

    keep()
    return values


@dataclasses.dataclass
class Stay:
    start: datetime.datetime
    ends: list[datetime.time] | None = None


def test_dates_and_times_without_a_timezone_have_their_formats():
    def book(at: datetime.datetime | None, stay: Stay) -> dict[str, datetime.time]: ...

    server = ucall.Server(port=0)
    server.add(book)
    described = describe(server)
    (method,), text = described.methods, {"type": "string"}
    assert method.params[0].schema["anyOf"][0] == text | {"format": "date-time"}
    assert method.result["additionalProperties"] == text | {"format": "time"}
    fields = described.components["Stay"]["properties"]
    assert fields["start"] == text | {"format": "date-time"}
    assert fields["ends"]["anyOf"][0]["items"] == text | {"format": "time"}
    assert fields["ends"]["default"] is None


class Judged(NamedTuple):
    """A server with a method that returns its param, and the schemas of both in each dialect."""

    server: ucall.Server
    client: Client
    params: list[Any]
    results: list[Any]


def _judged(annotation: Any) -> Judged:
    server = ucall.posix.Server(port=0)

    def take(value):
        return value

    take.__annotations__ = {"value": annotation, "return": annotation}
    server.add(take)
    server.start()
    described = describe(server)
    method, document = described.methods[0], described.openrpc()
    written, components = document["methods"][0], {"components": document["components"]}
    newer = {"components": {"schemas": described.components}}
    params = [
        jsonschema.Draft7Validator(written["params"][0]["schema"] | components),
        jsonschema.Draft202012Validator(method.params[0].schema | newer),
    ]
    results = [
        jsonschema.Draft7Validator(written["result"]["schema"] | components),
        jsonschema.Draft202012Validator(method.result | newer),
    ]
    return Judged(server, Client(port=server.port), params, results)


@pytest.fixture(scope="module")
def servers():
    made = {name: _judged(annotation) for name, (annotation, _) in TYPES.items()}
    yield made
    for server, client, *_ in made.values():
        client.close()
        server.stop()


def _is_undecided(name: str, value: Any) -> bool:
    """Whether the value has what the schema of this type does not check."""
    if name == "floating" and isinstance(value, list) and not any(map(_is_float, value)):
        return value != []
    return (name in _STRINGS and "'" in repr(value)) or _is_ragged(value)


def _is_float(value: Any) -> bool:
    return any(map(_is_float, value)) if isinstance(value, list) else isinstance(value, float)


def _is_ragged(value: Any) -> bool:
    if not isinstance(value, list):
        return False
    shapes = {len(part) if isinstance(part, list) else -1 for part in value}
    return len(shapes) > 1 or any(map(_is_ragged, value))


def _check(judged: Judged, values: list[Any]) -> None:
    """The schemas accept each value that the server accepts, and then its result."""
    with judged.client.batch() as batch:
        replies = [batch.take(value=value) for value in values]
    for value, reply in zip(values, replies, strict=True):
        assert reply.error is None or reply.error.code == -32602, reply.error
        for judge in judged.params:
            assert judge.is_valid(value) == (reply.error is None), value
        if reply.error is None:
            for judge in judged.results:
                assert judge.is_valid(reply.json), reply.json


@pytest.mark.parametrize("name", TYPES)
def test_the_schema_and_the_server_agree(name, servers):
    for judge in [*servers[name].params, *servers[name].results]:
        judge.check_schema(judge.schema)
    decided = [value for value in _values() if not _is_undecided(name, value)]
    _check(servers[name], TYPES[name][1] + decided)


def test_a_document_with_all_types_refers_to_components_that_it_has():
    server = ucall.Server(port=0)
    for name, (annotation, _) in TYPES.items():

        def take(value):
            return value

        take.__annotations__ = {"value": annotation, "return": annotation}
        server.add(functools.partial(take), name=name)
    document = describe(server).openrpc()
    text = json.dumps(document)
    references = set(re.findall(r'"(#/[^"]*)"', text))
    prefix = "#/components/schemas/"
    assert {it.removeprefix(prefix) for it in references} <= set(document["components"]["schemas"])
    assert len(references) > 10 and len(document["methods"]) == len(TYPES)
