"""Functions that take many calls at once: each parameter is a list, or an array of arrays.

Callers give one item for each parameter. Lists are collected by the core, those of the calls'
contexts too; arrays are then stacked along a new first axis, those of one shape and type together.
"""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ucall import _signature
from ucall._core import Context
from ucall.types.aliases import meant
from ucall.types.faults import Unserved, shown

if TYPE_CHECKING:
    from ucall.types.registry import Types

__all__ = ["adapt"]

Function = Callable[..., Any]
Column = list[Any]


def adapt(
    function: Function, name: str, known: Types
) -> tuple[Function, list[_signature.Parameter]]:
    """What the core calls with a list for each parameter, and what one caller gives for each.

    Raises:
        TypeError: A parameter is neither a list nor an array; the message names it.
    """
    arrays: list[bool] = []

    def item_of(annotation: Any) -> Any:
        arrays.append(_is_array(annotation))
        return annotation if arrays[-1] else _item_of_list(annotation)

    signature = _signature.describe(function, name, known, item_of)
    if not signature:
        raise TypeError(f"{name}: takes no parameters that calls could be collected in")
    for parameter in signature:
        _refuse_what_is_no_column(parameter, name)
    stacked = [index for index, is_array in enumerate(arrays) if is_array]
    if not stacked:
        return function, signature
    stacking = _stacking_async if _signature.is_async(function) else _stacking
    return stacking(function, stacked), signature


def _refuse_what_is_no_column(parameter: _signature.Parameter, name: str) -> None:
    named, kind, takes, has_default, _ = parameter
    if kind not in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD):
        raise TypeError(f"{name}: parameter {named!r}: a batch is called by position")
    if has_default and takes != "context":
        raise TypeError(f"{name}: parameter {named!r}: a batch has no defaults")


def _item_of_list(annotation: Any) -> Any:
    """What one caller gives where the function takes that."""
    annotation = meant(annotation)
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation in (list, Any, inspect.Parameter.empty):
        return Any
    if origin in (list, Sequence) and arguments:
        return arguments[0]
    if annotation is Context:
        raise Unserved("ucall.Context", "a batch has many calls: list[ucall.Context]")
    raise Unserved(shown(annotation), "a batch is called with lists or arrays")


def _is_array(annotation: Any) -> bool:
    annotation = meant(annotation)
    if typing.get_origin(annotation) is typing.Annotated:
        annotation = annotation.__origin__
    numpy = sys.modules.get("numpy")
    kind = typing.get_origin(annotation) or annotation
    return numpy is not None and kind is numpy.ndarray


def _stacking(function: Function, stacked: Iterable[int]) -> Function:
    def run(*columns: Column) -> Column:
        results: Column = [None] * len(columns[0])
        for places, arguments in _groups(columns, stacked):
            try:
                _place(results, places, list(function(*arguments)))
            except Exception as failure:
                _place(results, places, [failure] * len(places))
        return results

    return run


def _stacking_async(function: Function, stacked: Iterable[int]) -> Function:
    async def run(*columns: Column) -> Column:
        results: Column = [None] * len(columns[0])
        for places, arguments in _groups(columns, stacked):
            made = typing.cast(Coroutine[Any, Any, Iterable[Any]], function(*arguments))
            try:
                _place(results, places, list(await made))
            except Exception as failure:
                _place(results, places, [failure] * len(places))
        return results

    return run


def _place(results: Column, places: list[int], found: Column) -> None:
    if len(found) != len(places):
        raise ValueError(f"expected {len(places)} results for a batch, got {len(found)}")
    for place, result in zip(places, found, strict=True):
        results[place] = result


def _groups(
    columns: tuple[Column, ...], stacked: Iterable[int]
) -> Iterator[tuple[list[int], list[Any]]]:
    """The calls whose arrays fit together: their places in the batch, and the arguments."""
    import numpy

    shapes: dict[object, list[int]] = {}
    for place, row in enumerate(zip(*columns, strict=True)):
        shape = tuple((row[index].shape, row[index].dtype.str) for index in stacked)
        shapes.setdefault(shape, []).append(place)
    for places in shapes.values():
        arguments: list[Any] = [[column[place] for place in places] for column in columns]
        for index in stacked:
            arguments[index] = numpy.stack(arguments[index])
        yield places, arguments
