"""Functions that take a batch of calls: each parameter is a list, or a stacked NumPy array.

Each call has one item per parameter. The core collects the items, and the contexts of the calls,
into lists. Arrays of one shape and dtype are then stacked along a new first axis.
"""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ucall._core import Context, stacked_groups
from ucall._functions import signatures
from ucall.errors import RPCError
from ucall.types.aliases import resolve_alias
from ucall.types.messages import UnsupportedType, type_name

if TYPE_CHECKING:
    from ucall.types.registry import TypeRegistry

__all__ = ["adapt", "is_array", "item_of"]

Function = Callable[..., Any]
Column = list[Any]


def adapt(
    function: Function, name: str, hints: dict[str, object], registry: TypeRegistry
) -> tuple[Function, list[signatures.Parameter]]:
    """The function that the core calls with a list per parameter, and the items' parameters.

    Raises:
        TypeError: A parameter is neither a list nor an array; the message names it.
    """
    arrays: list[bool] = []

    def noted_item_of(annotation: Any) -> Any:
        arrays.append(is_array(annotation))
        return item_of(annotation)

    signature = signatures.describe(function, name, hints, registry, noted_item_of)
    if not signature:
        raise TypeError(f"{name}: a batch needs at least one parameter")
    for parameter in signature:
        _check_column(parameter, name)
    stacked = [index for index, is_array in enumerate(arrays) if is_array]
    if not stacked:
        return function, signature
    if signatures.yields(function):
        raise TypeError(f"{name}: a batch that yields takes lists, and no arrays")
    stacking = _stacking_async if signatures.is_async(function) else _stacking
    return stacking(function, name, stacked), signature


def _check_column(parameter: signatures.Parameter, name: str) -> None:
    named, kind, takes, has_default, _ = parameter
    if kind not in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD):
        raise TypeError(f"{name}: parameter {named!r}: a batch is called by position")
    if has_default and takes != "context":
        raise TypeError(f"{name}: parameter {named!r}: a batch has no defaults")


def item_of(annotation: Any) -> Any:
    """The annotation of one item of an annotated list, or array.

    Raises:
        UnsupportedType: It is neither.
    """
    if is_array(annotation):
        return annotation
    annotation = resolve_alias(annotation)
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation in (list, Any, inspect.Parameter.empty):
        return Any
    if origin in (list, Sequence) and arguments:
        return arguments[0]
    if annotation is Context:
        raise UnsupportedType("ucall.Context", "a batch has many calls: list[ucall.Context]")
    raise UnsupportedType(type_name(annotation), "a batch is called with lists or arrays")


def is_array(annotation: Any) -> bool:
    """Whether an annotation is that of an array."""
    annotation = resolve_alias(annotation)
    if typing.get_origin(annotation) is typing.Annotated:
        annotation = annotation.__origin__
    numpy = sys.modules.get("numpy")
    kind = typing.get_origin(annotation) or annotation
    return numpy is not None and kind is numpy.ndarray


def _stacking(function: Function, name: str, stacked: Sequence[int]) -> Function:
    def run(*columns: Column) -> Column:
        results: Column = [None] * len(columns[0])
        for positions, arguments in stacked_groups(columns, stacked):
            try:
                found = _checked(name, function(*arguments), len(positions))
                _scatter(results, positions, found)
            except Exception as failure:
                _scatter(results, positions, [failure] * len(positions))
        return results

    return run


def _stacking_async(function: Function, name: str, stacked: Sequence[int]) -> Function:
    async def run(*columns: Column) -> Column:
        results: Column = [None] * len(columns[0])
        for positions, arguments in stacked_groups(columns, stacked):
            made = typing.cast(Coroutine[Any, Any, Iterable[Any]], function(*arguments))
            try:
                _scatter(results, positions, _checked(name, await made, len(positions)))
            except Exception as failure:
                _scatter(results, positions, [failure] * len(positions))
        return results

    return run


def _checked(name: str, found: Iterable[Any], count: int) -> Column:
    """The results as a list.

    Raises:
        RPCError: There is not one for each call. It is logged here, once for all calls.
    """
    results = _as_list(found)
    if results is not None and len(results) == count:
        return results
    if results is None:
        fault = f"result: expected a list of {count} results"
    else:
        fault = f"result: expected {count} results for a batch of {count}, got {len(results)}"
    import logging

    logging.getLogger("ucall").error("%s: %s", name, fault)
    raise RPCError(-32603, "Internal error", fault)


def _as_list(found: Iterable[Any]) -> Column | None:
    """What a function returned as a list; ``None`` if it has no results, as text and a dict."""
    try:
        items = iter(found)
    except TypeError:
        return None
    return None if isinstance(found, (str, dict)) else list(items)


def _scatter(results: Column, positions: list[int], found: Column) -> None:
    for position, result in zip(positions, found, strict=True):
        results[position] = result
