"""Registered types."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

import ucall
from harness import Wire


class Money:
    def __init__(self, cents: int) -> None:
        self.cents = cents


class Bonus(Money):
    pass


@dataclass
class Basket:
    total: Money
    parts: list[Money]


@dataclass
class Holder:
    basket: Basket


def decode(value: Any) -> Money:
    if not isinstance(value, str):
        raise TypeError("write it as 1.23")
    if value == "broken":
        raise LookupError("the decoder's own fault")
    units, _, cents = value.partition(".")
    return Money(int(units) * 100 + int(cents))


def encode(money: Money) -> object:
    return f"{money.cents // 100}.{money.cents % 100:02}"


def double(money: Money | None = None) -> Money | None:
    return money and Money(money.cents * 2)


def total(many: list[Money], named: dict[str, Money]) -> Basket:
    every = [*many, *named.values()]
    return Basket(Money(sum(one.cents for one in every)), every)


def check(basket: Basket) -> list[object]:
    assert isinstance(basket.total, Money)
    return [{"again": basket}, {basket.total: Bonus(1)}]


@pytest.fixture
def wire() -> Iterator[Wire]:
    server = ucall.Server(port=0)
    server.register_type(Money, encode, decode)
    server.register_type(
        complex, lambda value: [value.real, value.imag], lambda pair: complex(*pair)
    )
    for function in (double, total, check, rotate):
        server.add(function)
    with server, Wire(server.port) as wire:
        yield wire


def rotate(point: complex) -> complex:
    return point * 1j


def test_registered_types_round_trip(wire: Wire) -> None:
    assert wire.result("double", ["1.25"]) == "2.50"
    assert wire.result("double") is None
    assert wire.result("rotate", [[1, 2]]) == [-2.0, 1.0]


def test_registered_types_nest_in_other_types(wire: Wire) -> None:
    basket = {"total": "3.50", "parts": ["1.25", "2.25"]}
    assert wire.result("total", [["1.25"], {"a": "2.25"}]) == basket
    assert wire.result("check", [basket]) == [{"again": basket}, {"3.50": "0.01"}]


def test_decoder_errors_are_reported(wire: Wire) -> None:
    error = wire.error("double", [5])
    assert error["code"] == -32602
    assert error["data"] == "params.money: expected Money | None, got int: write it as 1.23"
    error = wire.error("total", [[], {"a": "x"}])
    assert error["data"].startswith("params.named.a: expected Money, got str: invalid literal")
    error = wire.error("check", [{"total": "1.0", "parts": [1]}])
    assert error["data"] == "params.basket.parts[0]: expected Money, got int: write it as 1.23"


def test_other_decoder_exceptions_are_internal_errors(
    wire: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    for params in (["broken"], {"money": "broken"}):
        assert wire.error("double", params) == {"code": -32603, "message": "Internal error"}
    assert wire.error("check", [{"total": "broken", "parts": []}])["code"] == -32603
    assert "the decoder's own fault" in caplog.text


def test_encoder_exceptions_are_internal_errors(caplog: pytest.LogCaptureFixture) -> None:
    def give() -> Money:
        return Money("x")  # type: ignore[arg-type]

    server = ucall.Server(port=0)
    server.register_type(Money, encode, decode)
    server.add(give)
    with server, Wire(server.port) as wire:
        assert wire.error("give") == {"code": -32603, "message": "Internal error"}
    assert "unsupported operand" in caplog.text


def test_an_endless_encoder_is_stopped() -> None:
    server = ucall.Server(port=0)
    server.register_type(Money, lambda money: [money], decode)
    server.add(double)
    with server, Wire(server.port) as wire:
        assert "nests deeper than 128 levels" in wire.error("double", ["1.00"])["data"]


def test_a_dataclass_may_be_registered() -> None:
    def echo(basket: Basket) -> Basket:
        return basket

    def nested(baskets: tuple[Basket, ...]) -> list[Holder]:
        return [Holder(one) for one in baskets]

    server = ucall.Server(port=0)
    server.register_type(Money, encode, decode)
    make: Callable[[Any], Basket] = lambda value: Basket(Money(value), [])  # noqa: E731
    server.register_type(Basket, lambda basket: basket.total, make)
    server.add(echo)
    server.add(nested)
    with server, Wire(server.port) as wire:
        assert wire.result("echo", [5]) == "0.05"
        assert wire.result("nested", [[5, 6]]) == [{"basket": "0.05"}, {"basket": "0.06"}]


class Number(int):
    pass


@pytest.mark.parametrize("kind", [int, Number, str, dict, bytes])
def test_json_types_cannot_be_registered(kind: type) -> None:
    with pytest.raises(TypeError, match="is written as what it derives from"):
        ucall.Server(port=0).register_type(kind, str, kind)


def test_invalid_registrations_are_rejected() -> None:
    server = ucall.Server(port=0)
    with pytest.raises(TypeError, match="is not a class"):
        server.register_type(list[int], str, str)
    with pytest.raises(TypeError, match="must be callable"):
        server.register_type(Money, 5, decode)  # type: ignore[arg-type]
