"""NumPy's side of a pickle, without objects and with sizes checked.

The names are those that NumPy writes into a pickle.
"""

from __future__ import annotations

import math
import pickle
from typing import Any

import numpy as np

__all__ = ["_frombuffer", "_reconstruct", "dtype", "ndarray", "scalar"]


class _Array(np.ndarray):
    """An array whose state holds no objects and as many bytes as its shape says."""

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, _, data = state
        _refuse_objects(kind)
        if not isinstance(data, bytes) or len(data) != math.prod(shape) * kind.itemsize:
            raise pickle.UnpicklingError("an array whose shape does not fit its bytes")
        super().__setstate__(state)


def _refuse_objects(kind: Any) -> None:
    if not isinstance(kind, np.dtype) or kind.hasobject:
        raise pickle.UnpicklingError("an array of objects is not allowed")


def ndarray(*_: object) -> None:
    """Only named, as what `_reconstruct` makes."""
    raise pickle.UnpicklingError("numpy.ndarray is not called")


def dtype(kind: Any, *flags: Any) -> np.dtype[Any]:
    """A dtype by its short name, such as ``"f8"`` or ``"V16"``."""
    if not isinstance(kind, str):
        raise pickle.UnpicklingError("a dtype of something that is no name")
    made: np.dtype[Any] = np.dtype(kind, *flags)
    _refuse_objects(made)
    return made


def _reconstruct(kind: Any, shape: Any, code: Any) -> Any:
    """An empty array, which its state fills."""
    if kind is not ndarray or shape != (0,):
        raise pickle.UnpicklingError("only plain arrays are allowed")
    return _Array((0,), np.int8)


def _frombuffer(buffer: Any, kind: Any, shape: Any, order: Any) -> np.ndarray[Any, Any]:
    """An array in memory that came out of band."""
    _refuse_objects(kind)
    return np.frombuffer(buffer, dtype=kind).reshape(shape, order=order)


def scalar(kind: Any, data: Any = b"") -> Any:
    """A NumPy scalar."""
    _refuse_objects(kind)
    if not isinstance(data, bytes) or len(data) != kind.itemsize:
        raise pickle.UnpicklingError("a scalar of the wrong length")
    return np.frombuffer(data, dtype=kind)[0]
