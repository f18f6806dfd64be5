"""Requests with changed bytes, compared with the framing of h11 and httptools (llhttp).

For each request that ucall serves, h11 must find the same body: a server that is more lenient than
a strict parser may see another request than the proxy in front of it. This file lists the requests
that ucall rejects and h11 accepts.
"""

from __future__ import annotations

import contextlib
import json
import random
import re
from collections import Counter

import h11
import httptools
from limits import LimitedServer, call, chunked, post

ROUNDS = 6_000
BODY = call("echo", value=[1])
SEEDS = [
    post(BODY),
    post(BODY, "Connection: keep-alive", "X-One: 1", "X-Two: a b"),
    post(BODY, "Expect: 100-continue"),
    post(BODY).replace(b"POST / ", b"POST http://localhost/ "),
    chunked(BODY),
    chunked(BODY, ";a=b").replace(b"0\r\n\r\n", b"0\r\nTrailer: x\r\n\r\n"),
    chunked(BODY[:9])[:-5] + b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY) - 9, BODY[9:]),
]
TOKENS = [b"\r\n", b"\n", b"\r", b" ", b"\t", b":", b";", b",", b"=", b"\0", b"\x7f", b"\xff", b"0"]
TOKENS += [
    b"+",
    b"-",
    b"_",
    b"0x",
    b"00",
    b"Content-Length: 5\r\n",
    b"Host: b\r\n",
    b"chunked",
    b"9",
]
TOKENS += [b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: identity\r\n", b"HTTP/1.0"]
TOKENS += [b"\r\n\r\n", b" \r\n", b"\r\n x", b"close", b"f" * 16, b"\x0b", b'"', b"a", b"#", b"%"]

HOST = rb"(?:(?:[\w.~!$&'()*+,;=-]|%[0-9a-fA-F]{2})+|\[[0-9a-fA-F:.]+\])(?::\d*)?"
AUTHORITY = re.compile(HOST)
#: RFC 9112, 7.1.1. ucall accepts no white space between a chunk's size and its first extension.
NAME = rb"[\w!#$%&'*+.^`|~-]+"
QUOTED = rb'"(?:[^"\\\x00-\x08\x0a-\x1f\x7f]|\\[^\x00-\x08\x0a-\x1f\x7f])*"'
EXTENSION = rb"[ \t]*;[ \t]*" + NAME + rb"(?:[ \t]*=[ \t]*(?:" + NAME + rb"|" + QUOTED + rb"))?"
EXTENSIONS = re.compile(rb"(?:" + EXTENSION + rb")*")
TARGET = re.compile(rb"(?:\r\n)*\w+ (?:/|\*|http://" + HOST + rb"(?:[/?]| ))")


def mutated(rng: random.Random) -> bytes:
    data = bytearray(rng.choice(SEEDS))
    # This test does not cover the document in the body.
    end = data.find(BODY[:9]) if rng.random() < 0.7 else len(data)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        start = rng.randrange(end + 1)
        cut = start + rng.choice([0, 0, 1, 1, 2, 5, 20])
        data[start : min(cut, len(data))] = rng.choice([rng.choice(TOKENS), b""])
    return bytes(data)


def by_h11(data: bytes) -> bytes | None:
    """The body of the first request; ``None`` if it is rejected or incomplete."""
    connection = h11.Connection(h11.SERVER)
    try:
        # It does not accept empty lines before a request (RFC 9112, 2.2).
        connection.receive_data(data.lstrip(b"\r\n") if data.startswith(b"\r\n") else data)
        body = b""
        while True:
            event = connection.next_event()
            if isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                return body
            elif not isinstance(event, h11.Request):
                return None
    except h11.RemoteProtocolError:
        return None


def by_httptools(data: bytes) -> bytes | None:
    class ParsedBody:
        body: bytes | None = None
        whole = b""

        def on_body(self, part: bytes) -> None:
            self.whole += part

        def on_message_complete(self) -> None:
            if self.body is None:
                self.body = self.whole

    seen = ParsedBody()
    with contextlib.suppress(httptools.HttpParserError):
        httptools.HttpRequestParser(seen).feed_data(data)
    return seen.body


def ours(peer: LimitedServer, data: bytes) -> tuple[str, bytes | None]:
    """The status and result of the first reply; no status if the server waits for more bytes."""
    with peer.wires(1) as [wire]:
        wire.send(data)
        wire.socket.shutdown(1)
        found = None
        while not found or found[1] == b"100":
            found = wire.match(rb"HTTP/1.1 (\d+) .*?\r\n\r\n")
            if not found:
                return "", None
        body = wire.match(rb'\{"jsonrpc".*?\}\n?|.*?\n') if found[1] == b"200" else None
        return found[1].decode(), body[0] if body else None


def test_accepted_requests_are_accepted_by_strict_parsers(peer: LimitedServer) -> None:
    rng = random.Random(9)
    refused_alone: Counter[str] = Counter()
    served = 0
    for _ in range(ROUNDS):
        data = mutated(rng)
        status, reply = ours(peer, data)
        strict, lenient = by_h11(data), by_httptools(data)
        if status in ("200", "204"):
            served += 1
            assert strict is not None, data
            assert lenient == strict or lenient is None, data
            if reply:
                assert (b'"result":[1]' in reply) == _is_echoed(strict), data
        elif status == "400" and strict is not None:
            refused_alone[_why(data)] += 1
    assert served > ROUNDS / 10
    assert refused_alone[""] == 0, refused_alone


def _is_echoed(body: bytes) -> bool:
    try:
        found = json.loads(body)
    except ValueError:
        return False
    return found == json.loads(BODY)


def _why(data: bytes) -> str:
    """The known reason why ucall rejects a request that h11 accepts, or ""."""
    head = data.partition(b"\r\n\r\n")[0] + b"\r\n"
    hosts = re.findall(rb"(?i)\r\nhost:[ \t]*([^\r\n]*?)[ \t]*(?=\r\n)", head)
    for why, is_so in {
        "a bare LF": re.search(rb"(?<!\r)\n", data),
        "a folded line": re.search(rb"\r\n[ \t]", head),
        "a control character": b"\x7f" in head,
        "a malformed host": not all(map(AUTHORITY.fullmatch, hosts)),
        "a target that is no path": not TARGET.match(head),
        "a length twice": len(re.findall(rb"(?i)content-length:", head)) > 1,
        "a length like 5, 5": re.search(rb"(?i)content-length:[^\r]*,", head),
        "a length and a coding": b"Content-Length:" in head and b"Transfer-Encoding:" in head,
        "a chunk extension that is none": not all(
            map(EXTENSIONS.fullmatch, re.findall(rb"\r\n[0-9a-f]+(;[^\n]*)\r\n", data))
        ),
        "white space behind a chunk's size": re.search(rb"\r\n[0-9a-f]+[ \t]+(\r\n|;)", data),
    }.items():
        if is_so:
            return why
    print(data)
    return ""
