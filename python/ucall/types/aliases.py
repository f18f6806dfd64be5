"""What stands behind a name for an annotation: ``type X = …``, generic or not, and ``NewType``.

Such names are neither classes nor made of arguments. Who takes them as they are does not see the
array that is meant, nor the model, nor the dict whose keys are to be watched.
"""

from __future__ import annotations

import typing
from typing import Any

from ucall.types.messages import UnsupportedType, type_name

__all__ = ["RECURSIVE_ALIAS", "bounds_of", "resolve_alias"]

RECURSIVE_ALIAS = "it is made of itself; Any may stand there"

_NAMES_MAX = 100
"""For one another, before it is said that they lead nowhere."""


def resolve_alias(annotation: Any) -> Any:
    """What stands behind a name, and behind the name that this stands for; others as they are.

    Raises:
        Unserved: It stands for itself, names what cannot be found, or takes arguments as nobody
            knows here.
    """
    last = annotation
    for _ in range(_NAMES_MAX):
        value = _alias_value(last)
        if value is None:
            return last
        (last,) = value
    raise UnsupportedType(type_name(annotation), RECURSIVE_ALIAS)


def _alias_value(annotation: Any) -> tuple[Any] | None:
    """What the name stands for; ``None`` if it is no name."""
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
    """What a type parameter has to be.

    Raises:
        Unserved: It names what cannot be found.
    """
    if not isinstance(annotation, typing.TypeVar):
        return ()
    try:
        bound = annotation.__bound__
        return annotation.__constraints__ if bound is None else (bound,)
    except NameError as error:
        raise _unresolved(annotation, error) from None


def _is_alias(annotation: Any) -> bool:
    """Whether ``type X = …`` made it, or what does the same before Python 3.12."""
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
    except (TypeError, ValueError):  # One that takes any number of arguments, for example.
        raise UnsupportedType(type_name(alias[arguments])) from None


def _unresolved(annotation: Any, error: NameError) -> UnsupportedType:
    return UnsupportedType(type_name(annotation), f"it names what cannot be found: {error}")
