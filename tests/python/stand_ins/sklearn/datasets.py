"""Digits: the first is the zero that the page sends, the others are noise."""

from __future__ import annotations

import numpy
from numpy.typing import NDArray

ZERO = (
    "0000050d0901000000000d0f0a0f050000030f02000b080000040c0000080800"
    "000508000009080000040b00010c070000020e050a0c00000000060d0a000000"
)


class Digits:
    images: NDArray[numpy.float64]
    data: NDArray[numpy.float64]
    target: NDArray[numpy.int64]


def load_digits() -> Digits:
    digits = Digits()
    digits.images = numpy.random.default_rng(8).random((100, 8, 8)) * 16
    digits.images[0] = numpy.frombuffer(bytes.fromhex(ZERO), numpy.uint8).reshape(8, 8)
    digits.data = digits.images.reshape(100, 64)
    digits.target = numpy.arange(100) % 10
    return digits
