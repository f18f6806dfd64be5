"""How NumPy's arrays are written into a pickle, and the rare dtypes when they are read.

NumPy is imported by whoever has an array, and not with this module.
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
    """An array over a buffer: what `reducers` write, for those who load it with plain pickle."""
    import numpy as np

    return np.ndarray(shape, dtype, buffer, order=order)


def reducers(numpy: ModuleType) -> dict[type, Any]:
    """What `pickle` calls for objects of these types in place of their own ``__reduce_ex__``."""
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


# The short name of each dtype, or "" if it has none.
_names: dict[_Dtype, str] = {}
_NAMES_MAX = 1000


def _name_of(dtype: _Dtype) -> str:
    is_plain = dtype.char in "?bBhHiIlLqQefdgFDGSU" and dtype.itemsize and not dtype.metadata
    return dtype.str if is_plain else ""


def dtype_of_state(name: str, state: tuple[Any, ...]) -> _Dtype:
    """The dtype of a short name and of the state that NumPy writes for it.

    Raises:
        pickle.UnpicklingError: It has objects or subarrays, or is not as NumPy writes it.
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
        raise pickle.UnpicklingError("a dtype of another size than its name says")
    return made.newbyteorder(order)


def _structured(names: Any, fields: Any, itemsize: Any) -> _Dtype:
    import numpy as np

    formats, offsets = [], []
    for name in names:
        kind, offset, *_ = fields[name]
        if not isinstance(kind, np.dtype):
            raise pickle.UnpicklingError("something else where a dtype is expected")
        formats.append(kind)
        offsets.append(offset)
    # NumPy checks that all fields are within the item.
    described = {"names": list(names), "formats": formats, "offsets": offsets}
    whole: Any = {**described, "itemsize": itemsize}
    made: _Dtype = np.dtype(whole)
    return made


def _unit(metadata: Any) -> str:
    """The unit of a time, such as ``25us``."""
    unit, count, divisor, _ = metadata[1]
    unit = unit.decode() if isinstance(unit, bytes) else str(unit)
    if not _UNIT.fullmatch(unit) or type(count) is not int or divisor != 1:
        raise pickle.UnpicklingError("a time in a unit that is none")
    return f"{count}{unit}"
