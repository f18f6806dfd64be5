"""Writes NumPy's arrays into a pickle, and makes the rarer dtypes of one that is read.

It imports NumPy on first use: a program without arrays need not have it.
"""

from __future__ import annotations

import pickle
import re
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import numpy as np

    _Dtype: TypeAlias = np.dtype[Any]

__all__ = ["array", "dtype_of_state", "reducers"]

_UNIT = re.compile(r"[a-zA-Z]{1,7}")


def array(buffer: Any, dtype: str, shape: tuple[int, ...], order: Any) -> np.ndarray[Any, Any]:
    """An array over a buffer. `reducers` write a call of it, which plain pickle can also load."""
    import numpy as np

    return np.ndarray(shape, dtype, buffer, order=order)


def reducers(numpy: ModuleType) -> dict[type, Any]:
    """The functions that `pickle` calls instead of the ``__reduce_ex__`` of these types."""
    return {numpy.ndarray: _reduced}


def _reduced(value: Any) -> Any:
    name = _names.get(value.dtype)
    if name is None:
        name = _names[value.dtype] = _name_of(value.dtype)
        if len(_names) > _NAMES_MAX:
            _names.clear()
    if name:
        flags = value.flags
        if flags.c_contiguous:
            return array, (pickle.PickleBuffer(value), name, value.shape, "C")
        if flags.f_contiguous:
            return array, (pickle.PickleBuffer(value), name, value.shape, "F")
    return value.__reduce_ex__(5)


# A cache of `_name_of`.
_names: dict[_Dtype, str] = {}
_NAMES_MAX = 1000


def _name_of(dtype: _Dtype) -> str:
    """The text that makes the dtype again, such as ``"<f4"``; empty if no text does."""
    is_plain = dtype.char in "?bBhHiIlLqQefdgFDGSU" and dtype.itemsize and not dtype.metadata
    return dtype.str if is_plain else ""


def dtype_of_state(name: str, state: tuple[Any, ...]) -> _Dtype:
    """The dtype of a name and the state that NumPy pickles with it.

    Raises:
        pickle.UnpicklingError: It contains objects or subarrays, or NumPy does not write it so.
    """
    import numpy as np

    _, order, subarray, names, fields, itemsize, _, _, *more = state
    if subarray is not None or order not in ("<", ">", "|", "="):
        raise pickle.UnpicklingError("a dtype of subarrays is not allowed")
    if names is not None:
        return _structured(names, fields, itemsize)
    made: _Dtype = np.dtype(name)
    if made.kind in "mM" and more:
        made = np.dtype(f"{made.kind}8[{_unit(more[0])}]")
    elif itemsize not in (-1, made.itemsize):
        raise pickle.UnpicklingError("the size of a dtype differs from its name's")
    return made.newbyteorder(order)


def _structured(names: Any, fields: Any, itemsize: Any) -> _Dtype:
    import numpy as np

    formats, offsets = [], []
    for name in names:
        kind, offset, *_ = fields[name]
        if not isinstance(kind, np.dtype):
            raise pickle.UnpicklingError("a field's type is not a dtype")
        formats.append(kind)
        offsets.append(offset)
    # NumPy checks that all fields lie within the item.
    described = {"names": list(names), "formats": formats, "offsets": offsets}
    whole: Any = {**described, "itemsize": itemsize}
    made: _Dtype = np.dtype(whole)
    return made


def _unit(metadata: Any) -> str:
    """The unit of a time, such as ``25us``."""
    unit, count, divisor, _ = metadata[1]
    unit = unit.decode() if isinstance(unit, bytes) else str(unit)
    if not _UNIT.fullmatch(unit) or type(count) is not int or divisor != 1:
        raise pickle.UnpicklingError("a time has an unknown unit")
    return f"{count}{unit}"
