"""Frames of a link, made by hand: see crates/ucall-queue/src/frame.rs."""

from __future__ import annotations

import struct

GREETING_BYTES = 16
DATA, SHARED, RELEASE = 4, 11, 12
TAKES_SHARED, TRUSTS = 2, 4


def frame(kind: int, length: int, body: bytes = b"", sequence: int = 0, segments: int = 0) -> bytes:
    return struct.pack("<BBH4sQQ", kind, 0, segments, b"uclQ", sequence, length) + body


def hello(id: bytes, flags: int = 0, kind: int = 1) -> bytes:
    numbers = struct.pack("<6Q", 0, 0, 1 << 20, 1, 1 << 20, flags)
    return frame(kind, 104, b"ucall-q1" + id + b"\1" * 16 + bytes(16) + numbers)


def shared(sequence: int, slot: int, descriptor: int, *lengths: int) -> bytes:
    """Tells of a message in shared memory."""
    body = struct.pack(f"<{2 + len(lengths)}Q", slot, descriptor, *lengths)
    return frame(SHARED, len(body), body, sequence, len(lengths))
