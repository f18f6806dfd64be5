"""Functions that take a batch of calls: a parameter is a list, a stacked array, or a scalar.

The core reads the calls and groups them: those whose arrays have the same shapes and dtypes, and
whose scalars have the same values. For each group it calls the function with a list, an array with
a new first axis, or the one value of all calls for each parameter.
"""

from __future__ import annotations

import inspect
import sys
import types
import typing
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ucall._core import Context
from ucall._functions import signatures
from ucall.types.aliases import resolve_alias
from ucall.types.messages import Takes, UnsupportedType, type_name

if TYPE_CHECKING:
    from ucall.types.registry import TypeRegistry

__all__ = ["default_of_call", "describe", "has_rows", "is_array", "item_of"]


def describe(
    function: Callable[..., Any],
    name: str,
    hints: dict[str, object],
    registry: TypeRegistry,
    *,
    rows: bool = False,
) -> list[signatures.Parameter]:
    """The parameters of one call, with what the calls of a batch give for each. With ``rows`` that
    of a call is a list or an array, too.

    Raises:
        TypeError: A parameter cannot be that of a batch; the message names it.
    """
    annotations: list[Any] = []

    def noted_item_of(annotation: Any) -> Any:
        annotations.append(annotation)
        item = item_of(annotation)
        return annotation if rows else item

    signature = signatures.describe(function, name, hints, registry, noted_item_of) or []
    columns = [_column_of(annotation) for annotation in annotations]
    if rows:
        columns = ["list" if column == "stacked" else column for column in columns]
    if "stacked" in columns and signatures.yields(function):
        raise TypeError(f"{name}: a batch that yields takes lists, and no arrays")
    parameters = zip(signature, annotations, columns, strict=True)
    described = [_parameter(*it, name, rows) for it in parameters]
    if all(column == "scalar" for column in columns):
        problem = "a batch needs a parameter that is a list or an array, with an item of each call"
        raise TypeError(f"{name}: {problem}")
    return described


def has_rows(annotation: Any) -> bool:
    """Whether a parameter has an item of each call, or several."""
    return _column_of(annotation) != "scalar"


def _column_of(annotation: Any) -> str:
    """What the calls of a batch give for a parameter: a list, a stacked array, or one value."""
    if is_array(annotation):
        return "stacked"
    return "list" if _is_list(annotation) else "scalar"


def default_of_call(annotation: Any, default: Any) -> Any:
    """The default of one call. That of a list or an array is its only item, as the function has
    the default of a batch with one call.

    Raises:
        TypeError: It is another list or array.
    """
    column = _column_of(annotation)
    if default is inspect.Parameter.empty or column == "scalar":
        return default
    if column == "list" and isinstance(default, (list, tuple)) and len(default) == 1:
        return default[0]
    if column == "stacked" and is_array(type(default)) and default.shape[:1] == (1,):
        return default.reshape(default.shape[1:])
    raise TypeError("expected the default of a batch with one call: a list or an array of one item")


def _parameter(
    parameter: signatures.Parameter, annotation: Any, column: str, name: str, rows: bool
) -> signatures.Parameter:
    named, kind, takes, has_default, default = parameter
    if kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
        raise TypeError(f"{name}: parameter {named!r}: a batch has no *args or **kwargs")
    if has_default and column != "scalar" and takes != "context":
        if rows:
            problem = "with rows a list or an array has no default"
            raise TypeError(f"{name}: parameter {named!r}: {problem}")
        try:
            default = default_of_call(annotation, default)
        except TypeError as error:
            raise TypeError(f"{name}: parameter {named!r}: {error}") from None
    if column == "list":
        return named, kind, takes, has_default, default
    return named, kind, (column, typing.cast(Takes, takes)), has_default, default


def item_of(annotation: Any) -> Any:
    """The annotation of one call's value: of an item of an annotated list, of an array, or of a
    scalar.

    Raises:
        UnsupportedType: A batch cannot have such a parameter.
    """
    if is_array(annotation):
        return annotation
    annotation = resolve_alias(annotation)
    if _is_list(annotation):
        return (typing.get_args(annotation) or (Any,))[0]
    if annotation is Context:
        raise UnsupportedType("ucall.Context", "a batch has many calls: list[ucall.Context]")
    is_union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    if is_union and any(map(_has_item_of_each, typing.get_args(annotation))):
        reason = "a list or an array of a batch has an item of each call, and cannot be optional"
        raise UnsupportedType(type_name(annotation), reason)
    return annotation


def _has_item_of_each(annotation: Any) -> bool:
    return is_array(annotation) or _is_list(annotation)


def _is_list(annotation: Any) -> bool:
    annotation = resolve_alias(annotation)
    if annotation in (list, Any, inspect.Parameter.empty):
        return True
    is_list = typing.get_origin(annotation) in (list, Sequence)
    return is_list and bool(typing.get_args(annotation))


def is_array(annotation: Any) -> bool:
    """Whether an annotation is that of an array."""
    annotation = resolve_alias(annotation)
    if typing.get_origin(annotation) is typing.Annotated:
        annotation = annotation.__origin__
    numpy = sys.modules.get("numpy")
    kind = typing.get_origin(annotation) or annotation
    return numpy is not None and kind is numpy.ndarray
