"""Params of any shape, read by iteration, and results that a writer makes of them."""

import json

import pytest

import harness
from harness import Client, serving

COPIED = [
    {},
    {"a": 1, "b": [True, False, None, "", "é\n\u0000"], "": {}},
    [],
    [[[[]]], {"a": {"a": [{}]}}],
    [2**63 - 1, -(2**63), 2**64 - 1, 2**80, 0.5, -1e300],
    {'key\n"': {"\\": "\\"}},
    list(range(1000)),
    {str(number): number for number in range(1000)},
]


@pytest.fixture
def client(built, engine):
    with (
        serving([built(harness.PROGRAMS / "values.c"), engine]) as server,
        Client(server.port) as client,
    ):
        yield client


@pytest.mark.parametrize("method", ["copy", "later"])
def test_params_are_copied_part_by_part(client, method):
    for params in COPIED:
        assert client.call(method, text=json.dumps(params)) == params
    spaced = ' { "a" : [ 1 , 2 ,{ } ] , "b\\u0021" : null } '
    assert client.call(method, text=spaced) == {"a": [1, 2, {}], "b!": None}


def test_many_levels_are_copied(client):
    text = "[" * 600 + "]" * 600
    assert client.call("copy", text=text) == json.loads(text)


def test_a_type_tells_missing_null_and_other_types_apart(client):
    for value, expected in [
        ("null", 1000),
        ("true", 2000),
        ("5", 3000),
        ("5.0", 4000),
        ("5e1", 4000),
        ('"5"', 5000),
        ("[5,[6]]", 6002),
        ('{"a":5,"b":{},"a":6}', 7003),
    ]:
        assert client.call("types", text=f"[{value}]") == expected
        assert client.call("types", text=f'{{"value":{value}}}') == expected
    assert client.call("types", []) == client.call("types", {"other": 1}) == 0


def test_integers_without_a_sign(client):
    for number in (0, 1, 10**17, 2**63, 2**64 - 1):
        assert client.call("u64", [number]) == client.call("u64", {"value": number}) == number
    for text in ("-1", "18446744073709551616", "1.0", "1e2", '"1"', "null", "true"):
        assert client.error_of("u64", text=f"[{text}]")["code"] == -32602, text
    assert client.call("u64", text="[-0]") == 0


def test_errors_have_data(client):
    for data in ("null", '{"a":[1]}', '"text"'):
        error = client.error_of("fail", {"data": data})
        assert error == {"code": 7, "message": "seven", "data": json.loads(data)}
    assert client.error_of("fail") == {"code": 7, "message": "seven"}
    assert client.error_of("fail", {"data": "[1,"})["code"] == -32603


def test_an_incomplete_value_is_no_reply(client):
    error = client.error_of("unfinished")
    assert error["code"] == -32603 and "expects a key" in error["message"]
    assert client.call("nothing") is None
