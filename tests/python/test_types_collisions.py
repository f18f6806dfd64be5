"""Keys and items with equal hashes are rejected before a dict or a set is built."""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pydantic
import pytest

from harness import Wire

ConnectTo = Callable[..., Wire]

#: CPython hashes multiples of it to 0.
MODULUS = 2**61 - 1
#: Numbers with equal hashes, and others, in a text that is long enough to be checked.
ALIKE, OTHERS = 100, 1_500


@dataclass
class Within:
    rows: list[dict[str, frozenset[int]]]


class Model(pydantic.BaseModel):
    seen: set[int]


def ints(value: set[int]) -> int:
    return len(value)


def keys(value: dict[int, str]) -> int:
    return len(value)


def uuids(value: set[uuid.UUID]) -> int:
    return len(value)


def decimals(value: dict[Decimal, int]) -> int:
    return len(value)


def pairs(value: set[tuple[int, str]]) -> int:
    return len(value)


def within(value: Within | None) -> int:
    return len(value.rows[0]["a"]) if value else 0


def model(value: Model) -> int:
    return len(value.seen)


def model_keys(value: dict[int, Model]) -> int:
    return len(value)


FORMS: list[tuple[Callable[..., int], Callable[[list[int]], Any]]] = [
    (ints, list),
    (keys, lambda numbers: {str(number): "" for number in numbers}),
    (uuids, lambda numbers: [str(uuid.UUID(int=number)) for number in numbers]),
    (uuids, lambda numbers: [uuid.UUID(int=number).hex.upper() for number in numbers]),
    (decimals, lambda numbers: {f"{number}.0": 0 for number in numbers}),
    (pairs, lambda numbers: [[number, "a"] for number in numbers]),
    (within, lambda numbers: {"rows": [{"a": numbers}]}),
    (model, lambda numbers: {"seen": numbers}),
    (model_keys, lambda numbers: {str(number): {"seen": []} for number in numbers}),
]


@pytest.mark.parametrize(("function", "form"), FORMS)
def test_colliding_keys_are_refused(
    connect_to: ConnectTo, function: Callable[..., int], form: Callable[[list[int]], Any]
) -> None:
    wire = connect_to(function)
    others = [2**100 + number for number in range(OTHERS)]
    alike = [number * MODULUS for number in range(ALIKE + 1)]
    assert wire.result(function.__name__, [form(others + alike[1:])]) == OTHERS + ALIKE
    error = wire.error(function.__name__, [form(others + alike)])
    assert error["code"] == -32602
    assert error["data"] == "params.value: expected at most 100 keys or items that hash alike"
    # A repeated key is found at once.
    if isinstance(form([]), list):
        assert wire.result(function.__name__, [form([*others, *[1] * 1_000])]) == OTHERS + 1


def test_a_number_of_too_many_digits_hides_no_collision(connect_to: ConnectTo) -> None:
    alike = [number * MODULUS for number in range(2 * ALIKE)] + [10**4299 - 1] * 4
    call = b'{"jsonrpc":"2.0","method":"ints","params":[%s],"id":1}\n'
    wire = connect_to(ints)
    wire.send(call % str(alike).replace("]", ",%s]" % ("1" * 5_000)).encode())
    assert b"hash alike" in wire.line()


def days(value: dict[str, set[str]], more: list[datetime.date]) -> int:
    return len(value["a"]) + len(more)


def test_keys_with_randomized_hashes_are_not_checked(connect_to: ConnectTo) -> None:
    same = [str(number * MODULUS) for number in range(2 * OTHERS)]
    assert connect_to(days).result("days", [{"a": same}, ["2020-01-01"]]) == 2 * OTHERS + 1
