"""JSON-RPC 2.0 over HTTP and raw TCP: the specification's examples, and cases cut at every byte."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

import ucall
from harness import Wire, eventually, http

Serve = Callable[..., ucall.Server]


def subtract(minuend: int, subtrahend: int) -> int:
    return minuend - subtrahend


def sum(*numbers: int) -> int:
    total = 0
    for number in numbers:
        total += number
    return total


def update(*numbers: int) -> None:
    pass


def notify_hello(number: int) -> None:
    pass


def get_data() -> list[Any]:
    return ["hello", 5]


def echo(value: Any) -> Any:
    return value


FUNCTIONS = (subtract, sum, update, notify_hello, get_data, echo)


def error(code: int, message: str, id: Any = None) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "error": {"code": code, "message": message}, "id": id}


INVALID = error(-32600, "Invalid Request")

# Section 7 of the specification, in its order. `None`: no reply.
SPECIFICATION: list[tuple[str, Any]] = [
    (
        '{"jsonrpc": "2.0", "method": "subtract", "params": [42, 23], "id": 1}',
        {"jsonrpc": "2.0", "result": 19, "id": 1},
    ),
    (
        '{"jsonrpc": "2.0", "method": "subtract", "params": [23, 42], "id": 2}',
        {"jsonrpc": "2.0", "result": -19, "id": 2},
    ),
    (
        '{"jsonrpc": "2.0", "method": "subtract", '
        '"params": {"subtrahend": 23, "minuend": 42}, "id": 3}',
        {"jsonrpc": "2.0", "result": 19, "id": 3},
    ),
    (
        '{"jsonrpc": "2.0", "method": "subtract", '
        '"params": {"minuend": 42, "subtrahend": 23}, "id": 4}',
        {"jsonrpc": "2.0", "result": 19, "id": 4},
    ),
    ('{"jsonrpc": "2.0", "method": "update", "params": [1,2,3,4,5]}', None),
    ('{"jsonrpc": "2.0", "method": "foobar"}', None),
    (
        '{"jsonrpc": "2.0", "method": "foobar", "id": "1"}',
        error(-32601, "Method not found", "1"),
    ),
    (
        '{"jsonrpc": "2.0", "method": "foobar, "params": "bar", "baz]',
        error(-32700, "Parse error"),
    ),
    ('{"jsonrpc": "2.0", "method": 1, "params": "bar"}', INVALID),
    (
        '[{"jsonrpc": "2.0", "method": "sum", "params": [1,2,4], "id": "1"},'
        '{"jsonrpc": "2.0", "method"]',
        error(-32700, "Parse error"),
    ),
    ("[]", INVALID),
    ("[1]", [INVALID]),
    ("[1,2,3]", [INVALID, INVALID, INVALID]),
    (
        '[{"jsonrpc": "2.0", "method": "sum", "params": [1,2,4], "id": "1"},'
        '{"jsonrpc": "2.0", "method": "notify_hello", "params": [7]},'
        '{"jsonrpc": "2.0", "method": "subtract", "params": [42,23], "id": "2"},'
        '{"foo": "boo"},'
        '{"jsonrpc": "2.0", "method": "foo.get", "params": {"name": "myself"}, "id": "5"},'
        '{"jsonrpc": "2.0", "method": "get_data", "id": "9"}]',
        [
            {"jsonrpc": "2.0", "result": 7, "id": "1"},
            {"jsonrpc": "2.0", "result": 19, "id": "2"},
            INVALID,
            error(-32601, "Method not found", "5"),
            {"jsonrpc": "2.0", "result": ["hello", 5], "id": "9"},
        ],
    ),
    (
        '[{"jsonrpc": "2.0", "method": "notify_sum", "params": [1,2,4]},'
        '{"jsonrpc": "2.0", "method": "notify_hello", "params": [7]}]',
        None,
    ),
]
IDS = [str(number) for number in range(len(SPECIFICATION))]


def without_data(reply: Any) -> Any:
    """The specification does not define the `data` of errors."""
    if isinstance(reply, list):
        return [without_data(item) for item in reply]
    if reply and "error" in reply:
        reply["error"].pop("data", None)
    return reply


@pytest.mark.parametrize(("text", "reply"), SPECIFICATION, ids=IDS)
def test_specification_examples_over_http(serve: Serve, text: str, reply: Any) -> None:
    with Wire(serve(*FUNCTIONS).port) as wire:
        wire.send(http(text.encode()))
        status, _, body = wire.reply()
        assert (status, body) == (204, b"") if reply is None else status == 200
        assert without_data(json.loads(body or b"null")) == reply


@pytest.mark.parametrize(("text", "reply"), SPECIFICATION, ids=IDS)
def test_specification_examples_over_tcp(serve: Serve, text: str, reply: Any) -> None:
    with Wire(serve(*FUNCTIONS).port) as wire:
        wire.send(text.encode())
        wire.end()
        assert without_data(json.loads(wire.rest() or b"null")) == reply


@pytest.mark.parametrize(
    "id",
    ["0", "-1", "1.50", "1e3", "12345678901234567890", '""', '"\\u0061 \\"b\\""', '"é"', "null"],
)
def test_ids_are_returned_byte_for_byte(serve: Serve, id: str) -> None:
    with Wire(serve(echo).port) as wire:
        wire.send(f'{{"jsonrpc":"2.0","id": {id} ,"method":"echo","params":[1]}}'.encode())
        assert wire.line() == f'{{"jsonrpc":"2.0","id":{id},"result":1}}'.encode()


REFUSED: list[tuple[str, int]] = [
    ('{"jsonrpc":"2.0","id":true,"method":"echo","params":[1]}', -32600),
    ('{"jsonrpc":"2.0","id":[1],"method":"echo","params":[1]}', -32600),
    ('{"jsonrpc":"2.0","id":"' + "x" * 1023 + '","method":"echo","params":[1]}', -32600),
    ('{"jsonrpc":"1.0","id":1,"method":"echo","params":[1]}', -32600),
    ('{"id":1,"method":"echo","params":[1]}', -32600),
    ('{"jsonrpc":"2.0","id":1,"method":"echo","params":1}', -32600),
    ('{"jsonrpc":"2.0","id":1,"method":"echo","params":null}', -32600),
    ('{"jsonrpc":"2.0","id":1,"params":[]}', -32600),
    ('{"jsonrpc":"2.0","id":1,"method":"ech","params":[1]}', -32601),
    ('{"jsonrpc":"2.0","id":1,"method":"echo","params":[1,]}', -32700),
    ('{"jsonrpc":"2.0","id":1,"method":"echo","params":[NaN]}', -32700),
    ('{"jsonrpc":"2.0","id":1,"method":"echo","params":["\\ud800"]}', -32700),
    ("[" + ",".join(["1"] * 1001) + "]", -32600),
    ('{"jsonrpc":"2.0","id":1,"method":"echo","params":' + "[" * 128 + "]" * 128 + "}", -32700),
]


@pytest.mark.parametrize(("text", "code"), REFUSED, ids=[text[:40] for text, _ in REFUSED])
def test_an_invalid_request_is_reported_and_the_next_answered(
    serve: Serve, text: str, code: int
) -> None:
    server = serve(echo)
    with Wire(server.port) as wire:
        for _ in range(2):
            wire.send(http(text.encode()))
            status, _, body = wire.reply()
            assert (status, json.loads(body)["error"]["code"]) == (200, code)
    with Wire(server.port) as wire:
        wire.send(text.encode())
        assert json.loads(wire.line())["error"]["code"] == code
        if code != -32700:
            assert wire.result("echo", [2]) == 2
        else:
            assert wire.rest() == b""


def test_invalid_utf8_is_refused(serve: Serve) -> None:
    server = serve(echo)
    for bad in (b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80"):
        with Wire(server.port) as wire:
            wire.send(b'{"jsonrpc":"2.0","id":1,"method":"echo","params":["' + bad + b'"]}')
            assert json.loads(wire.line())["error"]["code"] == -32700


def test_batches_answer_in_order_and_to_their_limit(serve: Serve) -> None:
    calls = [
        f'{{"jsonrpc":"2.0","id":{number},"method":"echo","params":[{number}]}}'
        for number in range(1000)
    ]
    with Wire(serve(echo).port) as wire:
        wire.send(http(f"[{','.join(calls)}]".encode()))
        replies = json.loads(wire.reply()[2])
    assert [reply["result"] for reply in replies] == list(range(1000))


# Valid and invalid requests, cut at every byte.
CASES: list[bytes] = [
    *(text.encode() for text, _ in SPECIFICATION),
    *(text.encode() for text, _ in REFUSED if len(text) < 200),
    '{"jsonrpc":"2.0","id":"é\\"","method":"\\u0065cho","params":["😀\\ud83d\\ude00\\n"]}'.encode(),
    b' {"jsonrpc" : "2.0" , "id" : 1 , "method" : "subtract" , "params" : { "minuend" : 1 } } ',
    b'{"id":-1.5e+3,"params":[[true,false,null,-0.5E-1]],"method":"echo","jsonrpc":"2.0"}',
    b'{"jsonrpc":"2.0","id":1,"method":"echo","params":["\xff"]}',
]


def _answer(server: ucall.Server, pieces: list[bytes]) -> bytes:
    """All replies when the server reads the pieces one by one."""
    with Wire(server.port) as wire:
        for piece in pieces[:-1]:
            seen = server.stats()["bytes_received"] + len(piece)
            wire.send(piece)
            assert eventually(lambda seen=seen: server.stats()["bytes_received"] >= seen)
        wire.send(pieces[-1])
        wire.end()
        return wire.rest()


# The tests of ucall-proto cut each case in each framing.
@pytest.mark.one_of("engine", "framing")
@pytest.mark.parametrize("framing", ["http", "chunked", "tcp"])
@pytest.mark.parametrize("case", CASES, ids=[str(number) for number in range(len(CASES))])
def test_a_request_split_anywhere_gets_the_same_bytes(
    serve: Serve, case: bytes, framing: str
) -> None:
    server = serve(*FUNCTIONS)
    data = _framed(case, framing)
    whole = _undated(_answer(server, [data]))
    for cut in range(1, len(data)):
        assert _undated(_answer(server, [data[:cut], data[cut:]])) == whole, cut
    if len(data) < 120:
        pieces = [data[index : index + 1] for index in range(len(data))]
        assert _undated(_answer(server, pieces)) == whole


def _framed(case: bytes, framing: str) -> bytes:
    if framing == "tcp":
        return case
    if framing == "http":
        return http(case)
    middle = len(case) // 2
    parts = (case[:middle], case[middle:], b"")
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)
    return b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks


def _undated(reply: bytes) -> list[bytes]:
    return [line for line in reply.split(b"\r\n") if not line.startswith(b"Date: ")]
