"""NumPy's side of a pickle, without objects and with sizes checked.

The names are those that NumPy writes into a pickle.
"""

from __future__ import annotations

import math
import pickle
import re
from typing import Any

import numpy as np

__all__ = ["Dtype", "_frombuffer", "_reconstruct", "dtype", "ndarray", "scalar"]


# Numbers, bytes, text and times, by the short names that NumPy gives them.
_NAME = re.compile(r"\?|[biufcSUV][0-9]{0,10}|[mM]8?")
_UNIT = re.compile(r"[a-zA-Z]{1,7}")
_Kind = np.dtype[Any]


class Dtype:
    """Stands for a dtype in a pickle, whose state would else change a real one as it likes: give it
    fields outside of its bytes, or more bytes once memory was looked at by it.
    """

    __slots__ = ("_made",)

    def __init__(self, name: str) -> None:
        self._made: _Kind = np.dtype(name)

    def __setstate__(self, state: Any) -> None:
        _, order, subarray, names, fields, itemsize, _, _, *more = state
        if subarray is not None or order not in ("<", ">", "|", "="):
            raise pickle.UnpicklingError("a dtype of subarrays is not allowed")
        if names is not None:
            formats, offsets = [], []
            for name in names:
                kind, offset, *_ = fields[name]
                formats.append(_kind(kind))
                offsets.append(offset)
            # This checks that all fields are within the item.
            described = {"names": list(names), "formats": formats, "offsets": offsets}
            whole: Any = {**described, "itemsize": itemsize}
            self._made = np.dtype(whole)
            return
        if self._made.kind in "mM" and more:
            self._made = np.dtype(f"{self._made.kind}8[{_unit(more[0])}]")
        elif itemsize not in (-1, self._made.itemsize):
            raise pickle.UnpicklingError("a dtype of another size than its name says")
        self._made = self._made.newbyteorder(order)


def _unit(metadata: Any) -> str:
    """The unit of a time, such as ``25us``."""
    unit, count, divisor, _ = metadata[1]
    unit = unit.decode() if isinstance(unit, bytes) else str(unit)
    if not _UNIT.fullmatch(unit) or type(count) is not int or divisor != 1:
        raise pickle.UnpicklingError("a time in a unit that is none")
    return f"{count}{unit}"


def _kind(kind: object) -> _Kind:
    if not isinstance(kind, Dtype):
        raise pickle.UnpicklingError("something else where a dtype is expected")
    return kind._made


class _Array(np.ndarray):
    """An array that has as many bytes as its shape says."""

    def __setstate__(self, state: Any) -> None:
        version, shape, kind, is_fortran, data = state
        made = _kind(kind)
        if not isinstance(data, bytes) or len(data) != _size(shape) * made.itemsize:
            raise pickle.UnpicklingError("an array whose shape does not fit its bytes")
        checked: Any = (version, shape, made, bool(is_fortran), data)
        super().__setstate__(checked)


def _size(shape: Any) -> int:
    if not isinstance(shape, tuple) or not all(type(n) is int and n >= 0 for n in shape):
        raise pickle.UnpicklingError("a shape that is none")
    return math.prod(shape)


def ndarray(*_: object) -> None:
    """Only named, as what `_reconstruct` makes."""
    raise pickle.UnpicklingError("numpy.ndarray is not called")


def dtype(name: Any, *_: object) -> Dtype:
    """A dtype by its short name, such as ``"f8"`` or ``"V16"``. None of objects has one here."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise pickle.UnpicklingError("a dtype that is not of numbers, bytes, text or times")
    return Dtype(name)


def _reconstruct(kind: Any, shape: Any, code: Any) -> Any:
    """An empty array, which its state fills."""
    if getattr(kind, "_make", None) is not ndarray or shape != (0,):
        raise pickle.UnpicklingError("only plain arrays are allowed")
    return _Array((0,), np.int8)


def _frombuffer(buffer: Any, kind: Any, shape: Any, order: Any) -> np.ndarray[Any, Any]:
    """An array in memory that came out of band. Its own state asks for a real dtype, which no
    pickle has."""
    return np.frombuffer(buffer, dtype=_kind(kind)).reshape(shape, order=order)


def scalar(kind: Any, data: Any = b"") -> Any:
    """A NumPy scalar."""
    made = _kind(kind)
    if not isinstance(data, bytes) or len(data) != made.itemsize:
        raise pickle.UnpicklingError("a scalar of the wrong length")
    # Empty text has no bytes to look at.
    return np.frombuffer(data, dtype=made)[0] if data else np.zeros((), made)[()]
