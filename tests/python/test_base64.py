"""base64 of params and results, compared with Python's own: every length, every invalid byte.

The SIMD kernels process 64 bytes a step and treat ends separately, so lengths go beyond two steps,
and each position of a text is tested."""

from __future__ import annotations

import base64
import binascii
import json
import random
from collections.abc import Callable

import pytest

from harness import Wire

ConnectTo = Callable[..., Wire]
LENGTHS = [*range(200), 1000, 4095, 4096, 4097, 100_000, 1_000_003]
WRONG = ["=", "-", "_", " ", "\n", "\t", "\0", "\x7f", "é", "😀", ".", "@", "[", "`", "{"]


def echo(data: bytes):  # type: ignore[no-untyped-def]
    return data


def is_canonical(text: str) -> bool:
    """Whether the text is the canonical base64 of some bytes."""
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return False
    return base64.b64encode(data).decode() == text


def send(wire: Wire, texts: list[str]) -> list[dict[str, object]]:
    """One batch of calls, in pieces that the server's limit allows; the replies in order."""
    replies = []
    for start in range(0, len(texts), 500):
        part = texts[start : start + 500]
        wire.send(
            json.dumps(
                [
                    {"jsonrpc": "2.0", "id": number, "method": "echo", "params": [text]}
                    for number, text in enumerate(part)
                ]
            ).encode()
        )
        replies += json.loads(wire.line())
    return replies


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_bytes_of_every_length_round_trip(connect_to: ConnectTo, kind: type) -> None:
    def echo(data):  # type: ignore[no-untyped-def]
        assert type(data) is kind
        return data

    echo.__annotations__["data"] = kind
    wire = connect_to(echo)
    generator = random.Random(3)
    texts = [base64.b64encode(generator.randbytes(length)).decode() for length in LENGTHS]
    assert [reply.get("result") for reply in send(wire, texts)] == texts


@pytest.mark.parametrize("length", [1, 2, 3, 47, 48, 49, 95, 96, 97, 130])
def test_one_wrong_character_anywhere_is_refused(connect_to: ConnectTo, length: int) -> None:
    text = base64.b64encode(random.Random(length).randbytes(length)).decode()
    spoiled = [
        text[:place] + wrong + text[place + 1 :] for place in range(len(text)) for wrong in WRONG
    ]
    spoiled += [
        text[:place] + wrong + text[place:] for place in range(len(text)) for wrong in " \n"
    ]
    spoiled += [text[:place] + "    " + text[place:] for place in range(len(text) + 1)]
    spoiled += [text[:end] for end in range(1, len(text)) if end % 4]
    spoiled += [text + "=", text + "==", text + "====", text + "A"]
    replies = send(connect_to(echo), spoiled)
    for candidate, reply in zip(spoiled, replies, strict=True):
        if is_canonical(candidate):
            assert reply["result"] == candidate
        else:
            assert "no base64" in reply["error"]["data"], candidate  # type: ignore[index]


def test_padding_bits_must_be_zero(connect_to: ConnectTo) -> None:
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    candidates = ["QUJD" * 20 + end for last in alphabet for end in (f"Q{last}==", f"QU{last}=")]
    for candidate, reply in zip(candidates, send(connect_to(echo), candidates), strict=True):
        assert ("result" in reply) == is_canonical(candidate), candidate
