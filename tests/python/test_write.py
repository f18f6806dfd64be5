"""Python values to JSON, and values that cannot be written."""

from __future__ import annotations

import collections
import enum
import json
import logging
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from harness import Wire

ConnectTo = Callable[..., Wire]


class Level(enum.IntEnum):
    HIGH = 3


class Color(enum.StrEnum):
    RED = "red"


class Point(NamedTuple):
    x: int
    y: float


class Text(str):
    __slots__ = ()


class Real(float):
    def __repr__(self) -> str:
        return "not a number"


class Items(list):  # type: ignore[type-arg]
    pass


def ordered() -> collections.OrderedDict[str, int]:
    result = collections.OrderedDict(a=1, b=2)
    result.move_to_end("a")
    return result


WRITTEN: list[tuple[object, str]] = [
    (None, "null"),
    (True, "true"),
    (False, "false"),
    (0, "0"),
    (-1, "-1"),
    (2**31, "2147483648"),
    (-(2**63), "-9223372036854775808"),
    (2**63 - 1, "9223372036854775807"),
    (2**63, "9223372036854775808"),
    (-(10**100), "-1" + "0" * 100),
    (10**4300 - 1, "9" * 4300),
    (Level.HIGH, "3"),
    (1.0, "1.0"),
    (-0.0, "-0.0"),
    (0.1 + 0.2, "0.30000000000000004"),
    (5e-324, "5e-324"),
    (Real(2.5), "2.5"),
    ("", '""'),
    ('a"b\\c\n\r\t\b\f\0\x1f/', '"a\\"b\\\\c\\n\\r\\t\\b\\f\\u0000\\u001f/"'),
    ("é€😀", '"é€😀"'),
    ("x" * 1000, '"' + "x" * 1000 + '"'),
    (Color.RED, '"red"'),
    (Text("t"), '"t"'),
    (b"", '""'),
    (b"\0\xff", '"AP8="'),
    (bytearray(b"abc"), '"YWJj"'),
    (memoryview(b"abc"), '"YWJj"'),
    (memoryview(b"a-b-c")[::2], '"YWJj"'),
    (memoryview(b"abcd").cast("H"), '"YWJjZA=="'),
    ([], "[]"),
    ([1, [2, [3]], "4"], '[1,[2,[3]],"4"]'),
    ((), "[]"),
    ((1, (2,)), "[1,[2]]"),
    (Point(1, 2.0), "[1,2.0]"),
    (Items([1]), "[1]"),
    ({}, "{}"),
    ({"a": 1, "é\n": [None]}, '{"a":1,"é\\n":[null]}'),
    ({1: 1, -(2**70): 2}, '{"1":1,"-1180591620717411303424":2}'),
    ({True: 1, False: 0}, '{"true":1,"false":0}'),
    ({Level.HIGH: 1, Color.RED: 2}, '{"3":1,"red":2}'),
    (ordered(), '{"b":2,"a":1}'),
    (collections.Counter("aab"), '{"a":2,"b":1}'),
    (collections.defaultdict(list, a=[1]), '{"a":[1]}'),
]


@pytest.mark.parametrize(("value", "text"), WRITTEN, ids=[text[:30] for _, text in WRITTEN])
def test_results_are_written_as_json(connect_to: ConnectTo, value: object, text: str) -> None:
    wire = connect_to(_giving(value))
    wire.send(b'{"jsonrpc":"2.0","id":1,"method":"give"}')
    assert wire.line().decode() == f'{{"jsonrpc":"2.0","id":1,"result":{text}}}'
    if isinstance(value, (int, str, float, list, tuple)) and not isinstance(value, Real):
        assert json.loads(text) == json.loads(json.dumps(value))


def _giving(value: object) -> Callable[[], object]:
    def give() -> object:
        return value

    return give


def _cycle() -> list[Any]:
    cycle: list[Any] = []
    cycle.append({"again": cycle})
    return cycle


UNWRITABLE: list[tuple[object, str]] = [
    (float("nan"), "result: NaN cannot be written as JSON"),
    (float("-inf"), "result: -inf cannot be written as JSON"),
    (1j, "result: complex cannot be written as JSON"),
    (iter([]), "result: list_iterator cannot be written as JSON"),
    (object(), "result: object cannot be written as JSON"),
    (len, "result: builtin_function_or_method cannot be written as JSON"),
    ("\ud800", "result: a str with a lone surrogate cannot be written as JSON"),
    (10**4300, "result: an int of too many digits cannot be written as JSON"),
    ([1, {"a b": [1j]}], 'result[1]["a b"][0]: complex cannot be written as JSON'),
    ({"a": {(1, 2): 3}}, "result.a: a key of type tuple cannot be written as JSON"),
    ({None: 1}, "result: a key of type NoneType cannot be written as JSON"),
    ({1.5: 1}, "result: a key of type float cannot be written as JSON"),
    ({"\ud800": 1}, "result: a str with a lone surrogate cannot be written as JSON"),
]


@pytest.mark.parametrize(
    ("value", "problem"), UNWRITABLE, ids=[problem for _, problem in UNWRITABLE]
)
def test_unwritable_results_are_named(
    connect_to: ConnectTo, caplog: pytest.LogCaptureFixture, value: object, problem: str
) -> None:
    with caplog.at_level(logging.ERROR, "ucall"):
        error = connect_to(_giving(value)).error("give")
    assert error == {"code": -32603, "message": "Internal error", "data": problem}
    [message] = caplog.messages
    assert message.startswith(f"give: {problem} (")


def test_results_nest_to_the_limit_and_cycles_end(connect_to: ConnectTo) -> None:
    deep: list[Any] = []
    for _ in range(127):
        deep = [deep]
    assert connect_to(_giving(deep)).result("give") == deep
    for too_deep in ([deep], _cycle()):
        error = connect_to(_giving(too_deep)).error("give")
        assert error["code"] == -32603
        assert error["data"].endswith("nests deeper than 128 levels")


@pytest.mark.parametrize(
    "value",
    ["x" * 10_001, b"x" * 7_600, [1] * 5_100, {"k": ["y"] * 3_000}],
    ids=["str", "bytes", "list", "dict"],
)
def test_a_reply_that_is_too_large_is_an_error(
    connect_to: ConnectTo, caplog: pytest.LogCaptureFixture, value: object
) -> None:
    wire = connect_to(_giving(value), max_reply_bytes=10_000)
    assert wire.error("give")["code"] == -32603
    assert "give" in caplog.text
    assert wire.error("nobody")["code"] == -32601


def test_a_dict_modified_while_it_is_written_is_safe(connect_to: ConnectTo) -> None:
    class MutatingDict(dict):  # type: ignore[type-arg]
        def items(self):  # type: ignore[no-untyped-def]
            outer.clear()
            return [("a", 1)]

    outer: dict[str, Any] = {
        "first": MutatingDict(),
        **{str(number): [number] for number in range(99)},
    }
    assert connect_to(_giving(outer)).result("give") == {"first": {"a": 1}}
