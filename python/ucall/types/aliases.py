"""Resolves names for annotations: ``type X = …``, generic or not, and ``NewType``.

All checks of an annotation need the resolved one: a name hides the arrays, models and dicts in it.
"""

from __future__ import annotations

import typing
from typing import Any

from ucall.types.messages import UnsupportedType, type_name

__all__ = ["RECURSIVE_ALIAS", "bounds_of", "resolve_alias"]

RECURSIVE_ALIAS = "it is recursive; use Any for the inner part"

_NAMES_MAX = 100
"""The longest chain of names for names. A longer one is taken to be recursive."""


def resolve_alias(annotation: Any) -> Any:
    """Replaces a name by its annotation until that is not a name.

    Raises:
        UnsupportedType: The name is recursive, refers to an unknown name, or has arguments that
            do not fit its parameters.
    """
    last = annotation
    for _ in range(_NAMES_MAX):
        value = _alias_value(last)
        if value is None:
            return last
        (last,) = value
    raise UnsupportedType(type_name(annotation), RECURSIVE_ALIAS)


def _alias_value(annotation: Any) -> tuple[Any] | None:
    """The annotation that a name has, in a tuple; ``None`` if it is not a name."""
    try:
        if isinstance(annotation, typing.NewType):
            return (annotation.__supertype__,)
        if _is_alias(annotation):
            return (annotation.__value__,)
        if _is_alias(typing.get_origin(annotation)):
            return (_substitute(typing.get_origin(annotation), typing.get_args(annotation)),)
    except NameError as error:
        raise _unresolved(annotation, error) from None
    return None


def bounds_of(annotation: Any) -> tuple[Any, ...]:
    """The bound or the constraints of a type parameter; empty for other annotations.

    Raises:
        UnsupportedType: They refer to an unknown name.
    """
    if not isinstance(annotation, typing.TypeVar):
        return ()
    try:
        bound = annotation.__bound__
        return annotation.__constraints__ if bound is None else (bound,)
    except NameError as error:
        raise _unresolved(annotation, error) from None


def _is_alias(annotation: Any) -> bool:
    """Whether it is a ``type X = …``, or its backport for Python before 3.12."""
    kind = type(annotation)
    return kind.__name__ == "TypeAliasType" and kind.__module__ in ("typing", "typing_extensions")


def _substitute(alias: Any, arguments: tuple[Any, ...]) -> Any:
    value, parameters = alias.__value__, alias.__type_params__
    wanted = getattr(value, "__parameters__", ())
    try:
        if wanted == parameters:
            return value[arguments]
        given = dict(zip(parameters, arguments, strict=True))
        if value in parameters:
            return given[value]
        return value[tuple(given[parameter] for parameter in wanted)] if wanted else value
    except (TypeError, ValueError):  # A variadic alias, for example.
        raise UnsupportedType(type_name(alias[arguments])) from None


def _unresolved(annotation: Any, error: NameError) -> UnsupportedType:
    return UnsupportedType(type_name(annotation), f"it refers to an unknown name: {error}")
