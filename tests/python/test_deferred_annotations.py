"""Annotations of Python 3.14, which are evaluated on first access (PEP 649).

There is no ``from __future__ import annotations`` here, so conftest.py ignores this file on older
versions.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

import ucall
from harness import Wire

if TYPE_CHECKING:
    from decimal import Decimal

ConnectTo = Callable[..., Wire]


def early(user: User, more: list[User] | None = None) -> str:  # noqa: F821
    return user.name


class Service:
    def name(self, user: User) -> str:  # noqa: F821
        return user.name

    def __call__(self, user: User) -> str:  # noqa: F821
        return user.name


@dataclass
class Tree:
    value: int
    children: list[Tree]


def total(tree: Tree) -> int:
    return tree.value + sum(map(total, tree.children))


@pytest.mark.parametrize("function", [early, Service().name, Service()])
def test_an_undefined_name_is_reported(function: Any) -> None:
    with pytest.raises(TypeError) as refused:
        ucall.Server(port=0).add(function, name="function")
    assert str(refused.value) == (
        "function: an annotation refers to an unknown name: name 'User' is not defined; "
        "define or import it before the function is served, not for type checkers alone"
    )


def test_a_name_defined_later_is_resolved(
    connect_to: ConnectTo, monkeypatch: pytest.MonkeyPatch
) -> None:
    @dataclass
    class User:
        name: str

    monkeypatch.setitem(globals(), "User", User)  # As a class further down would be.
    wire = connect_to(early, Service().name, total)
    assert wire.result("early", [{"name": "Ada"}]) == "Ada"
    assert wire.error("early", [{"name": 5}])["data"] == "params.user.name: expected str, got int"
    assert wire.result("name", [{"name": "Ada"}]) == "Ada"
    tree = {"value": 1, "children": [{"value": 2, "children": []}]}
    assert wire.result("total", [tree]) == 3


def test_names_of_the_enclosing_function(connect_to: ConnectTo) -> None:
    @dataclass
    class Local:
        a: int

    def function(local: Local, later: list[Later]) -> int:
        return local.a + later[0].b

    @dataclass
    class Later:
        b: int

    assert connect_to(function).result("function", [{"a": 1}, [{"b": 2}]]) == 3


def test_the_return_annotation_is_ignored(connect_to: ConnectTo) -> None:
    def function(a: int) -> Decimal:
        return a

    assert connect_to(function).result("function", [1]) == 1


def test_batch_functions() -> None:
    server = ucall.Server(port=0)

    @server.batch
    def double(values: list[int]) -> list[Decimal]:
        return [value * 2 for value in values]

    with server, Wire(server.port) as wire:
        assert wire.result("double", [21]) == 42
