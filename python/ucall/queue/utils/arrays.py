"""Writes NumPy's arrays into a pickle, and makes the rarer dtypes of one that is read.

It imports NumPy on first use: a program without arrays need not have it.
"""

from __future__ import annotations

import copyreg
import math
import operator
import pickle
import re
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import numpy as np

    _Dtype: TypeAlias = np.dtype[Any]

__all__ = [
    "Reducers",
    "Writable",
    "array",
    "dtype_of_state",
    "optional",
    "plain_base",
    "subclass_refusal",
    "writable",
]

#: The kinds of dtypes that the loader makes: numbers, text, times and structures of them.
_KINDS = frozenset("biufcSUVmM")
#: Reducers of optional libraries, whose values the program allows.
optional: dict[type, Any] = {}
#: Types whose reducers are remembered.
_TYPES_MAX = 1000

_UNIT = re.compile(r"[a-zA-Z]{1,7}")


def array(buffer: Any, dtype: str, shape: tuple[int, ...], order: Any) -> np.ndarray[Any, Any]:
    """An array over a buffer. `Reducers` write a call of it, which plain pickle can also load."""
    import numpy as np

    return np.ndarray(shape, dtype, buffer, order=order)


def writable(buffer: Any, dtype: str, shape: tuple[int, ...], order: Any) -> np.ndarray[Any, Any]:
    """An `array` over memory that may be written, and is aligned for any number.

    The loader copies other memory.
    """
    return array(buffer, dtype, shape, order)


class Writable:
    """Writes an array as a call of `writable`."""

    __slots__ = ("_array",)

    def __init__(self, contiguous: np.ndarray[Any, Any]) -> None:
        self._array = contiguous

    def __reduce__(self) -> Any:
        return writable, _reduced(self._array)[1]


class Reducers(dict[type, Any]):
    """The functions that `pickle` calls instead of the ``__reduce_ex__`` of a type.

    An array that no receiver can read is refused here, where the program can still change it.
    """

    def __init__(self, numpy: ModuleType) -> None:
        super().__init__({numpy.ndarray: _reduced, **copyreg.dispatch_table, **optional})

    def __missing__(self, kind: type) -> Any:
        if issubclass(kind, type) or len(self) > _TYPES_MAX:
            raise KeyError(kind)
        self[kind] = found = _BY_ITSELF if plain_base(kind) is None else _refused
        return found


_BY_ITSELF = operator.methodcaller("__reduce_ex__", 5)


def plain_base(kind: type) -> type | None:
    """The class of arrays, scalars or optional values that it derives from, and is pickled as."""
    numpy = sys.modules.get("numpy")
    bases: list[type] = [] if numpy is None else [numpy.ndarray, numpy.void]
    for base in (*bases, *optional):
        if kind is not base and issubclass(kind, base) and _reduces_as(kind, base):
            return base
    return None


def _reduces_as(kind: Any, base: Any) -> bool:
    return kind.__reduce__ is base.__reduce__ and kind.__reduce_ex__ is base.__reduce_ex__


def subclass_refusal(kind: type, base: type) -> str:
    """Why no receiver makes an object of this class, and what to put."""
    is_array = base.__module__ == "numpy"
    plain = (
        "numpy.asarray(array), or item() of a scalar" if is_array else f"a plain {_full_name(base)}"
    )
    return f"no receiver makes a {_full_name(kind)}: put {plain}"


def _full_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _refused(value: Any) -> Any:
    base = plain_base(type(value))
    assert base is not None
    raise pickle.PicklingError(subclass_refusal(type(value), base))


def _reduced(value: Any) -> Any:
    if value.dtype.hasobject or value.dtype.kind not in _KINDS:
        raise pickle.PicklingError(
            f"no receiver makes an array of dtype {value.dtype}: put a list, or an array of "
            "numbers, text or times"
        )
    if value.dtype.names is not None:
        value = _of_plain_records(value)
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


def _of_plain_records(value: Any) -> Any:
    """The array with the plain dtype of its fields: that of a `recarray` names a class."""
    import numpy as np

    return value if value.dtype.type is np.void else value.view(np.dtype((np.void, value.dtype)))


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
        pickle.UnpicklingError: It contains objects, or NumPy does not write it so.
    """
    import numpy as np

    _, order, subarray, names, fields, itemsize, _, _, *more = state
    if order not in ("<", ">", "|", "="):
        raise pickle.UnpicklingError("a dtype has an unknown byte order")
    if subarray is not None:
        return _subarray(subarray, itemsize)
    if names is not None:
        return _structured(names, fields, itemsize)
    made: _Dtype = np.dtype(name)
    if made.kind in "mM" and more:
        made = np.dtype(f"{made.kind}8[{_unit(more[0])}]")
    elif itemsize not in (-1, made.itemsize):
        raise pickle.UnpicklingError("the size of a dtype differs from its name's")
    return made.newbyteorder(order)


def _subarray(subarray: Any, itemsize: Any) -> _Dtype:
    """A fixed number of items, as the three coordinates of a point."""
    import numpy as np

    base, shape = subarray
    counts = shape if isinstance(shape, tuple) else (shape,)
    if not isinstance(base, np.dtype) or any(type(count) is not int for count in counts):
        raise pickle.UnpicklingError("a dtype of subarrays is invalid")
    if itemsize != base.itemsize * math.prod(counts):
        raise pickle.UnpicklingError("the size of a dtype differs from that of its subarray")
    made: _Dtype = np.dtype((base, counts))
    return made


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
