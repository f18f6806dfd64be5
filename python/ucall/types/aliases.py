"""Resolves names for annotations: ``type X = …``, generic or not, and ``NewType``.

All checks of an annotation need the resolved one: a name hides the arrays, models and dicts in it.
A recursive name stays, since only pydantic builds such values, and needs the name.
"""

from __future__ import annotations

import typing
from typing import Any

from ucall.types.messages import UnsupportedType, type_name

__all__ = ["RECURSIVE_ALIAS", "bounds_of", "is_recursive", "named_by", "resolve_alias"]

RECURSIVE_ALIAS = "it is recursive without end; use Any for the inner part"

_NAMES_MAX = 100
"""The longest chain of names for names. A longer one is taken to be recursive."""


def resolve_alias(annotation: Any) -> Any:
    """Replaces a name by its annotation until that is not a name, or is a recursive one.

    Raises:
        UnsupportedType: The name stands for itself alone, refers to an unknown name, or has
            arguments that do not fit its parameters.
    """
    last = annotation
    for _ in range(_NAMES_MAX):
        value = named_by(last)
        if value is None or (is_recursive(last) and named_by(value[0]) is None):
            return last
        (last,) = value
    raise UnsupportedType(type_name(annotation), RECURSIVE_ALIAS)


def is_recursive(annotation: Any) -> bool:
    """Whether a ``type X = …`` contains itself, as one for any JSON value does.

    Raises:
        UnsupportedType: It refers to an unknown name.
    """
    alias = _alias_in(annotation)
    return alias is not None and _reaches(alias.__value__, alias, [alias])


def _reaches(part: Any, alias: Any, seen: list[Any]) -> bool:
    other = _alias_in(part)
    # Before Python 3.12, a recursive name is written as a string.
    if other is alias or getattr(part, "__forward_arg__", part) == alias.__name__:
        return True
    if other is not None and other not in seen:
        seen.append(other)
        if _reaches(other.__value__, alias, seen):
            return True
    return any(_reaches(argument, alias, seen) for argument in typing.get_args(part))


def _alias_in(annotation: Any) -> Any:
    """The ``type X = …`` of an annotation ``X`` or ``X[…]``."""
    found = next((it for it in (annotation, typing.get_origin(annotation)) if _is_alias(it)), None)
    try:
        if found is not None:
            found.__value__  # noqa: B018
    except NameError as error:
        raise _unresolved(annotation, error) from None
    return found


def named_by(annotation: Any) -> tuple[Any] | None:
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
