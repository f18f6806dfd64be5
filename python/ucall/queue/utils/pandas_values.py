"""pandas' frames and series as arrays, lists and names, from which a receiver makes them again.

No class of pandas is named in a message: its pickles would need its internals.
"""

from __future__ import annotations

import datetime
import importlib
import pickle
import zoneinfo
from typing import Any

import numpy as np

__all__ = ["frame", "reducers", "series"]

# Its types are not checked: it is not installed where they are.
pd: Any = importlib.import_module("pandas")

_TEXT = ("string", "str")


def reducers() -> dict[type, Any]:
    """The functions that `pickle` calls for these types."""
    return {pd.DataFrame: _reduced_frame, pd.Series: _reduced_series}


def _reduced_frame(data: Any) -> Any:
    values = [_parts(data.iloc[:, place]) for place in range(data.shape[1])]
    return frame, (_index_parts(data.columns), _index_parts(data.index), values)


def _reduced_series(data: Any) -> Any:
    return series, (data.name, _index_parts(data.index), _parts(data))


def frame(columns: Any, index: Any, values: list[Any]) -> Any:
    """A frame of parts that a sender chooses."""
    rows = _index(*index)
    found = {place: _series(rows, parts) for place, parts in enumerate(values)}
    made = pd.DataFrame(found, index=rows, copy=False)
    made.columns = _index(*columns)
    return made


def series(name: Any, index: Any, values: Any) -> Any:
    """A series of parts that a sender chooses."""
    return _series(_index(*index), values).rename(name)


def _series(rows: Any, parts: Any) -> Any:
    values = _values(*parts)
    return pd.Series(values, index=rows, dtype=values.dtype, copy=False)


def _parts(column: Any) -> tuple[str, Any]:
    array, dtype = column.array, column.dtype
    if isinstance(dtype, np.dtype):
        values = np.asarray(array)
        return ("list", values.tolist()) if dtype.kind == "O" else ("array", values)
    if isinstance(dtype, pd.StringDtype):
        return str(dtype), array.to_numpy(object, na_value=None).tolist()
    if isinstance(dtype, pd.CategoricalDtype):
        return "category", (array.codes, _index_parts(array.categories), bool(array.ordered))
    if isinstance(dtype, pd.DatetimeTZDtype):
        zone = dtype.tz
        if not isinstance(zone, datetime.timezone):
            zone = zoneinfo.ZoneInfo(str(zone))
        return "zone", (np.asarray(array.tz_convert(None)), zone)
    if isinstance(array, pd.arrays.IntegerArray | pd.arrays.FloatingArray | pd.arrays.BooleanArray):
        values = array.to_numpy(dtype.numpy_dtype, na_value=0)
        return "masked", (values, np.asarray(array.isna()))
    raise pickle.PicklingError(
        f"no receiver makes a column of dtype {dtype}: put it as numbers, text or objects (astype)"
    )


def _values(kind: str, data: Any) -> Any:
    if kind == "array":
        return _array(data)
    if kind == "list":
        return np.fromiter(data, object, len(data))
    if kind in _TEXT:
        return pd.array(data, dtype=kind)
    if kind == "category":
        codes, categories, ordered = data
        made = pd.Categorical.from_codes(_array(codes), _index(*categories), bool(ordered))
        # Parts that a message repeats must not be copied for each.
        if made.codes.dtype != codes.dtype:
            raise TypeError("the codes of a category are wider than needed")
        return made
    if kind == "zone":
        times, zone = data
        if not isinstance(zone, datetime.timezone | zoneinfo.ZoneInfo):
            raise TypeError("a time zone is invalid")
        dtype = pd.DatetimeTZDtype(np.datetime_data(_array(times).dtype)[0], zone)
        return pd.DatetimeIndex(times.view("i8"), dtype=dtype, copy=False).array
    values, mask = map(_array, data)
    masked = {"b": pd.arrays.BooleanArray, "f": pd.arrays.FloatingArray}
    return masked.get(values.dtype.kind, pd.arrays.IntegerArray)(values, mask)


def _array(data: Any) -> Any:
    if type(data) is not np.ndarray or data.ndim != 1:
        raise TypeError("a column is not an array of one dimension")
    return data


def _index_parts(index: Any) -> tuple[str, Any, Any]:
    if isinstance(index, pd.RangeIndex):
        return "range", (index.start, index.stop, index.step), index.name
    if isinstance(index, pd.MultiIndex):
        codes = [np.asarray(found) for found in index.codes]
        return "multi", (codes, [_index_parts(found) for found in index.levels]), list(index.names)
    return "index", _parts(index), index.name


def _index(kind: str, data: Any, name: Any) -> Any:
    if kind == "range":
        return pd.RangeIndex(*data, name=name)
    if kind == "multi":
        codes, levels = data
        return pd.MultiIndex([_index(*level) for level in levels], codes, names=name)
    values = _values(*data)
    return pd.Index(values, dtype=values.dtype, name=name, copy=False)


frame.__ucall_complete__ = series.__ucall_complete__ = True  # type: ignore[attr-defined]
