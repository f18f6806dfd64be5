"""Type aliases: ``type X = …``, generic or not, ``NewType`` and type parameters.

This file uses the syntax of Python 3.12, so conftest.py ignores it on older versions.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, NewType, NotRequired, TypedDict

import msgspec
import numpy as np
import pydantic
import pytest
from numpy.typing import NDArray

import ucall
from harness import Wire
from ucall._functions import signatures
from ucall.types.messages import Takes
from ucall.types.registry import TypeRegistry

ConnectTo = Callable[..., Wire]


class Model(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    a: int


class Own:
    pass


type Id = int
type Ids = list[Id]
type Turned[K, V] = dict[V, K]
type Same[T] = T
type Age = Annotated[int, msgspec.Meta(ge=0)]
type Positive = Annotated[int, pydantic.Field(gt=0)]
type Floats = NDArray[np.float32]
type Objects = NDArray[np.object_]
type Models = list[Model]
type Found = Own
type Asked = ucall.Context
type Many[*Ts] = tuple[*Ts]
type Tree = list[Tree]
type Json = dict[str, Json] | list[Json] | str
type Nested[T] = list[Nested[T]] | T
type Stacked = list[Stacked] | np.ndarray
type Self = Self
type Lost = list[Nowhere]  # noqa: F821
Count = NewType("Count", Id)


def described(annotation: Any) -> Takes:
    known = TypeRegistry(1, 1)
    known.register(Own, str, lambda text: Own())

    def function(a):  # type: ignore[no-untyped-def]
        return a

    function.__annotations__["a"] = annotation
    described = signatures.describe(
        function, "function", signatures.evaluate_annotations(function, "function"), known
    )
    assert described is not None
    return described[0][2]


@pytest.mark.parametrize(
    ("annotation", "takes"),
    [
        (Id, "int"),
        (Count, "int"),
        (Ids, ("list", "int")),
        (Ids | None, ("optional", ("list", "int"))),
        (list[Count], ("list", "int")),
        (Turned[bytes, str], ("dict", "bytes")),
        (Same[Same[bool]], "bool"),
        (Asked, "context"),
    ],
)
def test_the_core_builds_aliased_types(annotation: Any, takes: Takes) -> None:
    assert described(annotation) == takes


@pytest.mark.parametrize("annotation", [Floats, Found, list[Floats], Same[Found]])
def test_decoders_build_aliased_types(annotation: Any) -> None:
    kind, inner = described(annotation)
    assert (kind if isinstance(inner, str) else inner[0]) != "text"


@pytest.mark.parametrize(
    ("annotation", "problem"),
    [
        (Self, "Self cannot be served: it is recursive without end; use Any for the inner part"),
        (Stacked, "numpy.ndarray"),
        (Lost, "Lost cannot be served: it refers to an unknown name: name 'Nowhere' is not"),
        (list[Objects], "object"),
        (Same[complex], "complex cannot be served"),
    ],
)
def test_unsupported_aliases_are_named(annotation: Any, problem: str) -> None:
    with pytest.raises(TypeError) as refused:
        described(annotation)
    assert str(refused.value).startswith("function: parameter 'a': ")
    assert problem in str(refused.value)


def test_aliases_are_served_as_their_values(connect_to: ConnectTo) -> None:
    def ages(a: Turned[Age, uuid.UUID]) -> list[int]:
        return [*a.values()]

    def models(a: Models) -> list[int]:
        return [model.a for model in a]

    def positive(a: Positive) -> int:
        return a

    def mean(a: Floats) -> float:
        return float(a.mean())

    def pair(a: Many[int, str]) -> tuple[int, str]:
        return a

    wire = connect_to(ages, models, positive, mean, pair)
    one = str(uuid.UUID(int=1))
    assert wire.result("ages", [{one: 5}]) == [5]
    told = wire.error("ages", [{one: -5}])["data"]
    assert told == f'params.a["{one}"]: expected int >= 0, got -5'
    assert wire.result("models", [[{"a": "5"}]]) == [5]
    assert wire.error("models", [[{"b": 5}]])["code"] == -32602
    assert wire.result("positive", [1]) == 1
    # Strictly, as everything outside a model.
    assert wire.error("positive", ["1"])["data"] == "params.a: expected int, got str"
    assert wire.result("mean", [[1, 2]]) == 1.5
    assert wire.result("pair", [[1, "a"]]) == [1, "a"]


def test_recursive_aliases_are_built_by_pydantic(connect_to: ConnectTo) -> None:
    def tree(a: Tree, b: Json = "", c: Nested[int] = 0) -> list[Any]:
        return [a, b, c]

    wire = connect_to(tree)
    assert wire.result("tree", [[[], [[]]], {"a": ["b"]}, [1, [2]]]) == [
        [[], [[]]],
        {"a": ["b"]},
        [1, [2]],
    ]
    for params in ([[[], 1]], [[], 5], [[], "", ["x"]]):
        assert wire.error("tree", params)["code"] == -32602


def test_models_may_be_recursive(connect_to: ConnectTo) -> None:
    class Document(pydantic.BaseModel):
        content: Json
        more: pydantic.JsonValue = None

    def depth(a: Document) -> str:
        return str(a.content)

    wire = connect_to(depth)
    assert wire.result("depth", [{"content": [{"a": "b"}], "more": [1]}]) == "[{'a': 'b'}]"
    assert wire.error("depth", [{"content": 5}])["code"] == -32602


def first[T](items: list[T]) -> T:
    return items[0]


def largest[T: (int, str)](items: list[T], *more: T) -> T:
    return max([*items, *more])


class Box[T]:
    def __init__(self, value: T) -> None:
        self.value = value

    def put(self, value: int) -> T:
        return self.value


@dataclass(slots=True, frozen=True)
class Pair[K, V]:
    key: K
    value: V | None = None


class Point[T](NamedTuple):
    x: T
    y: T


class Options(TypedDict):
    value: NotRequired[Id]
    mode: Literal["a", "b"]


def test_generic_functions_and_classes(connect_to: ConnectTo) -> None:
    def pair(a: Pair[str, int]) -> list[Any]:
        return [a.key, a.value]

    def point(a: Point[float]) -> float:
        return a.x + a.y

    def options(a: Options) -> str:
        return a["mode"]

    wire = connect_to(first, Box("inside").put, pair, point, options)
    assert wire.result("first", [["a", 1]]) == "a"
    assert wire.error("first", ["a"])["data"] == "params.items: expected list[any value], got str"
    assert wire.result("put", [1]) == "inside"
    assert wire.result("pair", [{"key": "a", "value": 1}]) == ["a", 1]
    assert wire.error("pair", [{"key": "a", "value": "b"}])["code"] == -32602
    assert wire.result("point", [[1, 2.5]]) == 3.5
    assert wire.error("options", [{"value": 1, "mode": "c"}])["code"] == -32602


def test_aliases_in_batch_functions(connect_to: ConnectTo) -> None:
    server = ucall.Server(port=0)

    @server.batch
    def double(values: Ids, contexts: list[Asked]) -> list[int]:
        return [value * 2 for value in values]

    @server.batch
    def norm(values: Floats) -> list[float]:
        return [float(row.sum()) for row in values]

    with server, Wire(server.port) as wire:
        assert wire.result("double", [21]) == 42
        assert wire.result("norm", [[1, 2]]) == 3.0


type Numbers = set[int]
type Keyed[K] = dict[K, str]
Named = NewType("Named", dict[int, str])


@dataclass
class Within:
    rows: list[Keyed[int]]


def bound[T: dict[int, str]](a: T) -> int:
    return len(a)


@pytest.mark.parametrize("annotation", [Numbers, Keyed[int], Named, Within, Same[Numbers], bound])
def test_hash_collisions_are_found_in_aliases(connect_to: ConnectTo, annotation: Any) -> None:
    def function(a: Any) -> int:
        return 0

    function.__annotations__["a"] = annotation
    wire = connect_to(bound if annotation is bound else function)
    method = "bound" if annotation is bound else "function"
    alike = [number * (2**61 - 1) for number in range(1_500)]
    keyed = {str(number): "" for number in alike}
    sent: dict[Any, Any] = {Numbers: alike, Same[Numbers]: alike, Within: {"rows": [keyed]}}
    error = wire.error(method, [sent.get(annotation, keyed)])
    assert error["data"] == "params.a: expected at most 100 keys or items that hash alike"
