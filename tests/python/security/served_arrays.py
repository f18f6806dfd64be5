"""Functions of the server under attack that take arrays and images."""

from __future__ import annotations

import numpy
from PIL.Image import Image


def total(array: numpy.ndarray) -> float:
    return float(array.sum())


def size(image: Image) -> list[int]:
    return list(image.size)
