"""Tensors of other libraries, buffers of numbers, and what NumPy makes arrays of."""

from __future__ import annotations

import array
import base64
import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from test_types_arrays import LAYOUTS, loaded, sample

from harness import Wire

ConnectTo = Callable[..., Wire]


class Tensor:
    """A tensor of another library."""

    def __init__(self, array: NDArray[Any], device: int = 1) -> None:
        self.array = array
        self.device = device

    def __dlpack__(self) -> Any:
        return self.array.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device, 0


def test_tensors_of_other_libraries_are_arrays(connect_to: ConnectTo) -> None:
    made: list[Any] = []

    def give() -> object:
        return made[0]

    wire = connect_to(give)
    for dtype in ("?", "i1", "u2", "i4", "u8", "f2", "f4", "f8", "c8", "c16"):
        for layout in LAYOUTS:
            given = layout(sample(dtype))
            made[:] = [Tensor(given)]
            back = loaded(wire.result("give"))
            assert (back.dtype, back.shape) == (given.dtype, given.shape)
            assert np.array_equal(back, given)
    made[:] = [[Tensor(sample("f4"), 2)]]
    problem = "is in the memory of a device: send it after .cpu()"
    assert wire.error("give")["data"].endswith(f"Tensor {problem}")
    made[:] = [Tensor(np.zeros(2, "g"))]
    assert wire.error("give")["code"] == -32603


def test_buffers_of_numbers_are_arrays(connect_to: ConnectTo) -> None:
    made: list[Any] = []

    def give() -> object:
        return made[0]

    wire = connect_to(give)
    for letter in "bBhHiIlLqQfd":
        numbers = array.array(letter, [1, 2, 3])
        made[:] = [numbers]
        back = loaded(wire.result("give"))
        assert back.tolist() == [1, 2, 3] and back.itemsize == numbers.itemsize
    made[:] = [((ctypes.c_double * 2) * 3)()]
    assert loaded(wire.result("give")).shape == (3, 2)
    made[:] = [(ctypes.c_ubyte * 3)(1, 2, 3)]
    assert wire.result("give") == base64.b64encode(bytes([1, 2, 3])).decode()
    for wrong in (array.array("u", "ab"), (ctypes.py_object * 1)("a")):
        made[:] = [wrong]
        assert "expected bytes or an array of numbers" in wire.error("give")["data"]
