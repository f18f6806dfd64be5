"""JSON to Python: every annotation, and values that do not fit it."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable
from typing import Any, Optional

import pytest

from harness import Wire

ConnectTo = Callable[..., Wire]
BYTES = bytes(range(256))


def taking(annotation: Any) -> Callable[..., Any]:
    """A function of one parameter, which returns the `repr` of its argument."""

    def take(a):  # type: ignore[no-untyped-def]
        return repr(a)

    take.__annotations__["a"] = annotation
    return take


VALID: list[tuple[Any, str, object]] = [
    (int, "0", 0),
    (int, "-0", 0),
    (int, "-9223372036854775808", -(2**63)),
    (int, "9223372036854775807", 2**63 - 1),
    (int, "9223372036854775808", 2**63),
    (int, "-" + "9" * 4300, int("-" + "9" * 4300)),
    (float, "1.5", 1.5),
    (float, "3", 3.0),
    (float, "-0.0", -0.0),
    (float, "5e-324", 5e-324),
    (float, "1e308", 1e308),
    (float, "123456789012345678901234567890", 123456789012345678901234567890.0),
    (bool, "true", True),
    (bool, "false", False),
    (str, '""', ""),
    (str, '"a"', "a"),
    (str, '"é"', "é"),
    (str, '"€"', "€"),
    (str, '"😀"', "😀"),
    (str, r'"\ud83d\ude00\u00e9\n\"\\\/\b\f\r\t"', '😀é\n"\\/\b\f\r\t'),
    (str, r'"\u0000"', "\0"),
    (str, json.dumps("x" * 1000), "x" * 1000),
    (str, json.dumps("xé" * 1000, ensure_ascii=False), "xé" * 1000),
    (bytes, '""', b""),
    (bytes, '"AA=="', b"\0"),
    (bytes, json.dumps(base64.b64encode(BYTES).decode()), BYTES),
    (bytes, json.dumps(base64.b64encode(BYTES).decode()).replace("/", r"\/"), BYTES),
    (None, "null", None),
    (list, "[]", []),
    (list, '[1, "a", [null]]', [1, "a", [None]]),
    (list[int], "[1, 2]", [1, 2]),
    (list[list[float]], "[[1], [2.5]]", [[1.0], [2.5]]),
    (dict, "{}", {}),
    (dict, '{"a": {"b": [1]}, "c": 2}', {"a": {"b": [1]}, "c": 2}),
    (dict, '{"a": 1, "a": 2}', {"a": 2}),
    (dict[str, bytes], '{"k": "AA=="}', {"k": b"\0"}),
    (int | None, "null", None),
    (int | None, "7", 7),
    (Optional[list[Optional[str]]], '["a", null]', ["a", None]),  # noqa: UP045
    (Any, "1", 1),
    (Any, "1.0", 1.0),
    (Any, "1E2", 100.0),
    (Any, "true", True),
    (Any, "null", None),
    (object, '{"a": [1, 2.5, "x", false]}', {"a": [1, 2.5, "x", False]}),
    (Any, "1" + "0" * 100, 10**100),
]


@pytest.mark.parametrize(
    ("annotation", "text", "value"), VALID, ids=[text[:30] for _, text, _ in VALID]
)
def test_valid_values_arrive_exactly(
    connect_to: ConnectTo, annotation: Any, text: str, value: object
) -> None:
    wire = connect_to(taking(annotation))
    wire.send(f'{{"jsonrpc":"2.0","id":1,"method":"take","params":[{text}]}}'.encode())
    assert json.loads(wire.line())["result"] == repr(value)


MISMATCHES: list[tuple[Any, str, str]] = [
    (int, "1.0", "expected int, got float"),
    (int, "1e3", "expected int, got float"),
    (int, "true", "expected int, got bool"),
    (int, '"1"', "expected int, got str"),
    (int, "null", "expected int, got None"),
    (int, "[1]", "expected int, got list"),
    (int, "{}", "expected int, got dict"),
    (int, "1" + "0" * 4300, "expected int, got one of more than 4300 digits"),
    (Any, "1" + "0" * 4300, "expected int, got one of more than 4300 digits"),
    (float, "true", "expected float, got bool"),
    (float, '"1.5"', "expected float, got str"),
    (float, "1e309", "expected float, got a number out of its range"),
    (bool, "1", "expected bool, got int"),
    (bool, "null", "expected bool, got None"),
    (str, "1.5", "expected str, got float"),
    (bytes, '"AA"', "expected bytes in base64, got a str that is no base64"),
    (bytes, '"AA==AA=="', "expected bytes in base64, got a str that is no base64"),
    (bytes, '"A A="', "expected bytes in base64, got a str that is no base64"),
    (bytes, '"AB=="', "expected bytes in base64, got a str that is no base64"),
    (bytes, '"-_=="', "expected bytes in base64, got a str that is no base64"),
    (bytes, "[0]", "expected bytes in base64, got list"),
    (None, "0", "expected None, got int"),
    (list, "{}", "expected list, got dict"),
    (dict, "[]", "expected dict, got list"),
    (int | None, '"x"', "expected int | None, got str"),
    (int | None, "1.5", "expected int | None, got float"),
]


@pytest.mark.parametrize(
    ("annotation", "text", "problem"), MISMATCHES, ids=[text[:30] for _, text, _ in MISMATCHES]
)
def test_mismatches_are_named(
    connect_to: ConnectTo, annotation: Any, text: str, problem: str
) -> None:
    wire = connect_to(taking(annotation))
    wire.send(f'{{"jsonrpc":"2.0","id":1,"method":"take","params":{{"a":{text}}}}}'.encode())
    error = json.loads(wire.line())["error"]
    assert (error["code"], error["data"]) == (-32602, f"params.a: {problem}")


def test_a_nested_mismatch_is_named_by_its_path(connect_to: ConnectTo) -> None:
    wire = connect_to(taking(dict[str, list[int | None]]))
    problem = wire.error("take", [{"ok": [1], "not ok": [None, 2, "x"]}])["data"]
    assert problem == 'params.a["not ok"][2]: expected int | None, got str'


def test_values_nest_to_the_limit(connect_to: ConnectTo) -> None:
    def echo(a):  # type: ignore[no-untyped-def]
        return a

    wire = connect_to(echo)
    # The request, its params and the value share the 128 levels.
    deep: list[Any] = []
    for _ in range(125):
        deep = [deep]
    assert wire.result("echo", [deep]) == deep
    wire.send(
        b'{"jsonrpc":"2.0","id":1,"method":"echo","params":[' + b"[" * 127 + b"]" * 127 + b"]}"
    )
    assert json.loads(wire.line())["error"]["code"] == -32700


def test_integers_follow_the_interpreters_limit(connect_to: ConnectTo) -> None:
    wire = connect_to(taking(int))
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(640)
    try:
        wire.send(b'{"jsonrpc":"2.0","id":1,"method":"take","params":[' + b"1" * 641 + b"]}")
        problem = json.loads(wire.line())["error"]["data"]
    finally:
        sys.set_int_max_str_digits(before)
    assert problem == "params.a: expected int, got one of more than 640 digits"
