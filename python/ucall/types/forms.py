"""Makes the forms of types that ``msgspec`` does not build as their constructors do.

A class with fields that its constructor does not take, or with a constructor of its own, has a
form: a Struct of what the constructor takes. So has each class with a part that pydantic or a
registered decoder builds. In an annotation, a class stands for each such type, and ``msgspec``
calls `decode_hook` with the decoded value of it. The value is converted to the form, and the
constructor is called with the fields of that.
"""

from __future__ import annotations

import collections
import functools
import typing
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ucall.types.aliases import resolve_alias
from ucall.types.classes import (
    ABSENT,
    Argument,
    Constructor,
    constructor_of,
    is_built_alike,
    is_pydantic,
    sort_of,
    walk,
)
from ucall.types.expected import nodes
from ucall.types.messages import PartError, UnsupportedType, type_name
from ucall.types.msgspec_errors import explain_part
from ucall.types.parts import is_union, parts_of

if TYPE_CHECKING:
    from ucall.types.registry import TypeRegistry

__all__ = ["Forms", "decode_hook", "form_decoder", "list_of", "part_in", "struct_of"]


@dataclass
class _Part:
    """A type that is built of its decoded value.

    Args:
        annotation: The type.
        build: Builds it, or raises ValueError or TypeError.
        form: What ``msgspec`` converts the value to, if it has a form.
        constructors: Those of its Structs.
    """

    annotation: Any
    build: Callable[[Any], Any] = field(init=False)
    form: Any = None
    constructors: dict[type, Constructor] = field(default_factory=dict)


class _StandIn(type):
    """The class of classes that stand for a type: ``msgspec`` checks what is built for them."""

    def __instancecheck__(cls, instance: object) -> bool:
        return True


def part_in(kind: Any) -> Any:
    """The part that a class of `Forms.of` stands for; ``None`` for other types."""
    return getattr(kind, "__ucall_part__", None)


class Forms:
    """The forms of one annotation.

    Args:
        registry: The types of the server.
    """

    def __init__(self, registry: TypeRegistry) -> None:
        self._registry = registry
        self._parts: dict[Any, Any] = {}

    def of(self, annotation: Any) -> Any:
        """The annotation with parts in place of the types that need them: itself if none does."""
        if not self.is_needed(annotation):
            return annotation
        annotation = resolve_alias(annotation)
        if self._registry.decoder_of(annotation) is not None:
            return self._of_registered(annotation)
        if any(map(is_pydantic, parts_of(annotation))):
            return self._part(annotation, self._complete_pydantic)
        if sort_of(typing.get_origin(annotation) or annotation) is not None:
            return self._of_class(annotation)
        if (typing.get_origin(annotation) or annotation) is collections.deque:
            return self._of_deque(annotation)
        return self._of_composed(annotation)

    def _of_deque(self, annotation: Any) -> Any:
        return self._part(annotation, self._complete_deque)

    def _of_class(self, annotation: Any) -> Any:
        return self._part(annotation, self._complete_class)

    def is_needed(self, annotation: Any) -> bool:
        """Whether any part of an annotation, at any depth, is built otherwise than by itself."""
        return any(map(self._is_special, walk(annotation, self._registry.is_registered)))

    def _is_special(self, part: Any) -> bool:
        kind = typing.get_origin(part.annotation) or part.annotation
        if self._registry.is_registered(kind):
            return _is_known_to_msgspec(kind)
        is_deque = kind is collections.deque
        return part.builder == "pydantic" or is_deque or not is_built_alike(kind)

    def _of_registered(self, annotation: Any) -> Any:
        if not _is_known_to_msgspec(annotation):
            return annotation
        decoder = self._registry.decoder_of(annotation)
        assert decoder is not None
        return self._part(annotation, lambda part: setattr(part, "build", decoder.decode_part))

    def _of_composed(self, annotation: Any) -> Any:
        origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
        if origin is typing.Annotated:
            return typing.Annotated[(self.of(arguments[0]), *arguments[1:])]
        if is_union(annotation):
            others = [it for it in arguments if it is not type(None)]
            if len(others) > 1:
                return self._of_union(annotation)
            return typing.Union[self.of(others[0]), None]  # noqa: UP007
        made = tuple(it if it is Ellipsis else self.of(it) for it in arguments)
        return origin[made]

    def _of_union(self, annotation: Any) -> Any:
        return self._part(annotation, self._complete_union)

    def _part(self, annotation: Any, complete: Callable[[_Part], None]) -> Any:
        """The class that stands for a type. It is known before its form is made, so that the type
        may contain itself."""
        known = self._parts.get(annotation)
        if known is None:
            part = _Part(annotation)
            known = _StandIn(_title(annotation), (), {"__ucall_part__": part})
            self._parts[annotation] = known
            complete(part)
        return known

    def _complete_pydantic(self, part: _Part) -> None:
        from ucall.types import models

        part.build = functools.partial(_build_by_pydantic, models.decoder(part.annotation))

    def _complete_class(self, part: _Part) -> None:
        part.form = self._struct(part, part.annotation)
        part.build = self._builder(part)

    def _complete_deque(self, part: _Part) -> None:
        part.form = list_of(part.annotation, self.of)
        build = self._builder(part)
        part.build = lambda value: collections.deque(build(value))

    def _complete_union(self, part: _Part) -> None:
        members = [
            self._struct(part, it) if self._is_class(it) else self.of(it)
            for it in typing.get_args(part.annotation)
        ]
        part.form = typing.Union[tuple(members)]  # noqa: UP007
        part.build = self._builder(part)

    def _is_class(self, annotation: Any) -> bool:
        sort = sort_of(typing.get_origin(annotation) or annotation)
        return sort is not None and self.is_needed(annotation)

    def _struct(self, part: _Part, annotation: Any) -> Any:
        constructor = constructor_of(annotation)
        made = struct_of(constructor, annotation, self.of)
        part.constructors[made] = constructor
        return made

    def _builder(self, part: _Part) -> Callable[[Any], Any]:
        import msgspec

        form_decoder(part.form, self._registry)  # Raises for what no library can build.
        hook = functools.partial(decode_hook, self._registry)
        convert = functools.partial(msgspec.convert, type=part.form, str_keys=True, dec_hook=hook)
        return functools.partial(_build, part, convert)


def form_decoder(form: Any, registry: TypeRegistry) -> tuple[Any, Any]:
    """The decoder and the description of an annotation that `Forms` has completed.

    Raises:
        UnsupportedType: It has a part that neither ``msgspec`` nor the server can build.
    """
    import msgspec

    info = msgspec.inspect.type_info(form)
    decoder = msgspec.json.Decoder(form, dec_hook=functools.partial(decode_hook, registry))
    for where, node in nodes(info, "", set()):
        kind = getattr(node, "cls", None)
        is_custom = type(node).__name__ == "CustomType" and part_in(kind) is None
        if is_custom and registry.decoder_of(kind) is None:
            raise UnsupportedType(where + type_name(form if node is info else kind))
    return decoder, info


def decode_hook(registry: TypeRegistry, kind: Any, value: Any) -> Any:
    """Builds a part, or a type that the server knows: the ``dec_hook`` of a form."""
    part = part_in(kind)
    return registry.decode_part(kind, value) if part is None else part.build(value)


def _build(part: _Part, convert: Callable[[Any], Any], value: Any) -> Any:
    import msgspec

    try:
        made = convert(value)
    except msgspec.ValidationError as error:
        raise PartError(*explain_part(part.form, error, value)) from error
    constructor = part.constructors.get(type(made))
    if constructor is None:
        return made
    for key in constructor.refused:
        if isinstance(value, dict) and key in value:
            raise PartError("unexpected", [key])
    return _constructed(constructor, made)


def _constructed(constructor: Constructor, form: Any) -> Any:
    named = {}
    for argument, name in zip(constructor.arguments, form.__struct_fields__, strict=True):
        value = getattr(form, name)
        if value is not ABSENT:
            named[argument.name] = value
    in_order = [it.name for it in constructor.arguments[: constructor.by_position]]
    by_position = [named.pop(name) for name in in_order if name in named]
    return constructor.kind(*by_position, **named)


def _build_by_pydantic(decoder: Any, value: Any) -> Any:
    import msgspec

    raw = msgspec.json.encode(value)
    try:
        return decoder.decode(raw)
    except ValueError as error:
        explain = functools.partial(decoder.explain, error, raw)
        first = explain(1)
        if not first:
            raise
        problem, steps = first[0]
        raise PartError(problem, steps, explain) from error


def struct_of(
    constructor: Constructor,
    annotation: Any,
    of: Callable[[Any], Any],
    default_of: Callable[[Argument], Any] = lambda _: ABSENT,
) -> Any:
    """A Struct of what a constructor takes.

    Args:
        constructor: The constructor.
        annotation: Its class.
        of: Maps the annotation of an argument to that of the field.
        default_of: The default of the field of an optional argument.
    """
    import msgspec

    kind = typing.get_origin(annotation) or annotation
    names = [f"f{index}" for index, _ in enumerate(constructor.arguments)]
    fields = [
        (name, of(it.annotation), *(() if it.is_required else (default_of(it),)))
        for name, it in zip(names, constructor.arguments, strict=True)
    ]
    keys = [it.key for it in constructor.arguments]
    return msgspec.defstruct(
        kind.__name__,
        fields,
        rename=dict(zip(names, keys, strict=True)),
        namespace={"__doc__": _docstring(kind), "__ucall_refused__": constructor.refused},
        module=kind.__module__,
        kw_only=True,
        **constructor.options,
    )


def list_of(annotation: Any, of: Callable[[Any], Any]) -> Any:
    """The list that has the items of a deque."""
    (item,) = typing.get_args(annotation) or (Any,)
    return list[of(item)]  # type: ignore[misc]


def _docstring(kind: Any) -> str | None:
    """Its docstring, but for that which ``dataclasses`` and NamedTuples make themselves."""
    text = kind.__doc__
    return None if text is None or text.startswith(f"{kind.__name__}(") else text


def _title(annotation: Any) -> str:
    """The name of a type in messages: with its form in JSON, if it has fields."""
    kind = typing.get_origin(annotation) or annotation
    sort = sort_of(kind)
    if sort is None:
        return type_name(annotation)
    is_list = sort == "namedtuple"
    if sort == "struct":
        is_list = kind.__struct_config__.array_like
    return f"{kind.__name__} ({'list' if is_list else 'dict'})"


def _is_known_to_msgspec(kind: Any) -> bool:
    """Whether ``msgspec`` would build the class itself, and never ask for a decoder."""
    import msgspec

    try:
        return not isinstance(msgspec.inspect.type_info(kind), msgspec.inspect.CustomType)
    except TypeError:
        return True
