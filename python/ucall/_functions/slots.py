"""Generators that take calls between their steps: `ucall.Server.batch` with ``slots``.

Such a function has one parameter, ``ucall.Slots[P]``. A call has a param for each field of ``P``, a
dataclass or a NamedTuple, and `ucall.Slot.params` is an object of it.
"""

from __future__ import annotations

import functools
import inspect
import operator
import types
import typing
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ucall._core import EndType, Slot, Slots
from ucall._functions import signatures
from ucall.errors import RPCError
from ucall.types.aliases import resolve_alias
from ucall.types.classes import hints_of, sort_of
from ucall.types.messages import UnsupportedType

if TYPE_CHECKING:
    from ucall.types.registry import TypeRegistry

__all__ = ["SlotFunction", "adapt", "item_of"]

Function = Callable[..., Any]


class SlotFunction:
    """A function with slots, as the core calls it.

    Args:
        start: The generator function, which is called with a `ucall.Slots`.
        params: Makes the params of a call. The core calls it when the call gets a slot.
    """

    __slots__ = ("_params", "start")

    def __init__(self, start: Function, params: Callable[..., object]) -> None:
        self.start = start
        self._params = params

    def __call__(self, *args: Any, **kwargs: Any) -> object:
        try:
            return self._params(*args, **kwargs)
        except (TypeError, ValueError) as error:  # Its `__post_init__` refuses them.
            raise RPCError(-32602, "Invalid params", str(error)) from None


def adapt(
    function: Function, name: str, hints: dict[str, object], registry: TypeRegistry
) -> tuple[SlotFunction, list[signatures.Parameter], Function, dict[str, object]]:
    """What the core calls, the parameters of a call, and the function that the description shows,
    with its annotations: it takes the params of one call and yields its items.

    Raises:
        TypeError: Its parameter is another one; the message names the function.
    """
    if not signatures.yields(function):
        raise TypeError(f"{name}: slots: is for generators, and this is none")
    params = _params_of(function, name, hints)
    sort = sort_of(typing.get_origin(params) or params)
    if sort not in ("dataclass", "namedtuple"):
        raise TypeError(
            f"{name}: slots: expected ucall.Slots[P], where P is a dataclass or a NamedTuple with "
            f"a field for each param of a call, got {params!r}"
        )
    try:
        fields = hints_of(params)
        parameters = signatures.parameters_of(params, fields)
    except UnsupportedType as unsupported:
        raise TypeError(f"{name}: {unsupported}") from None
    signature = signatures.describe(params, name, fields, registry)
    for named, _, takes, *_ in signature or ():
        if takes == "context":
            raise TypeError(f"{name}: parameter {named!r}: the context of a call is Slot.context")
    described = functools.wraps(function)(lambda: None)
    vars(described).update(
        __signature__=inspect.Signature(parameters), __self__=getattr(function, "__self__", None)
    )
    shown = fields | {key: hints[key] for key in ("return",) if key in hints}
    return SlotFunction(function, params), signature or [], described, shown


def _params_of(function: Function, name: str, hints: dict[str, object]) -> Any:
    """The class of the params of a call."""
    parameters = signatures.parameters_of(function, hints)
    if len(parameters) == 1:
        annotation = resolve_alias(parameters[0].annotation)
        if typing.get_origin(annotation) is Slots:
            return typing.get_args(annotation)[0]
    raise TypeError(f"{name}: slots: expected one parameter, with the annotation ucall.Slots[P]")


def item_of(annotation: Any) -> Any:
    """The annotation of one item, if that of what a generator yields is a `ucall.SlotItems`;
    otherwise as it is."""
    for pair in typing.get_args(annotation):
        first, *rest = typing.get_args(pair) or (None,)
        if (typing.get_origin(first) or first) is Slot and rest:
            return _without_ends(rest[0])
    return annotation


def _without_ends(annotation: Any) -> Any:
    if typing.get_origin(annotation) not in (types.UnionType, typing.Union):
        return annotation
    items = [it for it in typing.get_args(annotation) if it not in (EndType, BaseException)]
    return functools.reduce(operator.or_, items)
