"""Tensors of other libraries, buffers of numbers, and what NumPy makes arrays of."""

from __future__ import annotations

import array
import base64
import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from test_types_arrays import LAYOUTS, loaded, sample

import ucall
from harness import Wire
from ucall.client import Client

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
    problem = "it is in the memory of a device: send it after .cpu(), in JAX numpy.asarray(…)"
    assert wire.error("give")["data"].endswith(f"Tensor: {problem}")
    made[:] = [Tensor(np.zeros(2, "g"))]
    assert wire.error("give")["code"] == -32603


class VersionedTensor(Tensor):
    """A tensor that only consumers of version 1 of DLPack get."""

    def __dlpack__(self, *, max_version: tuple[int, int] | None = None) -> Any:
        assert max_version is not None
        return self.array.__dlpack__(max_version=max_version)


class TensorWithGradient(Tensor):
    def __dlpack__(self) -> Any:
        raise BufferError("Can't export tensors that require gradient, use tensor.detach()")


class Series:
    """What NumPy makes an array of, as those of pandas, Arrow's chunked arrays and TensorFlow."""

    def __init__(self, values: Any) -> None:
        self.values = values

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        if not isinstance(self.values, np.ndarray):
            raise RuntimeError("it has no values yet: call .compute()")
        return self.values


def test_tensors_of_version_1_may_be_read_only(connect_to: ConnectTo) -> None:
    given = sample("f4")
    given.flags.writeable = False

    def give() -> object:
        return VersionedTensor(given[:, ::2])

    try:
        given.__dlpack__(max_version=(1, 0))
    except (TypeError, BufferError):
        pytest.skip("this NumPy exports no read-only arrays")
    assert np.array_equal(loaded(connect_to(give).result("give")), given[:, ::2])


def test_what_cannot_be_exported_says_how_to_mend_it(connect_to: ConnectTo) -> None:
    def gradient() -> object:
        return {"loss": TensorWithGradient(sample("f4"))}

    def lazy() -> object:
        return Series(None)

    wire = connect_to(gradient, lazy)
    problem = "Can't export tensors that require gradient, use tensor.detach()"
    message = f"result.loss: test_types_tensors.TensorWithGradient: {problem}"
    assert wire.error("gradient")["data"] == message
    problem = "Series cannot be written as an array: it has no values yet: call .compute()"
    assert wire.error("lazy")["data"].endswith(problem)


def test_what_numpy_makes_arrays_of_is_an_array(serve: Callable[..., ucall.Server]) -> None:
    def double(a: NDArray[Any]) -> object:
        return Series(a * 2)

    server = serve(double)
    with Client(port=server.port) as client:
        assert client.double(Series(np.arange(3))).numpy.tolist() == [0, 2, 4]


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


def test_a_param_that_is_a_tensor_is_refused_at_registration() -> None:
    def function(x):  # type: ignore[no-untyped-def]
        return x

    function.__annotations__["x"] = Tensor
    problem = "function: parameter 'x': .*Tensor.*: annotate it as numpy.ndarray, and make a ten"
    with pytest.raises(TypeError, match=problem):
        ucall.Server(port=0).add(function)
