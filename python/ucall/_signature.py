"""What a function's parameters take, described for the extension module.

Annotations are looked at once, when a function is registered. What cannot be served is refused
here, by the names of the function and the parameter.
"""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable
from typing import Any, TypeAlias

Takes: TypeAlias = str | tuple[str, Any]
"""A name (``"int"``), or a name and what it is made of (``("list", "int")``)."""

Parameter: TypeAlias = tuple[str, int, Takes, bool, object]
"""Name, kind (see `inspect.Parameter`), what it takes, whether it has a default, and that."""

_SCALARS: dict[object, Takes] = {
    inspect.Parameter.empty: "any",
    Any: "any",
    object: "any",
    None: "none",
    type(None): "none",
    bool: "bool",
    int: "int",
    float: "float",
    str: "str",
    bytes: "bytes",
    list: ("list", "any"),
    dict: ("dict", "any"),
}


def describe(function: Callable[..., object], name: str) -> list[Parameter] | None:
    """Describes each parameter in order; ``None`` when the callable does not tell.

    Some builtins have no signature; they are called just as the params come.

    Raises:
        TypeError: The function cannot be served; the message names it and the parameter.
    """
    _refuse_what_cannot_run(function, name)
    try:
        signature = inspect.signature(function)
    except ValueError:
        return None
    hints = _annotations(function, name)
    return [
        _describe_parameter(parameter, hints, name) for parameter in signature.parameters.values()
    ]


def name_of(function: Callable[..., object]) -> str:
    """The name that a function is served under when no other is given.

    Raises:
        TypeError: It has none (a lambda, a partial, an object that can be called).
    """
    name = getattr(function, "__name__", None)
    if not isinstance(name, str) or not name.isidentifier():
        raise TypeError(f"{function!r} has no name of its own to be called by: give one, name=...")
    return name


def _refuse_what_cannot_run(function: Callable[..., object], name: str) -> None:
    if not callable(function):
        raise TypeError(f"{name}: {type(function).__name__} cannot be called")
    if isinstance(function, type):
        raise TypeError(f"{name}: is a class; serve a function or an object's method")
    for code in (_function_of(function), function):
        if inspect.iscoroutinefunction(code):
            raise TypeError(f"{name}: async functions cannot be served yet; use def")
        if inspect.isgeneratorfunction(code) or inspect.isasyncgenfunction(code):
            raise TypeError(f"{name}: generators cannot be served; return a list")


def _function_of(function: Callable[..., object]) -> Callable[..., object]:
    """What in the end runs and carries the annotations, behind partials, wrappers and objects."""
    while True:
        inner: object
        if isinstance(function, functools.partial):
            inner = function.func
        elif hasattr(function, "__wrapped__"):
            inner = function.__wrapped__
        elif inspect.isroutine(function):
            return function
        else:
            inner = type(function).__call__
        if not callable(inner) or inner is function or isinstance(inner, types.MethodWrapperType):
            return function
        function = inner


def _annotations(function: Callable[..., object], name: str) -> dict[str, object]:
    """The annotations of the parameters, those written as strings evaluated."""
    function = _function_of(function)
    written = dict(getattr(function, "__annotations__", None) or {})
    written.pop("return", None)  # May name what only type checkers import.
    known = getattr(function, "__globals__", {})
    try:
        holder = types.SimpleNamespace(__annotations__=written)
        return typing.get_type_hints(holder, globalns=known, include_extras=True)
    except NameError as error:
        raise TypeError(f"{name}: an annotation names what cannot be found: {error}") from error
    except (AttributeError, SyntaxError, TypeError):
        return written  # The one that is no type is refused by its name.


def _describe_parameter(
    parameter: inspect.Parameter, hints: dict[str, object], name: str
) -> Parameter:
    annotation = hints.get(parameter.name, parameter.annotation)
    try:
        takes = _describe_annotation(annotation)
    except _Unserved as unserved:
        raise TypeError(
            f"{name}: parameter {parameter.name!r}: {unserved} cannot be served"
        ) from None
    has_default = parameter.default is not inspect.Parameter.empty
    return parameter.name, int(parameter.kind), takes, has_default, parameter.default


class _Unserved(Exception):
    """An annotation, or a part of one, that no conversion is there for."""


def _describe_annotation(annotation: Any) -> Takes:
    try:
        return _SCALARS[annotation]
    except (KeyError, TypeError):  # TypeError: it cannot be hashed.
        pass
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is list and len(arguments) < 2:
        return "list", _describe_annotation(*arguments or (Any,))
    if origin is dict and (not arguments or arguments[0] in (str, Any)):
        return "dict", _describe_annotation(*arguments[1:] or (Any,))
    if origin in (typing.Union, types.UnionType):
        return _describe_union(annotation, arguments)
    if origin is typing.Annotated and all(isinstance(note, str) for note in arguments[1:]):
        return _describe_annotation(arguments[0])
    raise _Unserved(_shown(annotation))


def _describe_union(annotation: object, arguments: tuple[Any, ...]) -> Takes:
    """Of unions, only ``T | None`` is served."""
    others = [argument for argument in arguments if argument is not type(None)]
    if len(others) == len(arguments) or len(others) != 1:
        raise _Unserved(_shown(annotation))
    return "optional", _describe_annotation(others[0])


def _shown(annotation: object) -> str:
    return annotation.__qualname__ if isinstance(annotation, type) else str(annotation)
