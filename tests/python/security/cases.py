"""Bad input, and the expected replies.

A reply is written in a few words: the status of each HTTP reply with the code of its JSON-RPC
error, or the code alone over raw TCP, and "closed" if the connection ends. If it does not end, the
next call on it must be answered.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy
from PIL import Image

from harness import http, request
from target import Target

Scenario = Callable[[Target], str]


@dataclass(frozen=True)
class Case:
    """One bad input, or the last allowed value before it."""

    group: str
    #: A description of the input.
    name: str
    #: The expected reply.
    expected: str
    #: The bytes; or a function that sends them and returns the reply.
    sent: bytes | Scenario
    #: Whether a valid request precedes it on the same connection, which must be answered.
    behind: bool = False
    #: The server that gets it.
    server: str = "usual"


HOST = "Host: localhost"


def head(*lines: str) -> bytes:
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def post(*headers: str, version: str = "HTTP/1.1") -> bytes:
    return head(f"POST / {version}", HOST, *headers)


def chunked(body: bytes) -> bytes:
    return post("Transfer-Encoding: chunked") + body


CALL = request("add", [40, 2])


def _with_head_of(length: int) -> bytes:
    """A request whose request line and headers, including the blank line, have this length."""
    start = post(f"Content-Length: {len(CALL)}", "X: ")
    return start.replace(b"X: ", b"X: " + b"x" * (length - len(start))) + CALL


def _with_headers(count: int) -> bytes:
    more = (f"X{number}: x" for number in range(count - 2))
    return post(f"Content-Length: {len(CALL)}", *more) + CALL


def _with_extension(length: int) -> bytes:
    size = f"{len(CALL):x}".encode()
    return chunked(size + b";" + b"x" * (length - 1) + b"\r\n" + CALL + b"\r\n0\r\n\r\n")


FRAMING: list[tuple[str, bytes, int]] = [
    (
        "Content-Length and Transfer-Encoding",
        post("Content-Length: 5", "Transfer-Encoding: chunked"),
        400,
    ),
    (
        "Transfer-Encoding on HTTP/1.0",
        post("Transfer-Encoding: chunked", version="HTTP/1.0"),
        400,
    ),
    ("lines ended by LF alone", b"POST / HTTP/1.1\nHost: localhost\n\n", 400),
    ("one header ended by LF alone", b"POST / HTTP/1.1\r\nHost: localhost\nA: b\r\n\r\n", 400),
    ("two Content-Length that differ", post("Content-Length: 5", "Content-Length: 6"), 400),
    ("two Content-Length alike", post("Content-Length: 5", "Content-Length: 5"), 400),
    ("Content-Length: 5, 5", post("Content-Length: 5, 5"), 400),
    ("Content-Length: +5", post("Content-Length: +5"), 400),
    ("Content-Length: -1", post("Content-Length: -1"), 400),
    ("Content-Length: 1_0", post("Content-Length: 1_0"), 400),
    ("Content-Length: 0x10", post("Content-Length: 0x10"), 400),
    ("an empty Content-Length", post("Content-Length: "), 400),
    ("a Content-Length of 20 digits", post("Content-Length: 99999999999999999999"), 400),
    ("chunked twice", post("Transfer-Encoding: chunked, chunked"), 400),
    ("chunked not last", post("Transfer-Encoding: chunked, gzip"), 400),
    ("an unknown transfer coding", post("Transfer-Encoding: gzip, chunked"), 501),
    ("a chunk size of 0x1", chunked(b"0x1\r\na\r\n0\r\n\r\n"), 400),
    ("a chunk size of 1_0", chunked(b"1_0\r\n"), 400),
    ("a chunk size in spaces", chunked(b" 1 \r\na\r\n0\r\n\r\n"), 400),
    ("a chunk size of -1", chunked(b"-1\r\n"), 400),
    ("a chunk size of 17 digits", chunked(b"f" * 17 + b"\r\n"), 400),
    ("a chunk size ended by LF alone", chunked(b"1\na\r\n0\r\n\r\n"), 400),
    ("a chunk extension without a name", chunked(b"1;\r\na\r\n0\r\n\r\n"), 400),
    ("a chunk extension of white space", chunked(b"1; \r\na\r\n0\r\n\r\n"), 400),
    ("a chunk extension of a value alone", chunked(b"1;=x\r\na\r\n0\r\n\r\n"), 400),
    ("a chunk extension without its value", chunked(b"1;x=\r\na\r\n0\r\n\r\n"), 400),
    ("a chunk extension with an open quote", chunked(b'1;x="y\r\na\r\n0\r\n\r\n'), 400),
    ("chunk data longer than it says", chunked(b"1\r\nab\r\n0\r\n\r\n"), 400),
    ("chunk data ended by LF alone", chunked(b"1\r\na\n0\r\n\r\n"), 400),
    ("a trailer ended by LF alone", chunked(b"0\r\nA: b\n\r\n"), 400),
    ("NUL in a header value", post("A: \0"), 400),
    ("CR in a header value", post("A: b\rc"), 400),
    ("a space before the colon", post("A : b"), 400),
    ("a header without a colon", post("A"), 400),
    ("an empty header name", post(": b"), 400),
    ("a folded header", post("A: b", " c"), 400),
    ("no Host on HTTP/1.1", head("POST / HTTP/1.1"), 400),
    ("two Hosts", post(HOST), 400),
    ("a malformed Host", head("POST / HTTP/1.1", "Host: a b"), 400),
    ("a Host with user information", head("POST / HTTP/1.1", "Host: a@localhost"), 400),
    ("a request line of one word", b"POST\r\n\r\n", 400),
    ("a target that is not a path", head("POST other HTTP/1.1", HOST), 400),
    ("an unknown Expect", post("Expect: 200-maybe"), 417),
    ("the HTTP/2 preface", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    ("another method", head("DELETE / HTTP/1.1", HOST), 405),
    ("another path", head("POST /other HTTP/1.1", HOST, "Content-Length: 0"), 404),
]


def framing() -> list[Case]:
    group = "HTTP framing"
    return [
        Case(group, name, f"{status}, closed", data, behind=True) for name, data, status in FRAMING
    ]


def limits() -> list[Case]:
    """Limits of one message: the last allowed value and the first rejected one of each."""
    group = "Limits of a message"

    def pair(name: str, make: Callable[[int], bytes], limit: int, ok: str, no: str) -> list[Case]:
        return [
            Case(group, f"{name}: {limit:,}", ok, make(limit)),
            Case(group, f"{name}: {limit + 1:,}", no, make(limit + 1)),
        ]

    def body(length: int) -> bytes:
        whole = http(CALL + b" " * (length - len(CALL)))
        # It must be rejected before the body is read, so the body is incomplete.
        return whole if length <= 16_777_216 else whole[:1_000]

    def document(length: int) -> bytes:
        return CALL[:-1] + b" " * (length - len(CALL)) + b"}"

    def nested(depth: int) -> bytes:
        # The request and the list of its params are two levels.
        return request("echo", [0]).replace(b"[0]", b"[" * (depth - 1) + b"]" * (depth - 1))

    def batch(calls: int) -> bytes:
        return b"[" + b",".join([CALL] * calls) + b"]"

    def id(length: int) -> bytes:
        return request("add", [40, 2], id="x" * (length - 2))

    def digits(count: int) -> bytes:
        return request("echo", [0]).replace(b"[0]", b"[" + b"7" * count + b"]")

    def over_http(make: Callable[[int], bytes]) -> Callable[[int], bytes]:
        return lambda value: http(make(value))

    return [
        *pair("bytes of the headers", _with_head_of, 16_384, "200", "431, closed"),
        *pair("headers", _with_headers, 100, "200", "431, closed"),
        *pair("bytes of a body", body, 16_777_216, "200", "413, closed"),
        *pair("bytes of a raw document", document, 16_777_216, "result", "-32600, closed"),
        *pair("bytes of chunk extensions", _with_extension, 16_384, "200", "400, closed"),
        *pair("levels of nesting", over_http(nested), 128, "200", "200 -32700"),
        *pair("levels of nesting, raw", nested, 128, "result", "-32700, closed"),
        *pair("calls in a batch", over_http(batch), 1_000, "200", "200 -32600"),
        *pair("calls in a batch, raw", batch, 1_000, "result", "-32600"),
        *pair("bytes of an id", over_http(id), 1_024, "200", "200 -32600"),
        *pair("bytes of an id, raw", id, 1_024, "result", "-32600"),
        *pair("digits of an integer", over_http(digits), 4_300, "200", "200 -32602"),
    ]


def _call(text: str) -> bytes:
    return f'{{"jsonrpc":"2.0","id":1,"method":"echo","params":[{text}]}}'.encode()


def _array(data: bytes) -> bytes:
    return request("total", [base64.b64encode(data).decode()])


def _npy(array: Any, **options: Any) -> bytes:
    out = io.BytesIO()
    numpy.save(out, array, **options)
    return out.getvalue()


def _image(kind: str, size: tuple[int, int]) -> bytes:
    out = io.BytesIO()
    Image.new("1", size).save(out, kind)
    return request("size", [base64.b64encode(out.getvalue()).decode()])


JSON: list[tuple[str, bytes, int]] = [
    ("incomplete text", b'{"jsonrpc":"2.0",', -32700),
    ("text after the document", CALL + b"x", -32700),
    ("invalid UTF-8", _call('"!"').replace(b"!", b"\xff"), -32700),
    ("overlong UTF-8", _call('"!"').replace(b"!", b"\xc0\x80"), -32700),
    ("a surrogate in UTF-8", _call('"!"').replace(b"!", b"\xed\xa0\x80"), -32700),
    ("an escaped lone surrogate", _call('"\\ud800"'), -32700),
    ("NaN", _call("NaN"), -32700),
    ("Infinity", _call("-Infinity"), -32700),
    ("a trailing comma", _call("1,"), -32700),
    ("a control character in a string", _call('"\n"'), -32700),
    ("100,000 open brackets", b"[" * 100_000, -32700),
    ("an empty batch", b"[]", -32600),
    ("a bare string", b'"add"', -32600),
    ("jsonrpc of 1.0", CALL.replace(b'"2.0"', b'"1.0"'), -32600),
    ("an id that is a list", CALL.replace(b'"id": 1', b'"id": [1]'), -32600),
    ("an id that is true", CALL.replace(b'"id": 1', b'"id": true'), -32600),
    ("params that are a number", CALL.replace(b"[40, 2]", b"7"), -32600),
    ("no method", CALL.replace(b"method", b"nothing"), -32600),
    ("an unknown method", request("__import__", ["os"]), -32601),
    ("a param too few", request("add", [1]), -32602),
    ("a param too many", request("add", [1, 2, 3]), -32602),
    ("a param of another name", request("add", {"a": 1, "c": 2}), -32602),
    ("1.0 for an int", request("add", [1, 2.0]), -32602),
    ("true for an int", request("add", [1, True]), -32602),
    ("an array that pickles", _array(_npy(numpy.array([{}]), allow_pickle=True)), -32602),
    (
        "an array whose shape claims 8 TB",
        _array(_npy(numpy.zeros(1)).replace(b"(1,), }", b"(1" + b"0" * 12 + b",), }")),
        -32602,
    ),
    ("an image of 100 million pixels", _image("PNG", (10_000, 10_000)), -32602),
    ("an image of a format not allowed", _image("PCX", (8, 8)), -32602),
    ("an exception in the function", request("fail"), -32603),
    ("sys.exit in the function", request("leave"), -32603),
    ("a result that cannot be written", request("unwritable"), -32603),
    ("a result that contains itself", request("recurse"), -32603),
]


def documents() -> list[Case]:
    over_http = [
        Case("JSON and JSON-RPC", name, f"200 {code}", http(data), behind=True)
        for name, data, code in JSON
    ]
    # Over raw TCP only the end of the stream shows that a document is incomplete.
    unfinished = ("incomplete text",)
    # A document there starts with { or [.
    over_tcp = [
        Case(
            "JSON and JSON-RPC, raw",
            name,
            _raw_reply(name, code),
            data,
            behind=True,
        )
        for name, data, code in JSON
        if name not in unfinished
    ]
    return over_http + over_tcp


def _raw_reply(name: str, code: int) -> str:
    if name == "text after the document":
        return "result, -32700, closed"
    if name == "a bare string":
        return "-32700, closed"
    return f"{code}, closed" if code == -32700 else str(code)


BROWSERS: list[tuple[str, bytes, str]] = [
    ("a foreign Host (DNS rebinding)", head("POST / HTTP/1.1", "Host: evil.example"), "403"),
    (
        "the same on another path",
        head("POST /other HTTP/1.1", "Host: evil.example"),
        "403",
    ),
    (
        "a Host that contains the server's address",
        head("POST / HTTP/1.1", "Host: 127.0.0.1.evil.example"),
        "403",
    ),
    ("a foreign Origin", post("Origin: https://evil.example"), "403"),
    ("Origin: null", post("Origin: null"), "403"),
    (
        "the preflight of a foreign Origin",
        head(
            "OPTIONS / HTTP/1.1",
            HOST,
            "Origin: https://evil.example",
            "Access-Control-Request-Method: POST",
        ),
        "403",
    ),
    (
        "a WebSocket from a foreign Origin",
        head(
            "GET / HTTP/1.1",
            HOST,
            "Origin: https://evil.example",
            "Connection: Upgrade",
            "Upgrade: websocket",
        ),
        "403",
    ),
]


def browsers() -> list[Case]:
    group = "Browsers"
    length = f"Content-Length: {len(CALL)}"
    named = "Origin: https://app.example"
    refused = [
        Case(group, name, f"{status}, closed", data, behind=True, server="tight")
        for name, data, status in BROWSERS
    ]
    preflight = head("OPTIONS / HTTP/1.1", HOST, named, "Access-Control-Request-Method: POST")
    return [
        *refused,
        Case(group, "an allowed Origin", "200", post(named, length) + CALL, server="tight"),
        Case(group, "its preflight", "204", preflight, server="tight"),
        Case(
            group,
            "an allowed Host",
            "200",
            head("POST / HTTP/1.1", "Host: box.lan", length) + CALL,
            server="tight",
        ),
    ]


UNAUTHENTICATED = [
    ("bytes of an unknown protocol", b"\x00\x01\x02\x03"),
    ("65 spaces", b" " * 65 + CALL),
    ("an SSH client", b"SSH-2.0-OpenSSH_9.2\r\n"),
    ("a Redis client", b"*1\r\n$4\r\nPING\r\n"),
]


def unauthenticated() -> list[Case]:
    replies = {"an SSH client": "400, closed"}
    return [
        Case("Other protocols", name, replies.get(name, "-32700, closed"), data)
        for name, data in UNAUTHENTICATED
    ]


def codes_in(body: bytes) -> str:
    """The code of an error reply, or None."""
    try:
        found = json.loads(body)
    except ValueError:
        return ""
    error = found.get("error") if isinstance(found, dict) else None
    return str(error["code"]) if isinstance(error, dict) else ""
