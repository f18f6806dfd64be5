"""The last allowed and the first rejected value of every limit, set by its option.

The same cases run for servers in Python and in C, on each engine, with and without TLS. A server
has the functions of `served.py` and `programs/limits.c`: `echo(value)`, `text(length)`, `hold()`,
which returns after `release()`, and `held()` and `served()`, which count.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import re
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from wire import HOST, Wire

#: Longer than a time limit and the second within which a sweep finds it.
WAIT_S = 60


class LimitedWire(Wire):
    """Takes replies by their shape, and bears a server that has closed."""

    def send(self, data: bytes) -> None:
        # The server may reject the request before it has read all of it.
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            super().send(data)

    def more(self) -> bool:
        try:
            return super().more()
        except (ConnectionError, ssl.SSLError):
            return False

    def match(self, pattern: bytes) -> re.Match[bytes] | None:
        """The next match of the pattern, once it has arrived; ``None`` at the end."""
        while not (found := re.match(pattern, bytes(self.received), re.DOTALL)):
            if not self.more():
                return None
        del self.received[: found.end()]
        return found

    def summary(self) -> str:
        """The next reply in a word or two: status and code, or "closed"."""
        while len(self.received) < 5 and self.more():
            pass
        if not self.received.startswith(b"HTTP/"):
            line = self.match(rb"([^\n]*)\n")
            return code_in(line[1]) if line else "closed"
        head = self.match(rb"HTTP/1.1 (\d+) .*?\r\n\r\n")
        if not head:
            return "closed"
        length = re.search(rb"(?i)\r\ncontent-length: (\d+)", head[0])
        body = self.match(b".{%s}" % (length[1] if length else b"0"))
        status = head[1].decode()
        return f"{status} {code_in(body[0])}" if body and status == "200" else status

    def upgrade(self) -> None:
        """Makes the connection a WebSocket."""
        self.send(UPGRADE)
        assert self.match(rb"HTTP/1.1 101 .*?\r\n\r\n")

    def frame(self) -> str:
        """The next frame in a word: "ping", "ok", or the code of an error or a Close frame."""
        found = self.match(rb"(.)([\x00-\x7d]|\x7e..)")
        if not found:
            return "closed"
        length = int.from_bytes(found[2][-2:])
        payload = self.match(b"(.{%d})" % length)
        assert payload
        if found[1] == b"\x88":
            return str(int.from_bytes(payload[1][:2]))
        return "ping" if found[1] == b"\x89" else code_in(payload[1])

    def words(self) -> str:
        words = [self.summary()]
        while words[-1] != "closed":
            words.append(self.summary())
        return ", ".join(words)

    def ask(self, data: bytes) -> str:
        self.send(data)
        return self.summary()


def code_in(text: bytes) -> str:
    """The code of an error, or "ok"."""
    found = json.loads(text)
    return str(found["error"]["code"]) if "error" in found else "ok"


@dataclass(frozen=True)
class LimitedServer:
    """A server under test."""

    port: int
    context: ssl.SSLContext | None = None

    @contextlib.contextmanager
    def wires(self, count: int) -> Iterator[list[LimitedWire]]:
        wires = [LimitedWire(self.port, WAIT_S, context=self.context) for _ in range(count)]
        try:
            yield wires
        finally:
            for wire in wires:
                wire.close()

    def ask(self, data: bytes) -> str:
        """The replies on a connection of its own, with "closed" at the end if it closes."""
        with self.wires(1) as [wire]:
            word = wire.ask(data)
            if (
                wire.ask(call("served") if data[:1] in b"{[\xb1" else post(call("served")))
                == "closed"
            ):
                return f"{word}, closed"
            return word

    def result(self, method: str) -> Any:
        with self.wires(1) as [wire]:
            wire.send(call(method))
            line = wire.match(rb"([^\n]*)\n")
            assert line
            return json.loads(line[1])["result"]


def call(method: str, call_id: object = 1, **params: Any) -> bytes:
    named = {"jsonrpc": "2.0", "method": method, "params": params, "id": call_id}
    return json.dumps(named, separators=(",", ":")).replace(',"id":"none"', "").encode()


def post(body: bytes, *headers: str) -> bytes:
    lines = ["POST / HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


def chunked(body: bytes, extension: str = "") -> bytes:
    head = b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + b"%x%s\r\n%s\r\n0\r\n\r\n" % (len(body), extension.encode(), body)


UPGRADE = (
    b"GET /ws HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


def frame(first: int, payload: bytes) -> bytes:
    """A client's frame, whose mask changes nothing."""
    length = len(payload)
    extended = bytes([0x80 | length]) if length < 126 else b"\xfe" + length.to_bytes(2)
    return bytes([first]) + extended + bytes(4) + payload


def message(text: bytes, frames: int = 1) -> bytes:
    """A text message in that many frames."""
    parts = [text, *[b""] * (frames - 1)]
    heads = [0x01, *[0x00] * (frames - 1)]
    heads[-1] |= 0x80
    return b"".join(map(frame, heads, parts))


Check = Callable[[LimitedServer, int], None]


@dataclass(frozen=True)
class Limit:
    """A limit with its options, its value, and its test."""

    python: str
    c: str
    value: int
    check: Check
    #: The server's interval between pings.
    ping_interval_s: float = 20.0


def _pairs(*forms: tuple[Callable[[int], bytes], str, str]) -> Check:
    """Requests of a given length or number, with the replies to the last allowed and the first
    rejected one."""

    def check(server: LimitedServer, limit: int) -> None:
        for form, allowed, refused in forms:
            assert server.ask(form(limit)) == allowed
            assert server.ask(form(limit + 1)) == refused

    return check


def _head(length: int) -> bytes:
    empty = len(post(b"", "X: "))
    return post(b"", "X: " + "x" * (length - empty))


def _headers(count: int) -> bytes:
    return post(b"", *["X: x"] * (count - 2))


def _document(length: int) -> bytes:
    text = call("served")
    return text[:-1] + b" " * (length - len(text)) + b"}"


def _compressed(ratio: int) -> bytes:
    """A body of 100,000 bytes, or a few less, whose gzip is a name of the right length and they."""
    text = call("served") + b" " * 100_000
    length = 100_000 // ratio
    text = text[: length * ratio]
    name_length = length - len(_gzip(text, 0))
    body = _gzip(text, name_length)
    assert len(body) == length
    return post(body, "Content-Encoding: gzip")


def _gzip(text: bytes, name_length: int) -> bytes:
    packed = gzip.compress(text, mtime=0)
    # The name of the file, which ends with a NUL, follows ten bytes.
    return packed[:3] + b"\x08" + packed[4:10] + b"x" * name_length + b"\0" + packed[10:]


def _nested(depth: int) -> bytes:
    value: list[Any] = []
    # The request and its params are two levels of nesting.
    for _ in range(depth - 3):
        value = [value]
    return call("echo", value=value)


def _batch(count: int) -> bytes:
    # The reply is one array, which has no error of its own.
    return b"[" + b",".join([call("served", None)] * count) + b"]"


def _framed(count: int) -> bytes:
    """A frame of so many empty parts, which nothing uses."""
    text = call("served")
    head = b"\xb1\x01" + count.to_bytes(2, "little") + len(text).to_bytes(4, "little")
    text = head + bytes(8 * count) + text
    return text + bytes(-len(text) % 64)


def _text(length: int) -> bytes:
    return call("text", length=length - len('{"jsonrpc":"2.0","id":1,"result":""}'))


def _id(length: int) -> bytes:
    return call("served", "x" * (length - 2))


def _meta(length: int) -> bytes:
    meta = json.dumps({"x": "x" * (length - len('{"x": ""}'))})
    return call("served").rstrip()[:-1] + b', "_meta": ' + meta.encode() + b"}"


def _pipeline(server: LimitedServer, limit: int) -> None:
    with server.wires(1) as [wire]:
        wire.send(call("hold") * (limit + 1))
        assert _eventually(lambda: server.result("held") == limit)
        time.sleep(0.05)
        assert server.result("held") == limit
        server.result("release")
        assert [wire.summary() for _ in range(limit)] == ["ok"] * limit
        assert _eventually(lambda: server.result("held") == 1)
        server.result("release")
        assert wire.summary() == "ok"


def _connection_calls(server: LimitedServer, limit: int) -> None:
    with server.wires(1) as [wire]:
        wire.send(b"".join(call("hold", call_id) for call_id in range(limit + 1)))
        assert _eventually(lambda: server.result("held") == limit)
        assert wire.ask(call("$/cancelRequest", "none", id=0)) == "-32800"
        assert _eventually(lambda: server.result("held") == limit + 1)
        server.result("release")
        assert [wire.summary() for _ in range(limit)] == ["ok"] * limit


def _running(server: LimitedServer, limit: int) -> None:
    with server.wires(limit + 1) as wires:
        for wire in wires[:limit]:
            wire.send(call("hold"))
        assert _eventually(lambda: server.result("held") == limit)
        assert wires[limit].ask(call("hold")) == "-32003"
        server.result("release")
        assert {wire.summary() for wire in wires[:limit]} == {"ok"}


def _output(server: LimitedServer, limit: int) -> None:
    """Replies that the client does not read: the kernel's buffers, and at most this much more."""
    asked, length = 100, 200_000
    with server.wires(1) as [wire]:
        wire.send(call("text", length=length) * asked)
        count = 0
        while (before := count) != (count := server.result("served")) or count == 0:
            time.sleep(0.2)
        # The kernel buffers up to 4 MiB on one side and 6 MiB on the other.
        assert 0 < count < asked - 30
        assert [wire.summary() for _ in range(asked)] == ["ok"] * asked
    assert before == count


def _held(server: LimitedServer, limit: int) -> None:
    with server.wires(1) as [wire]:
        wire.send(post(b" " * limit * 4)[: limit // 2])
        assert server.ask(post(call("served"))) == "200 ok"
    with server.wires(1) as [wire]:
        wire.send(post(b" " * limit * 4)[: limit * 2])
        assert _eventually(lambda: server.ask(post(call("served"))) == "503, closed")
        with server.wires(1) as [raw]:
            assert raw.ask(call("served")) == "-32003"
    assert _eventually(lambda: server.ask(post(call("served"))) == "200 ok")


def _connections(server: LimitedServer, limit: int) -> None:
    with server.wires(limit) as wires:
        for wire in wires:
            assert wire.ask(call("served")) == "ok"
        with server.wires(1) as [new_wire]:
            assert new_wire.ask(call("served")) == "ok"
            assert wires[0].summary() == "closed"
            assert {wire.ask(call("served")) for wire in wires[1:]} == {"ok"}


def _connections_of_a_peer(server: LimitedServer, limit: int) -> None:
    def is_served() -> bool:
        with contextlib.suppress(ConnectionError, ssl.SSLError), server.wires(1) as [wire]:
            return wire.ask(call("served")) == "ok"
        return False

    with server.wires(limit) as wires:
        assert [wire.ask(call("served")) for wire in wires] == ["ok"] * limit
        assert not is_served()
    assert _eventually(is_served)


def _messages(form: Callable[[int], bytes]) -> Check:
    """WebSocket messages of a given length or number of frames."""

    def check(server: LimitedServer, limit: int) -> None:
        with server.wires(1) as [wire]:
            wire.upgrade()
            wire.send(form(limit) + form(limit + 1))
            assert [wire.frame() for _ in range(3)] == ["ok", "1009", "closed"]

    return check


def _in_halves(length: int) -> bytes:
    text = _document(length)
    return frame(0x01, text[:50]) + frame(0x80, text[50:])


def _pings(server: LimitedServer, limit: int) -> None:
    with server.wires(1) as [silent]:
        silent.upgrade()
        expected = [*["ping"] * limit, "1008", "closed"]
        assert [silent.frame() for _ in expected] == expected


def _discarded(server: LimitedServer, limit: int) -> None:
    def are_allowed() -> bool:
        with server.wires(1) as [wire]:
            assert wire.ask(b"BAD\n") == "400"
            plain = _under(wire)
            passed = _sends(plain, b"x" * limit)
            time.sleep(0.2)
            passed = passed and _sends(plain)
            assert _eventually(lambda: not _sends(plain))
            return passed

    # The connection closes after a second, so a slow machine may need several attempts.
    assert _eventually(are_allowed)


def _under(wire: LimitedWire) -> socket.socket:
    """The connection without TLS, after the last use of TLS on it."""
    assert wire.summary() == "closed"
    return socket.socket(fileno=wire.socket.detach())


def _sends(plain: socket.socket, data: bytes = b"x") -> bool:
    try:
        plain.sendall(data)
        return True
    except OSError:
        return False


def _eventually(condition: Callable[[], bool], timeout_s: float = WAIT_S) -> bool:
    end = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


OK, HTTP_OK = "ok", "200 ok"

#: Each case runs on a server of its own, which has only this option.
LIMITS = [
    Limit("max_head_bytes", "max_head_bytes", 300, _pairs((_head, "200 -32700", "431, closed"))),
    Limit("max_headers", "max_headers", 5, _pairs((_headers, "200 -32700", "431, closed"))),
    Limit(
        "max_body_bytes",
        "max_body_bytes",
        300,
        _pairs(
            (_document, OK, "-32600, closed"),
            (lambda length: post(_document(length)), HTTP_OK, "413, closed"),
            (lambda length: chunked(_document(length)), HTTP_OK, "413, closed"),
        ),
    ),
    Limit("max_body_bytes", "max_body_bytes", 301, _messages(_in_halves)),
    Limit("max_body_ratio", "max_body_ratio", 10, _pairs((_compressed, HTTP_OK, "413, closed"))),
    Limit(
        "max_chunk_overhead_bytes",
        "max_chunk_overhead_bytes",
        40,
        _pairs(
            (
                lambda length: chunked(call("served"), ";" + "x" * (length - 1)),
                HTTP_OK,
                "400, closed",
            )
        ),
    ),
    Limit(
        "max_nesting",
        "max_nesting",
        7,
        _pairs(
            (_nested, OK, "-32700, closed"),
            (lambda depth: post(_nested(depth)), HTTP_OK, "200 -32700"),
        ),
    ),
    Limit(
        "max_batch_calls",
        "max_batch_calls",
        3,
        _pairs((_batch, OK, "-32600"), (lambda count: post(_batch(count)), HTTP_OK, "200 -32600")),
    ),
    Limit(
        "max_parts",
        "max_parts",
        3,
        _pairs(
            (_framed, OK, "-32600, closed"),
            (lambda count: post(_framed(count)), HTTP_OK, "200 -32600"),
        ),
    ),
    Limit(
        "max_reply_bytes",
        "max_reply_bytes",
        200,
        _pairs((_text, OK, "-32603"), (lambda size: post(_text(size)), HTTP_OK, "200 -32603")),
    ),
    Limit(
        "max_id_bytes",
        "max_id_bytes",
        20,
        _pairs((_id, OK, "-32600"), (lambda length: post(_id(length)), HTTP_OK, "200 -32600")),
    ),
    Limit(
        "max_meta_bytes",
        "max_meta_bytes",
        20,
        _pairs((_meta, OK, "-32600"), (lambda length: post(_meta(length)), HTTP_OK, "200 -32600")),
    ),
    Limit(
        "max_frame_bytes",
        "max_frame_bytes",
        100,
        _messages(lambda length: message(_document(length))),
    ),
    Limit(
        "max_message_frames",
        "max_message_frames",
        5,
        _messages(lambda count: message(call("served"), count)),
    ),
    Limit("max_unanswered_pings", "max_unanswered_pings", 2, _pings, 1.0),
    Limit("max_pipeline", "max_pipeline", 4, _pipeline),
    Limit("max_connection_calls", "max_connection_calls", 4, _connection_calls),
    Limit("max_output_bytes", "max_output_bytes", 100_000, _output),
    Limit("max_held_bytes", "max_held_bytes", 200_000, _held),
    Limit("max_running_calls", "max_running_calls", 3, _running),
    Limit("max_connections", "max_connections", 4, _connections),
    Limit("max_connections_per_peer", "max_connections_per_peer", 4, _connections_of_a_peer),
    Limit("max_discarded_bytes", "max_discarded_bytes", 2_000, _discarded),
]

#: The time limits, by their names without a unit: all have this value and are tested together.
TIMEOUTS = [
    "head_timeout",
    "body_timeout",
    "idle_timeout",
    "ping_interval",
    "send_timeout",
    "handshake_timeout",
    "discard_timeout",
]
#: Apart from every default, so that an option without an effect is seen.
TIMEOUT_S = 2.5
#: Nothing takes as long unless the default of a limit applies.
LATE_S = 8.0


def check_timeouts(server: LimitedServer) -> None:
    """For each time limit, a client that is past it. What happens at which moment is tested on a
    clock that tests move, in crates/ucall-server/tests/worker/timeouts.rs."""
    requests = post(call("served")), chunked(call("served")), call("served")
    checks = [
        *(_half(server, data[:-5], "408, closed") for data in requests[:2]),
        _half(server, requests[0][:20], "408, closed"),
        _half(server, requests[2][:-5], "-32700, closed"),
        _half(server, b"", "closed"),
        _half(server, requests[2], "ok, closed"),
        _in_time(lambda: _is_pinged(server)),
        _in_time(lambda: _is_cut_off(server)),
        _in_time(lambda: _discards(server)),
        _in_time(lambda: _is_silent(server)),
    ]
    with ThreadPoolExecutor(len(checks)) as pool:
        for done in [pool.submit(check) for check in checks]:
            done.result()


def _in_time(is_ended: Callable[[], bool]) -> Callable[[], None]:
    """Retries for some times: on a busy machine a client may not see the moment."""

    def is_ended_now() -> bool:
        # A handshake has a limit, too.
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            start = time.monotonic()
            return is_ended() and 0.9 * TIMEOUT_S < time.monotonic() - start < LATE_S
        return False

    def check() -> None:
        assert any(is_ended_now() for _ in range(5))

    return check


def _half(server: LimitedServer, data: bytes, expected: str) -> Callable[[], None]:
    """A request that stops and does not continue."""

    def is_as_expected() -> bool:
        with server.wires(1) as [wire]:
            wire.send(data)
            return wire.words() == expected

    return _in_time(is_as_expected)


def _is_pinged(server: LimitedServer) -> bool:
    with server.wires(1) as [wire]:
        wire.upgrade()
        return wire.frame() == "ping"


def _is_cut_off(server: LimitedServer) -> bool:
    """Replies that exceed the kernel's buffers, and that the client does not read."""
    with server.wires(1) as [wire]:
        wire.send(call("text", length=4_000_000) * 5)
        time.sleep(TIMEOUT_S + 2)
        lines = 0
        while wire.more():
            lines += wire.received.count(b"\n")
            wire.received.clear()
        return lines < 5


def _discards(server: LimitedServer) -> bool:
    with server.wires(1) as [wire]:
        if wire.ask(b"BAD\n") != "400":  # It was sent too late.
            return False
        plain = _under(wire)
        return _eventually(lambda: not _sends(plain))


def _is_silent(server: LimitedServer) -> bool:
    """In the clear this is an idle connection."""
    with socket.create_connection((HOST, server.port), timeout=WAIT_S) as idle:
        return idle.recv(1) == b""
