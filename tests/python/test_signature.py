"""Signatures that can be served, and those that registration refuses."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import (  # noqa: UP035
    TYPE_CHECKING,
    Annotated,
    Any,
    Dict,
    List,
    Optional,
    Required,
    TypedDict,
    Union,
    Unpack,
)

import attrs
import msgspec
import pydantic
import pytest

from harness import Wire
from ucall import Context, Server
from ucall._functions import signatures
from ucall.schema import describe
from ucall.types.messages import Takes
from ucall.types.registry import TypeRegistry

if TYPE_CHECKING:
    from decimal import Decimal

ConnectTo = Callable[..., Wire]


def _described(function):
    hints = signatures.evaluate_annotations(function, "function")
    return signatures.describe(function, "function", hints, TypeRegistry(1, 1))


def described(annotation: Any) -> Takes:
    def function(a):  # type: ignore[no-untyped-def]
        return a

    function.__annotations__["a"] = annotation
    described = _described(function)
    assert described is not None
    return described[0][2]


DESCRIBED: list[tuple[Any, Takes]] = [
    (int, "int"),
    ("int", "int"),
    (None, "none"),
    (Any, "any"),
    (object, "any"),
    (list, ("list", "any")),
    (List, ("list", "any")),  # noqa: UP006
    (list[Any], ("list", "any")),
    ("list['int | None']", ("list", ("optional", "int"))),
    (Dict, ("dict", "any")),  # noqa: UP006
    (Dict[str, List[int]], ("dict", ("list", "int"))),  # noqa: UP006
    (dict[str, dict[str, bytes]], ("dict", ("dict", "bytes"))),
    (Optional[str], ("optional", "str")),  # noqa: UP045
    (Union[None, str], ("optional", "str")),  # noqa: UP007
    (None | list[str], ("optional", ("list", "str"))),
    (Annotated[int, "how many"], "int"),
]


@pytest.mark.parametrize(("annotation", "takes"), DESCRIBED)
def test_annotations_are_understood(annotation: Any, takes: Takes) -> None:
    assert described(annotation) == takes


REFUSED: list[tuple[Any, str]] = [
    (complex, "complex"),
    (list[complex], "complex"),
    (dict[str, set[complex]], "complex"),
    (Annotated[int, range(3)], "typing.Annotated[int, range(0, 3)]"),
    (Callable[[], int], "collections.abc.Callable[[], int]"),
    (5, "5"),
    ("not a type", "not a type"),
]


@pytest.mark.parametrize(("annotation", "shown"), REFUSED)
def test_unsupported_annotations_are_named(annotation: Any, shown: str) -> None:
    with pytest.raises(TypeError) as refused:
        described(annotation)
    assert str(refused.value) == f"function: parameter 'a': {shown} cannot be served"


def test_an_unknown_name_is_reported() -> None:
    def function(a: Nowhere) -> None:  # type: ignore[name-defined]  # noqa: F821
        pass

    with pytest.raises(TypeError, match=r"function: .*'Nowhere' is not defined"):
        _described(function)


def test_the_return_annotation_is_ignored() -> None:
    def function(a: int) -> Decimal:
        raise NotImplementedError

    assert _described(function) is not None


async def coroutine(a: int) -> int:
    return a


class Called:
    async def __call__(self) -> None:
        pass


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (Called, "is a class"),
        (int, "is a class"),
        (5, "int cannot be called"),
    ],
)
def test_callables_that_cannot_be_served_are_rejected(function: Any, problem: str) -> None:
    server = Server(port=0)
    with pytest.raises(TypeError, match=f"^thing: .*{problem}"):
        server.add(function, name="thing")


@pytest.mark.parametrize("function", [coroutine, functools.partial(coroutine, 1), Called()])
def test_coroutine_functions_are_detected_in_every_form(function: Any) -> None:
    server = Server(port=0)
    server.add(function, name="thing")


@pytest.mark.parametrize("function", [lambda: 1, functools.partial(max, 1), Called()])
def test_a_function_without_a_name_needs_one(function: Any) -> None:
    with pytest.raises(TypeError, match="name="):
        Server(port=0).add(function)


class Options(TypedDict, total=False):
    size: Required[int]
    names: list[str]
    colour: str


class Query(type(pydantic.Field())):  # type: ignore[misc]
    """As FastAPI's."""


Depends = type("Depends", (), {"__module__": "fastapi.params"})


@pytest.mark.parametrize(
    ("default", "remedy"),
    [
        (pydantic.Field(default=10, le=100), "write Annotated[T, Field(…)] = default"),
        (Query(default=10), "write Annotated[T, Query(…)] = default"),
        (dataclasses.field(default=10), "is for the fields of classes"),
        (msgspec.field(default=10), "is for the fields of classes"),
        (attrs.field(default=10), "is for the fields of classes"),
        (Depends(), "call it in the function"),
    ],
)
def test_descriptions_of_fields_are_no_defaults(default: Any, remedy: str) -> None:
    def search(text: str, limit: int = default) -> None: ...

    with pytest.raises(TypeError) as refused:
        Server(port=0).add(search)
    problem = str(refused.value)
    assert problem.startswith("search: parameter 'limit': int cannot be served: its default is the")
    assert remedy in problem


def test_a_default_in_metadata_is_refused() -> None:
    def search(limit: Annotated[int, pydantic.Field(default=10)]) -> None: ...

    with pytest.raises(TypeError, match="its default is in its metadata: write it after"):
        Server(port=0).add(search)


def test_unpacked_keywords_are_parameters(connect_to: ConnectTo) -> None:
    def search(text: str, *more: str, **options: Unpack[Options]) -> list[Any]:
        return [text, options]

    async def later(ctx: Context, *, limit: int = 3, **options: Unpack[Options]) -> list[Any]:
        return [limit, options]

    wire = connect_to(search, later)
    every = {"size": 1, "names": ["a"], "colour": "red"}
    assert wire.result("search", {"text": "x", **every}) == ["x", every]
    assert wire.result("search", {"text": "x", "size": 1}) == ["x", {"size": 1}]
    assert wire.result("later", {"names": [], "size": 2}) == [3, {"names": [], "size": 2}]
    wrong = {"text": 1, "names": ["a", 1], "shape": 1}
    assert wire.error("search", wrong)["data"].split("\n") == [
        "params.text: expected str, got int",
        "params.names[1]: expected str, got int",
        "params.shape: unexpected, expected text, size, names, colour",
        "params.size: missing, expected int",
    ]
    assert wire.error("search", ["x"])["data"] == "params.size: missing, expected int"
    server = Server(port=0)
    server.add(search)
    (method,) = describe(server).methods
    assert [(it.name, it.is_required) for it in method.params or ()] == [
        ("text", True), ("size", True), ("names", False), ("colour", False)
    ]  # fmt: skip
    assert method.passing == "by-name"


@pytest.mark.parametrize(
    ("unpacked", "problem"),
    [
        (Unpack[Options], "its key 'size' is a parameter, too"),
        (Unpack[int], "cannot be served"),  # type: ignore[misc]
        (Unpack[TypedDict("Odd", {"a b": int})], "its key 'a b' is no name"),  # type: ignore[misc]
    ],
)
def test_unpacked_keywords_that_are_no_parameters_are_refused(unpacked: Any, problem: str) -> None:
    def search(size: int, **options: unpacked) -> None: ...

    with pytest.raises(TypeError, match=f"search: parameter 'options': .*{problem}"):
        Server(port=0).add(search)
