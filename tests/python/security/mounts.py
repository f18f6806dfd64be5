"""Bad input for a mounted application, and applications that do wrong."""

from __future__ import annotations

from cases import HOST, Case, Scenario, head

from harness import Wire
from target import Target

HTTP, WEBSOCKET = "Mounted applications", "Mounted applications, WebSocket"
KEY = "dGhlIHNhbXBsZSBub25jZQ=="
MIB = 1 << 20
LIMIT = 16 * MIB


def get(path: str) -> bytes:
    return head(f"GET /app/{path} HTTP/1.1", HOST)


def post(framing: str, body: bytes, path: str = "count") -> bytes:
    return head(f"POST /app/{path} HTTP/1.1", HOST, framing) + body


def chunked(body: bytes) -> bytes:
    return post("Transfer-Encoding: chunked", body)


def http() -> list[Case]:
    inputs: list[tuple[str, str, bytes | Scenario]] = [
        ("it raises before its response", "500 -32603", get("raises")),
        ("it raises later, before its response", "500 -32603", get("raises-later")),
        ("it returns without a response", "500 -32603", get("returns")),
        ("it sends a body before the head", "500 -32603", get("body-first")),
        ("it answers twice", "200", get("twice")),
        ("it sends the head twice", "500 -32603", get("starts-twice")),
        ("it sends a body after the end", "200", get("after-the-end")),
        ("it sends more than its content-length", "500 -32603", get("too-long")),
        ("it sends less than its content-length", "200, closed", _ended("too-short")),
        ("it raises within its response", "200, closed", _ended("raises-within")),
        ("it sends a header with a line break", "500 -32603", get("splits")),
        ("it sends the status 99", "500 -32603", get("status")),
        ("it sends text for bytes", "500 -32603", get("text")),
        ("it sends messages of a WebSocket", "500 -32603", get("websocket")),
        ("it never answers", "504 -32001", get("never")),
        ("a body of 16 MiB", "200", post(f"Content-Length: {LIMIT}", bytes(LIMIT))),
        ("a body of one byte more", "413, closed", post(f"Content-Length: {LIMIT + 1}", b"")),
        ("chunks of 16 MiB", "200", chunked(b"%x\r\n%s\r\n0\r\n\r\n" % (LIMIT, bytes(LIMIT)))),
        ("chunks of one byte more", "413, closed", chunked(b"%x\r\n" % (LIMIT + 1))),
        ("a body that is cut off", "closed", _cut_off),
        ("a chunk without a size", "400, closed", chunked(b"3\r\nabc\r\nx\r\n")),
    ]
    return [Case(HTTP, name, it, sent, server="mounts") for name, it, sent in inputs]


def _ended(path: str) -> Scenario:
    """The response ends with its connection, without its last chunk."""

    def scenario(target: Target) -> str:
        with target.wire() as wire:
            wire.send(get(path))
            response = wire.rest()
            assert not response.endswith(b"0\r\n\r\n")
            return f"{response[9:12].decode()}, closed"

    return scenario


def _cut_off(target: Target) -> str:
    with target.wire() as wire:
        wire.send(post("Content-Length: 1000000", bytes(500_000)))
    return "closed"


def frame(data: bytes, opcode: int = 1, final: bool = True) -> bytes:
    """A client's frame, whose mask changes nothing."""
    length = len(data)
    size = (
        bytes([0x80 | length])
        if length < 126
        else b"\xfe" + length.to_bytes(2, "big")
        if length < 1 << 16
        else b"\xff" + length.to_bytes(8, "big")
    )
    return bytes([0x80 * final | opcode]) + size + bytes(4) + data


def upgrade(path: str, *changed: str) -> bytes:
    fields = {
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": KEY,
    }
    fields |= dict(line.split(": ", 1) for line in changed)
    lines = [f"{name}: {value}" for name, value in fields.items()]
    return head(f"GET /app/{path} HTTP/1.1", HOST, *lines)


def opened(path: str, frames: bytes = b"") -> Scenario:
    """Opens a WebSocket, and sends frames. The reply has the status, the messages and the code of
    the Close frame."""

    def scenario(target: Target) -> str:
        with target.wire() as wire:
            wire.send(upgrade(path))
            first = wire.take_to(b"\r\n\r\n")
            words = [first.split(b" ", 2)[1].decode()]
            if words == ["101"]:
                wire.send(frames)
                words += _frames(wire, closes=path == "echo")
            else:
                wire.rest()
            return ", ".join([*words, "closed"])

    return scenario


def _frames(wire: Wire, closes: bool) -> list[str]:
    """The messages and the code that arrive until the connection closes."""
    words = []
    while True:
        first, length = wire.take(2)
        if length == 126:
            length = int.from_bytes(wire.take(2), "big")
        elif length == 127:
            length = int.from_bytes(wire.take(8), "big")
        data = wire.take(length)
        if first == 0x88:
            wire.rest()
            return [*words, str(int.from_bytes(data[:2], "big"))]
        words.append("a message")
        if closes:
            wire.send(CLOSE)


def _leaving(target: Target) -> str:
    with target.wire() as wire:
        wire.send(upgrade("never"))
    return "closed"


CLOSE = frame(b"\x03\xe8", 8)
#: One with more fragments than a message may have.
FRAGMENTS = frame(b"", final=False) + frame(b"", 0, final=False) * 4096


def websocket() -> list[Case]:
    inputs: list[tuple[str, str, bytes | Scenario]] = [
        ("it denies it", "403, closed", opened("denies")),
        ("it raises before it accepts", "500, closed", opened("raises")),
        ("it returns before it accepts", "500, closed", opened("returns")),
        ("it never accepts", "504, closed", opened("never")),
        ("it sends before it accepts", "500, closed", opened("unaccepted")),
        ("it accepts with a line break", "500, closed", opened("subprotocol")),
        ("it accepts after it has denied", "403, closed", opened("after-denial")),
        ("it answers as HTTP", "500, closed", opened("twice")),
        ("it accepts twice", "101, 1011, closed", opened("accepts-twice")),
        ("it sends after its close", "101, 4000, closed", opened("closed")),
        ("it raises while open", "101, a message, 1011, closed", opened("raises-open")),
        ("it returns while open", "101, a message, 1000, closed", opened("leaves-open")),
        ("it closes with the code 1006", "101, 1011, closed", opened("code")),
        ("it sends neither text nor bytes", "101, 1011, closed", opened("neither")),
        ("a message", "101, a message, 1000, closed", opened("echo", frame(b"text"))),
        (
            "a message of 16 MiB",
            "101, a message, 1000, closed",
            opened("echo", frame(bytes(LIMIT), 2)),
        ),
        ("one of a byte more", "101, 1009, closed", opened("echo", b"\x82\xff%s" % _above())),
        ("more fragments than may be", "101, 1009, closed", opened("echo", FRAGMENTS)),
        ("a frame without a mask", "101, 1002, closed", opened("echo", b"\x81\x01a")),
        ("reserved bits", "101, 1002, closed", opened("echo", b"\xc1\x80\0\0\0\0")),
        ("an unknown opcode", "101, 1002, closed", opened("echo", frame(b"", 3))),
        ("text that is not UTF-8", "101, 1007, closed", opened("echo", frame(b"\xff"))),
        ("a Close frame of one byte", "101, 1002, closed", opened("echo", frame(b"a", 8))),
        ("a version that is not 13", "426, closed", upgrade("echo", "Sec-WebSocket-Version: 8")),
        ("a key of 15 bytes", "400, closed", upgrade("echo", f"Sec-WebSocket-Key: {KEY[:20]}")),
        ("a handshake with a body", "400, closed", upgrade("echo", "Content-Length: 1")),
        ("a client that leaves before the answer", "closed", _leaving),
    ]
    return [Case(WEBSOCKET, name, it, sent, server="mounts") for name, it, sent in inputs]


def _above() -> bytes:
    return (LIMIT + 1).to_bytes(8, "big") + bytes(4)


def cases() -> list[Case]:
    return [*http(), *websocket()]
