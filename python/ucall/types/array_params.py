"""Parameters that are arrays: the number of their dimensions and their dtypes, by the annotation.

The core builds the arrays: see `ucall._core.ArrayType`.
"""

from __future__ import annotations

import types
import typing
from typing import Any

import numpy

from ucall._core import ArrayType
from ucall.types.messages import UnsupportedType, type_name

__all__ = ["array_type"]

_ABSTRACT = (
    numpy.number,
    numpy.integer,
    numpy.signedinteger,
    numpy.unsignedinteger,
    numpy.inexact,
    numpy.floating,
    numpy.complexfloating,
)


def array_type(annotation: Any) -> ArrayType:
    """What builds an annotation's arrays.

    Raises:
        UnsupportedType: The dtype is neither bool nor a number.
    """
    parameters = typing.get_args(annotation)
    wanted = [_wanted_dtype(scalar) for scalar in _scalars(parameters)]
    try:
        return ArrayType(_dimensions(parameters), wanted)
    except TypeError as error:
        raise UnsupportedType(type_name(annotation), str(error)) from None


def _dimensions(parameters: tuple[Any, ...]) -> int | None:
    """The number of dimensions: 2 for ``numpy.ndarray[tuple[int, int], ...]``."""
    shape = parameters[0] if parameters else Any
    sides = typing.get_args(shape)
    if typing.get_origin(shape) is not tuple or not sides or Ellipsis in sides:
        return None
    return len(sides)


def _scalars(parameters: tuple[Any, ...]) -> tuple[Any, ...]:
    """The classes of items, of which the first that fits is used; none for any."""
    scalars = typing.get_args(parameters[1]) if len(parameters) > 1 else ()
    scalar = scalars[0] if scalars else Any
    if scalar is Any or isinstance(scalar, typing.TypeVar) or scalar is numpy.generic:
        return ()
    is_union = typing.get_origin(scalar) in (typing.Union, types.UnionType)
    return typing.get_args(scalar) if is_union else (scalar,)


def _wanted_dtype(scalar: Any) -> numpy.dtype[Any] | str:
    """A dtype, or the name of an abstract class of dtypes."""
    kind = typing.get_origin(scalar) or scalar  # numpy.floating[Any]
    return str(kind.__name__) if kind in _ABSTRACT else numpy.dtype(scalar)
