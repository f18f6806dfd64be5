"""Parameters that are arrays: their dtypes, and lists of numbers in place of a `.npy`.

A `.npy` of another dtype than ``NDArray[dtype]`` has is converted where NumPy's casting is safe
(``int32`` to ``float64``), else refused (``float64`` to ``float32``). A list has no dtype: its ints
fit every integer dtype with their range, and its numbers every float and complex dtype with their
range. Bools fit only bool.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy

from ucall.types.arrays import check_dtype, decode_array
from ucall.types.messages import UnsupportedType, kind_name, kind_of, type_name

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["decoder", "described"]

_FORMS = "(.npy in base64, or nested lists)"

_ABSTRACT = (
    numpy.number,
    numpy.integer,
    numpy.signedinteger,
    numpy.unsignedinteger,
    numpy.inexact,
    numpy.floating,
    numpy.complexfloating,
)

#: The items of a list that fit each kind of dtype.
_LEAVES: dict[str, set[type]] = {
    "b": {bool},
    "i": {int},
    "u": {int},
    "f": {int, float},
    "c": {int, float},
}


def decoder(annotation: Any) -> tuple[Callable[[Any], NDArray[Any]], str]:
    """The function that builds an annotation's arrays, and their name in messages.

    Raises:
        UnsupportedType: The dtype is neither bool nor a number.
    """
    parameters = typing.get_args(annotation)
    arrays = _Arrays(_dimensions(parameters), _wanted(annotation, parameters))
    return arrays.decode, arrays.type_name


def described(annotation: Any) -> tuple[int | None, tuple[str, ...]]:
    """The number of dimensions, ``None`` for any, and the names of the dtypes, none for any."""
    parameters = typing.get_args(annotation)
    wanted = _wanted(annotation, parameters)
    return _dimensions(parameters), tuple(_dtype_name(dtype) for dtype in wanted)


class _Arrays:
    """The arrays of one annotation.

    Args:
        dimensions: The number of dimensions; ``None`` for any.
        wanted: Dtypes, of which the first that fits is used, or abstract types such as
            ``numpy.floating``. Empty for any dtype.
    """

    def __init__(self, dimensions: int | None, wanted: tuple[Any, ...]) -> None:
        self.dimensions = dimensions
        self.wanted = wanted
        size = "" if dimensions is None else f"{dimensions}-d "
        named = " or ".join(_dtype_name(dtype) for dtype in wanted)
        self.type_name = f"{size}array{' of ' if named else ''}{named} {_FORMS}"

    def decode(self, value: Any) -> NDArray[Any]:
        """Builds the array of a `.npy` or a list.

        Raises:
            ValueError: Its dtype or its dimensions do not fit.
        """
        if isinstance(value, bytearray):
            array = self._of_file(value)
        elif isinstance(value, list):
            array = self._of_list(value)
        else:
            raise self._mismatch(kind_of(value))
        if self.dimensions not in (None, array.ndim):
            raise self._mismatch(f"one of {array.ndim} dimensions")
        return array

    def _of_file(self, data: bytearray) -> NDArray[Any]:
        try:
            array = decode_array(data)
        except ValueError as error:
            raise ValueError(f"expected {self.type_name}: {error}") from None
        if not self.wanted or any(_is_exactly(array.dtype, dtype) for dtype in self.wanted):
            return array
        for dtype in self.wanted:
            if isinstance(dtype, numpy.dtype) and numpy.can_cast(array.dtype, dtype, "safe"):
                return array.astype(dtype)
        raise self._mismatch(f"one of {array.dtype}{self._remedies()}")

    def _remedies(self) -> str:
        """What the caller and what the function can do about an array of another dtype."""
        exact = next((str(it) for it in self.wanted if isinstance(it, numpy.dtype)), None)
        caller = f"send it after .astype('{exact}'), or " if exact else ""
        return f"; {caller}annotate the parameter as numpy.ndarray, which takes any dtype"

    def _of_list(self, items: list[Any]) -> NDArray[Any]:
        leaves = _leaves(items)
        unsupported = leaves - {bool, int, float}
        if unsupported:
            raise self._mismatch(f"a list with {kind_name(unsupported.pop())} in it")
        try:
            for dtype in self.wanted or (None,):
                array = _of_leaves(items, leaves, dtype)
                if array is not None:
                    return array
        except (OverflowError, ValueError) as error:
            raise ValueError(f"expected {self.type_name}: {error}") from None
        found = " and ".join(sorted(leaf.__name__ for leaf in leaves))
        raise self._mismatch(f"a list of {found}")

    def _mismatch(self, got: str) -> ValueError:
        return ValueError(f"expected {self.type_name}, got {got}")


def _leaves(items: list[Any]) -> set[type]:
    """The types of all items, those of nested lists included, but not of lists."""
    kinds = set(map(type, items))
    if list not in kinds:
        return kinds
    kinds.discard(list)
    return kinds.union(*(_leaves(item) for item in items if type(item) is list))


def _of_leaves(items: list[Any], leaves: set[type], dtype: Any) -> NDArray[Any] | None:
    """The array of a dtype, or of NumPy's default dtype; ``None`` if the items do not fit.

    Raises:
        OverflowError, ValueError: A number is out of range, or nested lists differ in length.
    """
    if bool in leaves and len(leaves) > 1:
        return None
    if not isinstance(dtype, numpy.dtype):
        array = _numpy_array(items, leaves)
        if not leaves and dtype in (numpy.integer, numpy.signedinteger):
            array = array.astype(numpy.int64)
        return array if dtype is None or numpy.issubdtype(array.dtype, dtype) else None
    if not leaves <= _LEAVES[dtype.kind]:
        return None
    if dtype.kind in "fc":
        return _rounded(numpy.array(items, numpy.float64), dtype)
    return _within(_numpy_array(items, leaves), dtype)


def _numpy_array(items: list[Any], leaves: set[type]) -> NDArray[Any]:
    """The array of NumPy's default dtype, or of the 64-bit integers that fit all ints.

    Raises:
        OverflowError, ValueError: A number is out of range, or nested lists differ in length.
    """
    if float in leaves:
        return numpy.array(items, numpy.float64)
    array = numpy.array(items)
    if leaves != {int} or array.dtype.kind in "iu":
        return array
    # NumPy makes floats of ints on both sides of 2**63, and objects of those beyond 64 bits.
    exact = numpy.array(items, object)
    if exact.min() < 0 or exact.max() > numpy.iinfo(numpy.uint64).max:
        raise ValueError("a number is out of the range of 64-bit integers")
    return exact.astype(numpy.uint64)


def _within(array: NDArray[Any], dtype: Any) -> NDArray[Any]:
    """Converts integers or bools to a dtype with their range."""
    if dtype.kind != "b" and array.size:
        bounds = numpy.iinfo(dtype)
        if array.min() < bounds.min or array.max() > bounds.max:
            raise ValueError(f"a number is out of the range of {dtype}")
    return array.astype(dtype)


def _rounded(array: NDArray[numpy.float64], dtype: Any) -> NDArray[Any]:
    """Rounds each number to the nearest one of the dtype.

    Raises:
        ValueError: A number is out of the dtype's range.
    """
    with numpy.errstate(over="ignore"):
        rounded = array.astype(dtype)
    if not numpy.isfinite(rounded).all():
        raise ValueError(f"a number is out of the range of {dtype}")
    return rounded


def _is_exactly(dtype: numpy.dtype[Any], wanted: Any) -> bool:
    if isinstance(wanted, numpy.dtype):
        return dtype == wanted
    return bool(numpy.issubdtype(dtype, wanted))


def _dtype_name(dtype: Any) -> str:
    return str(dtype) if isinstance(dtype, numpy.dtype) else str(dtype.__name__)


def _dimensions(parameters: tuple[Any, ...]) -> int | None:
    """The number of dimensions: 2 for ``numpy.ndarray[tuple[int, int], ...]``."""
    shape = parameters[0] if parameters else Any
    sides = typing.get_args(shape)
    if typing.get_origin(shape) is not tuple or not sides or Ellipsis in sides:
        return None
    return len(sides)


def _wanted(annotation: Any, parameters: tuple[Any, ...]) -> tuple[Any, ...]:
    scalars = typing.get_args(parameters[1]) if len(parameters) > 1 else ()
    scalar = scalars[0] if scalars else Any
    if scalar is Any or isinstance(scalar, typing.TypeVar) or scalar is numpy.generic:
        return ()
    is_union = typing.get_origin(scalar) in (typing.Union, types.UnionType)
    choices = typing.get_args(scalar) if is_union else (scalar,)
    return tuple(_wanted_dtype(annotation, choice) for choice in choices)


def _wanted_dtype(annotation: Any, scalar: Any) -> Any:
    """A dtype, or an abstract class of dtypes."""
    kind = typing.get_origin(scalar) or scalar  # numpy.floating[Any]
    if kind in _ABSTRACT:
        return kind
    try:
        dtype = numpy.dtype(scalar)
        check_dtype(dtype)
    except TypeError as error:
        raise UnsupportedType(type_name(annotation), str(error)) from None
    return dtype
