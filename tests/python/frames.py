"""Frames as bytes: a JSON-RPC document with its binary parts behind it."""

from __future__ import annotations

import json
import struct
from typing import Any

ALIGNMENT = 64


def padded(length: int) -> int:
    return -length % ALIGNMENT


def frame(document: Any, parts: list[bytes]) -> bytes:
    """A frame of a document, or of the text of one."""
    text = document if isinstance(document, bytes) else json.dumps(document).encode()
    out = bytearray(struct.pack("<BBHI", 0xB1, 1, len(parts), len(text)))
    out += struct.pack(f"<{len(parts)}Q", *map(len, parts)) + text
    for part in parts:
        out += bytes(padded(len(out))) + part
    return bytes(out)


def parse(data: bytes) -> tuple[Any, list[bytes]]:
    """The document and the parts of a reply, which may be a frame or JSON."""
    if data[:1] != b"\xb1":
        return json.loads(data), []
    _, version, count, text_bytes = struct.unpack_from("<BBHI", data)
    assert version == 1
    lengths = struct.unpack_from(f"<{count}Q", data, 8)
    end = 8 + 8 * count + text_bytes
    document, parts = json.loads(data[8 + 8 * count : end]), []
    for length in lengths:
        assert not any(data[end : end + padded(end)])
        end += padded(end)
        parts.append(data[end : end + length])
        end += length
    assert end == len(data)
    return document, parts
