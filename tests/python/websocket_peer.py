"""The server's side of WebSocket for scripted peers, which may send what no server should."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import struct
from typing import Any

from scripted import Peer

SUFFIX = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
TEXT, PING, PONG, CLOSE = 0x1, 0x9, 0xA, 0x8


def accept(peer: Peer) -> bytes:
    """Reads the request for an upgrade; returns the reply to it."""
    peer.http_request()
    found = re.search(rb"Sec-WebSocket-Key: (\S+)", peer.head)
    assert found is not None
    proof = base64.b64encode(hashlib.sha1(found[1] + SUFFIX).digest())
    return (
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Accept: " + proof + b"\r\n\r\n"
    )


def upgrade(peer: Peer) -> None:
    """Accepts the upgrade."""
    peer.send(accept(peer))


def frame(payload: bytes, opcode: int = TEXT, *, first: int = 0x80, mask: int = 0) -> bytes:
    """A frame of a server; ``mask=0x80`` claims a mask of zeros, which no server may use."""
    head = bytes([first | opcode])
    if len(payload) < 126:
        head += bytes([mask | len(payload)])
    elif len(payload) < 65536:
        head += struct.pack(">BH", mask | 126, len(payload))
    else:
        head += struct.pack(">BQ", mask | 127, len(payload))
    return head + (b"\0\0\0\0" if mask else b"") + payload


def read_frame(peer: Peer) -> tuple[int, bytes]:
    """The opcode and the payload of the client's next frame."""
    first, second = peer.take(2)
    assert second & 0x80, "a client masks its frames"
    length = second & 0x7F
    if length == 126:
        [length] = struct.unpack(">H", peer.take(2))
    elif length == 127:
        [length] = struct.unpack(">Q", peer.take(8))
    key = peer.take(4)
    payload = peer.take(length)
    mask = (key * (length // 4 + 1))[:length]
    number = int.from_bytes(payload) ^ int.from_bytes(mask)
    return first & 0xF, number.to_bytes(length)


def read_call(peer: Peer) -> Any:
    """The document of the client's next message; raises EOFError after the last one."""
    opcode, payload = read_frame(peer)
    if opcode == CLOSE:
        raise EOFError
    assert opcode == TEXT
    return json.loads(payload)
