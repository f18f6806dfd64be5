"""Makes the classes by which ``msgspec`` describes those that it does not describe itself.

A class whose constructor takes other params than its fields, or with parts that pydantic or a
registered type describes, has a Struct of what it takes, or of what is written of it.
"""

from __future__ import annotations

import collections
import dataclasses
import typing
from typing import TYPE_CHECKING, Any

from ucall.types.classes import ABSENT, Argument, Constructor, constructor_of, hints_of, sort_of
from ucall.types.forms import Forms, list_of, struct_of

if TYPE_CHECKING:
    from ucall.types.classes import Part
    from ucall.types.registry import TypeRegistry

__all__ = ["SchemaForms"]


class SchemaForms(Forms):
    """The forms that describe one annotation, without what builds them.

    Args:
        registry: The types of the server.
        is_param: Whether it is that of a param; else of a result.
    """

    def __init__(self, registry: TypeRegistry, is_param: bool) -> None:
        super().__init__(registry)
        self._is_param = is_param
        self._structs: dict[Any, Any] = {}

    def _is_special(self, part: Part) -> bool:
        is_of_fields = part.builder == "msgspec" and not self._registry.is_registered(
            part.annotation
        )
        if is_of_fields and not self._is_param:  # All fields are written but the private of attrs.
            kind = typing.get_origin(part.annotation) or part.annotation
            return sort_of(kind) == "attrs" or kind is collections.deque
        return super()._is_special(part)

    def _of_class(self, annotation: Any) -> Any:
        known = self._structs.get(annotation)
        if known is None:
            constructor = (constructor_of if self._is_param else _written)(annotation)
            # Its fields are set when it is known, so that it may contain itself.
            known = struct_of(constructor, annotation, lambda _: Any, _default)
            self._structs[annotation] = known
            for name, it in zip(known.__struct_fields__, constructor.arguments, strict=True):
                known.__annotations__[name] = self.of(it.annotation)
        return known

    def _of_deque(self, annotation: Any) -> Any:
        return list_of(annotation, self.of)

    def _of_union(self, annotation: Any) -> Any:
        members = tuple(self.of(it) for it in typing.get_args(annotation))
        return typing.Union[members]  # noqa: UP007

    def _complete_pydantic(self, part: Any) -> None:
        """It is described by `Schemas`."""


def _written(annotation: Any) -> Constructor:
    """The fields of a class as results have them."""
    kind = typing.get_origin(annotation) or annotation
    sort = sort_of(kind)
    if sort not in ("dataclass", "attrs"):
        return constructor_of(annotation)
    hints = hints_of(annotation)
    if sort == "dataclass":
        arguments = [_of_dataclass(field, hints) for field in dataclasses.fields(kind)]
    else:
        public = [it for it in kind.__attrs_attrs__ if not it.name.startswith("_")]
        arguments = [_of_attrs(attribute, hints) for attribute in public]
    return Constructor(kind, arguments)


def _of_dataclass(field: Any, hints: dict[str, Any]) -> Argument:
    missing = dataclasses.MISSING
    factory = None if field.default_factory is missing else field.default_factory
    default = ABSENT if field.default is missing else field.default
    is_required = factory is None and default is ABSENT
    return Argument(field.name, field.name, hints[field.name], is_required, default, factory)


def _of_attrs(attribute: Any, hints: dict[str, Any]) -> Argument:
    hint = hints.get(attribute.name, Any)
    return Argument(attribute.name, attribute.name, hint, is_required=True)


def _default(argument: Argument) -> Any:
    """A field of a Struct with the default of an argument, as far as schemas have it."""
    import msgspec

    default = argument.default
    if default is ABSENT:
        return msgspec.field(default_factory=argument.factory or (lambda: ABSENT))
    if default.__hash__ is None:
        return msgspec.field(default_factory=lambda: default)
    return default
