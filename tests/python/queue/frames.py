"""Frames of a link, encoded by the tests: see crates/ucall-queue/src/frame.rs."""

from __future__ import annotations

import struct

PREAMBLE_BYTES = 16
CLIENT_PREAMBLE = b"ucall-q1 shared\n"
HELLO, WELCOME, REFUSE, DATA, CANCELLED, GAP, END, ACKNOWLEDGE = range(1, 9)
SHARED, RELEASE, FINISH = 11, 12, 14
BYTES = 2
TAKES_SHARED, TRUSTS = 2, 4
HEADER = struct.Struct("<BBH4sQQ")


def frame(
    kind: int, length: int, body: bytes = b"", sequence: int = 0, segments: int = 0, flags: int = 0
) -> bytes:
    return HEADER.pack(kind, flags, segments, b"uclQ", sequence, length) + body


def hello(id: bytes, flags: int = 0, kind: int = HELLO) -> bytes:
    numbers = struct.pack("<6Q", 0, 0, 1 << 20, 1, 1 << 20, flags)
    return frame(kind, 104, b"ucall-q2" + id + b"\1" * 16 + bytes(16) + numbers)


def shared(sequence: int, slot: int, descriptor: int, *lengths: int) -> bytes:
    """The frame of a message in shared memory."""
    body = struct.pack(f"<{2 + len(lengths)}Q", slot, descriptor, *lengths)
    return frame(SHARED, len(body), body, sequence, len(lengths))
