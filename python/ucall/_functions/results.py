"""What one call of a function gives, by the annotation of its result, and what encodes that."""

from __future__ import annotations

import collections.abc
import sys
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from ucall import _core
from ucall._functions import signatures
from ucall._functions.batches import is_array
from ucall.types.aliases import resolve_alias

__all__ = ["annotation_of", "encoder_of", "of_call", "yielded"]

Encode: TypeAlias = Callable[[Any], object]

_ITERATORS = (
    collections.abc.Generator,
    collections.abc.AsyncGenerator,
    collections.abc.Iterator,
    collections.abc.AsyncIterator,
    collections.abc.Iterable,
    collections.abc.AsyncIterable,
)


def encoder_of(
    encode: Encode,
    function: Callable[..., object],
    hints: Mapping[str, object],
    *,
    takes_batches: bool,
) -> Encode:
    """What encodes the results of a function, or the items of a generator. If these are arrays, a
    NumPy scalar is one of no dimensions."""
    if "numpy" not in sys.modules:
        return encode
    result = annotation_of(function, hints)
    if signatures.yields(function):
        result = yielded(result)
    if takes_batches:
        result = of_call(result)
    return _core.ArrayResults(encode) if is_array(result) else encode


def annotation_of(function: Callable[..., object], hints: Mapping[str, object]) -> Any:
    """The annotation of what a function returns, evaluated if that is possible by now."""
    annotation = hints.get("return", Any)
    if not isinstance(annotation, str):
        return annotation
    holder = types.SimpleNamespace(__annotations__={"return": annotation})
    known = getattr(signatures.underlying_function(function), "__globals__", {})
    try:
        return typing.get_type_hints(holder, known, include_extras=True)["return"]
    except Exception:  # It may refer to names that only type checkers import.
        return Any


def yielded(annotation: Any) -> Any:
    """The annotation of what a generator yields. With slots that is an item for each of several
    calls: its annotation is that of one item."""
    arguments = typing.get_args(annotation)
    if typing.get_origin(annotation) not in _ITERATORS or not arguments:
        return Any
    if "ucall._functions.slots" not in sys.modules:
        return arguments[0]
    from ucall._functions.slots import item_of

    return item_of(arguments[0])


def of_call(annotation: Any) -> Any:
    """The annotation of one result of a batch; of an array, as its first axis is the batch's."""
    annotation = resolve_alias(annotation)
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if is_array(annotation):
        numpy: Any = sys.modules["numpy"]
        is_shaped = origin is numpy.ndarray and len(arguments) == 2
        return numpy.ndarray[Any, arguments[1]] if is_shaped else annotation
    return arguments[0] if origin in (list, collections.abc.Sequence) and arguments else Any
