"""Frames of docs/arrays.md: JSON-RPC documents with binary parts behind them."""

from __future__ import annotations

import json
import struct
from typing import Any

FIRST_BYTE = b"\xb1"
ALIGNMENT = 64


def padded(length: int) -> int:
    return -length % ALIGNMENT


def frame(
    document: Any,
    parts: list[bytes],
    *,
    version: int = 1,
    count: int | None = None,
    text_bytes: int | None = None,
    lengths: list[int] | None = None,
    padding: bytes = b"\0",
) -> bytes:
    """A frame of a document or of its text. The options are what a hostile one may claim."""
    text = document if isinstance(document, bytes) else json.dumps(document).encode()
    lengths = list(map(len, parts)) if lengths is None else lengths
    out = bytearray(
        struct.pack(
            "<BBHI",
            FIRST_BYTE[0],
            version,
            len(lengths) if count is None else count,
            len(text) if text_bytes is None else text_bytes,
        )
    )
    out += struct.pack(f"<{len(lengths)}Q", *lengths) + text
    for part in parts:
        out += padding * padded(len(out)) + part
    return bytes(out)


def parse(data: bytes) -> tuple[Any, list[bytes]]:
    """The document and the parts of a reply, which may be a frame or JSON."""
    if data[:1] != FIRST_BYTE:
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
