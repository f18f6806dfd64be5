"""Frames: JSON-RPC documents with binary parts behind them, as docs/arrays.md defines them."""

from __future__ import annotations

import json
import struct
from typing import Any

FIRST_BYTE = b"\xb1"
ALIGNMENT = 64


def frame(
    text: bytes,
    *parts: bytes,
    version: int = 1,
    count: int | None = None,
    text_bytes: int | None = None,
    lengths: list[int] | None = None,
    padding: bytes = b"\0",
) -> bytes:
    """A frame; the options are what a hostile one may claim instead."""
    if lengths is None:
        lengths = list(map(len, parts))
    out = struct.pack(
        "<BBHI",
        FIRST_BYTE[0],
        version,
        len(lengths) if count is None else count,
        len(text) if text_bytes is None else text_bytes,
    )
    out += struct.pack(f"<{len(lengths)}Q", *lengths) + text
    for part in parts:
        out += padding * (-len(out) % ALIGNMENT) + part
    return out


def read_frame(data: bytes) -> tuple[Any, list[bytes]]:
    """The document of a frame, and its parts."""
    first, version, count, text_bytes = struct.unpack_from("<BBHI", data)
    assert (first, version) == (FIRST_BYTE[0], 1)
    lengths = struct.unpack_from(f"<{count}Q", data, 8)
    at = 8 + 8 * count
    document = json.loads(data[at : at + text_bytes])
    at += text_bytes
    parts = []
    for length in lengths:
        start = at + -at % ALIGNMENT
        assert not any(data[at:start])
        at = start + length
        assert at <= len(data)
        parts.append(data[start:at])
    assert at == len(data)
    return document, parts
