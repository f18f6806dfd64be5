"""Builds paths and NumPy scalars of JSON's texts and numbers."""

from __future__ import annotations

import functools
import math
import pathlib
import sys
from collections.abc import Callable
from typing import Any

from ucall.types.messages import kind_of, value_text

__all__ = ["decoder"]


def decoder(kind: Any) -> tuple[Callable[[Any], Any], str] | None:
    """The decoder of a class of paths or of NumPy's numbers, and its name in messages; ``None`` for
    other types."""
    if not isinstance(kind, type):
        return None
    if issubclass(kind, pathlib.PurePath) and kind.__module__.startswith("pathlib"):
        return functools.partial(_path, kind), "path (str)"
    numpy = sys.modules.get("numpy")
    if numpy is None or not issubclass(kind, numpy.generic):
        return None
    made = numpy.dtype(kind) if kind in numpy.sctypeDict.values() else None
    if made is None or made.kind not in _READ:
        return None
    return functools.partial(_READ[made.kind], kind), kind.__name__


def _path(kind: Callable[[str], Any], value: Any) -> Any:
    if not isinstance(value, str):
        raise ValueError(f"expected path (str), got {kind_of(value)}")
    if "\0" in value:
        raise ValueError("expected path (str) without NUL")
    return kind(value)


def _bool(kind: Callable[[bool], Any], value: Any) -> Any:
    if not isinstance(value, bool):
        raise ValueError(f"expected bool, got {kind_of(value)}")
    return kind(value)


def _integer(kind: Any, value: Any) -> Any:
    import numpy

    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"expected {kind.__name__}, got {kind_of(value)}")
    bounds = numpy.iinfo(kind)
    if not bounds.min <= value <= bounds.max:
        raise ValueError(f"expected {kind.__name__}, got {value_text(value)}")
    return kind(value)


def _float(kind: Any, value: Any) -> Any:
    import numpy

    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise ValueError(f"expected {kind.__name__}, got {kind_of(value)}")
    try:
        with numpy.errstate(over="ignore"):
            made = kind(float(value))
    except OverflowError:
        made = kind(math.inf)
    if not numpy.isfinite(made):
        raise ValueError(f"expected {kind.__name__}, got {value_text(value)}")
    return made


_READ = {"b": _bool, "i": _integer, "u": _integer, "f": _float}
