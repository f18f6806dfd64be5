"""Reads classes with fields: dataclasses, attrs, Structs, NamedTuples and TypedDicts.

An instance is what its constructor makes. `is_built_alike` says whether ``msgspec``, which sets the
fields itself, makes the same; `constructor_of` describes the constructor of any other class, so
that `ucall.types.forms` calls it. `walk` follows an annotation into the fields of its classes.
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
import types
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from ucall.types.aliases import is_recursive
from ucall.types.messages import UnsupportedType, type_name
from ucall.types.parts import PYDANTIC, is_of, metadata_of, parts_of

if sys.version_info >= (3, 14):
    import annotationlib

__all__ = [
    "ABSENT",
    "Argument",
    "Constructor",
    "Part",
    "Sort",
    "constructor_of",
    "defaults_of",
    "hints_of",
    "is_built_alike",
    "is_generated",
    "is_pydantic",
    "pydantic_notes",
    "required_keys",
    "sets_plainly",
    "sort_of",
    "walk",
]

Sort: TypeAlias = Literal["model", "dataclass", "attrs", "struct", "namedtuple", "typeddict"]

ABSENT: Any = inspect.Parameter.empty
"""Stands for a default that an argument does not have."""


@dataclass(frozen=True)
class Argument:
    """An argument of a constructor.

    Args:
        name: Its name.
        key: The name of its value in JSON.
        annotation: Its type.
        is_required: Whether it has no default.
        default: Its default, if that is a value; else `ABSENT`.
        factory: What makes its default, if that is known.
    """

    name: str
    key: str
    annotation: Any
    is_required: bool
    default: Any = ABSENT
    factory: Callable[[], Any] | None = None


@dataclass(frozen=True)
class Constructor:
    """What a class is built of.

    Args:
        kind: The class.
        arguments: Those that its constructor takes.
        refused: The keys of fields that it has, but does not take.
        by_position: The number of arguments that are passed by position.
        options: How the JSON form differs from a plain object: options of ``msgspec.defstruct``.
    """

    kind: Any
    arguments: list[Argument]
    refused: frozenset[str] = frozenset()
    by_position: int = 0
    options: dict[str, Any] = dataclasses.field(default_factory=dict)


def sort_of(kind: object) -> Sort | None:
    """The sort of a class with fields; ``None`` for other types."""
    if not isinstance(kind, type):
        return None
    if hasattr(kind, "__pydantic_fields__") and not dataclasses.is_dataclass(kind):
        return "model"
    if dataclasses.is_dataclass(kind):
        return "dataclass"
    if "__attrs_attrs__" in dir(kind):
        return "attrs"
    if hasattr(kind, "__struct_fields__"):
        return "struct"
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return "namedtuple"
    return "typeddict" if issubclass(kind, dict) and hasattr(kind, "__total__") else None


@dataclass(frozen=True)
class Part:
    """A part of an annotation, at any depth.

    Args:
        where: The field that it is in, as a prefix of messages; empty outside classes.
        annotation: The part.
        builder: The library that builds it, or that builds what it is in.
        in_model: Whether it is in the field of a class of pydantic's, which ignores what it does
            not know.
    """

    where: str
    annotation: Any
    builder: Literal["msgspec", "pydantic"]
    in_model: bool


def walk(annotation: Any, is_leaf: Callable[[Any], bool]) -> Iterator[Part]:
    """Yields all parts of an annotation and of the fields of its classes, each class once.

    Args:
        annotation: The annotation.
        is_leaf: Whether a class has a form of its own, whatever its fields are.

    Raises:
        UnsupportedType: A field refers to an unknown name, or has metadata of a library that does
            not build it.
    """
    yield from _walk(annotation, Part("", None, "msgspec", False), is_leaf, set())


def _walk(
    annotation: Any, within: Part, is_leaf: Callable[[Any], bool], seen: set[Any]
) -> Iterator[Part]:
    parts = list(parts_of(annotation))
    is_of_pydantic = within.builder == "pydantic" or any(map(is_pydantic, parts))
    builder: Literal["msgspec", "pydantic"] = "pydantic" if is_of_pydantic else "msgspec"
    for part in parts:
        yield Part(within.where, part, builder, within.in_model)
        kind = typing.get_origin(part) or part
        sort = sort_of(kind)
        if sort is None or is_leaf(kind) or (_hashable(part), builder) in seen:
            continue
        seen.add((_hashable(part), builder))
        in_model = sort == "model" or hasattr(kind, "__pydantic_validator__")
        for name, hint in hints_of(part).items():
            where = f"{kind.__name__}.{name}: "
            yield from _walk(hint, Part(where, None, builder, in_model), is_leaf, seen)


def _hashable(part: Any) -> Any:
    try:
        hash(part)
    except TypeError:
        return repr(part)
    return part


def hints_of(annotation: Any) -> dict[str, Any]:
    """The annotations of the fields of a class, with the arguments of a generic one.

    Raises:
        UnsupportedType: One refers to an unknown name.
    """
    kind = typing.get_origin(annotation) or annotation
    sort = sort_of(kind)
    try:
        if sort == "model":
            fields = kind.__pydantic_fields__.items()
            return {name: _with_metadata(field) for name, field in fields}
        hints = typing.get_type_hints(kind, include_extras=True)
    except NameError as error:
        problem = f"it refers to an unknown name: {error}"
        raise UnsupportedType(type_name(annotation), problem) from None
    names = _field_names(kind, sort)
    arguments = _type_arguments(annotation)
    owners = {name: owner for owner in reversed(kind.__mro__) for name in _own_names(owner)}
    return {
        name: _substituted(_unwrapped(hints[name]), arguments.get(owners.get(name, kind), {}))
        for name in names
        if name in hints
    }


def defaults_of(kind: Any, sort: Sort) -> list[tuple[str, Any]]:
    """The defaults of the fields of a class, by name."""
    if sort == "dataclass":
        return [(field.name, field.default) for field in dataclasses.fields(kind)]
    if sort == "attrs":
        return [(attribute.name, attribute.default) for attribute in kind.__attrs_attrs__]
    if sort == "struct":
        return list(zip(kind.__struct_fields__[::-1], kind.__struct_defaults__[::-1], strict=False))
    return list(kind._field_defaults.items()) if sort == "namedtuple" else []


def _with_metadata(field: Any) -> Any:
    if not field.metadata:
        return field.annotation
    return typing.Annotated[(field.annotation, *field.metadata)]


def _field_names(kind: Any, sort: Sort | None) -> list[str]:
    if sort == "dataclass":
        is_of_class = [name for name, it in _hints(kind).items() if _is_class_variable(it)]
        return [name for name in kind.__dataclass_fields__ if name not in is_of_class]
    if sort == "attrs":
        return [attribute.name for attribute in kind.__attrs_attrs__]
    if sort == "struct":
        return list(kind.__struct_fields__)
    return list(kind._fields if sort == "namedtuple" else _hints(kind))


def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind, include_extras=True)


def _is_class_variable(hint: Any) -> bool:
    return hint is typing.ClassVar or typing.get_origin(hint) is typing.ClassVar


_QUALIFIERS = ("Required", "NotRequired", "ReadOnly", "Final")


def _unwrapped(hint: Any) -> Any:
    """A hint without what only says how the field is set."""
    if isinstance(hint, dataclasses.InitVar):
        return hint.type
    origin = typing.get_origin(hint)
    if getattr(origin, "_name", getattr(origin, "__name__", "")) in _QUALIFIERS:
        return _unwrapped(typing.get_args(hint)[0])
    return hint


def required_keys(kind: Any) -> set[str]:
    """The keys of a TypedDict that are required. Its own ``__required_keys__`` knows nothing of
    annotations that are strings."""
    return {
        name
        for name, hint in _hints(kind).items()
        if _is_required(hint, name in kind.__required_keys__)
    }


def _is_required(hint: Any, by_default: bool) -> bool:
    origin = typing.get_origin(hint)
    name = getattr(origin, "_name", getattr(origin, "__name__", ""))
    if name in ("Required", "NotRequired"):
        return bool(name == "Required")
    is_wrapped = name == "ReadOnly" or origin is typing.Annotated
    return _is_required(typing.get_args(hint)[0], by_default) if is_wrapped else by_default


def _own_names(owner: type) -> Any:
    """The names of the fields that a class itself has, and not its bases."""
    if sys.version_info >= (3, 14):  # It evaluates annotations on access (PEP 649).
        return annotationlib.get_annotations(owner, format=annotationlib.Format.FORWARDREF)
    return vars(owner).get("__annotations__", ())


def _type_arguments(annotation: Any) -> dict[Any, dict[Any, Any]]:
    """The arguments of the type parameters of a class and of each of its bases."""
    found: dict[Any, dict[Any, Any]] = {}

    def visit(alias: Any, outer: dict[Any, Any]) -> None:
        kind = typing.get_origin(alias) or alias
        given = [_substituted(argument, outer) for argument in typing.get_args(alias)]
        found[kind] = dict(zip(getattr(kind, "__parameters__", ()), given, strict=False))
        for base in getattr(kind, "__orig_bases__", ()):
            if isinstance(typing.get_origin(base), type) and typing.get_origin(base) not in found:
                visit(base, found[kind])

    visit(annotation, {})
    return found


def _substituted(hint: Any, given: dict[Any, Any]) -> Any:
    if not given:
        return hint
    if isinstance(hint, typing.TypeVar):
        return given.get(hint, hint)
    wanted = getattr(hint, "__parameters__", ())
    if isinstance(hint, type) or not any(parameter in given for parameter in wanted):
        return hint
    return hint[tuple(given.get(parameter, parameter) for parameter in wanted)]


def is_pydantic(part: Any) -> bool:
    """Whether pydantic defines the type, made it, or has metadata in it or in its fields; or a
    recursive name, which msgspec does not know."""
    if is_recursive(part):
        return True
    if metadata_of(part):
        return any(is_of(type(note), PYDANTIC) for note in metadata_of(part))
    kind = typing.get_origin(part) or part
    if not isinstance(kind, type):
        return False
    return hasattr(kind, "__pydantic_validator__") or is_of(kind, PYDANTIC) or _is_noted(kind)


def _is_noted(kind: type) -> bool:
    """Whether pydantic builds the class since metadata of pydantic's is in its fields."""
    sort = sort_of(kind)
    return sort in ("dataclass", "namedtuple", "typeddict") and bool(pydantic_notes(kind))


def pydantic_notes(kind: Any) -> list[str]:
    """The fields of a class that have metadata of pydantic's themselves."""
    if sort_of(kind) in (None, "model"):
        return []
    try:
        hints = hints_of(kind)
    except (UnsupportedType, TypeError):
        return []
    return [
        name
        for name, hint in hints.items()
        if any(metadata_of(part) and is_pydantic(part) for part in parts_of(hint))
    ]


def is_built_alike(kind: Any) -> bool:
    """Whether ``msgspec`` builds the same instances of a class as its constructor."""
    sort = sort_of(kind)
    if sort == "dataclass":
        return _is_plain_dataclass(kind)
    if sort == "namedtuple":
        return _takes_its_fields(kind, sort)
    if sort == "attrs":
        return sets_plainly(kind) and _is_plain_attrs(kind)
    return True


def _is_plain_dataclass(kind: Any) -> bool:
    return (
        is_generated(kind)
        and sets_plainly(kind)
        and all(field.init for field in dataclasses.fields(kind))
        and not any(isinstance(it, dataclasses.InitVar) for it in _hints(kind).values())
    )


def _is_plain_attrs(kind: Any) -> bool:
    return (
        is_generated(kind)
        and not hasattr(kind, "__attrs_pre_init__")
        and all(_is_plain_attribute(attribute) for attribute in kind.__attrs_attrs__)
    )


def _is_plain_attribute(attribute: Any) -> bool:
    takes_self = getattr(attribute.default, "takes_self", False)
    is_renamed = attribute.alias != attribute.name
    return attribute.init and attribute.converter is None and not is_renamed and not takes_self


def is_generated(kind: Any) -> bool:
    """Whether its ``__init__`` is the one that ``dataclasses`` or ``attrs`` makes."""
    code = getattr(kind.__init__, "__code__", None)
    of_attrs = getattr(code, "co_filename", "").startswith("<attrs generated")
    return of_attrs or _code_name(kind.__init__).startswith("__create_fn__.")


def _code_name(function: Any) -> str:
    return getattr(getattr(function, "__code__", None), "co_qualname", "")


def sets_plainly(kind: Any) -> bool:
    """Whether nothing of the class's own runs when an instance is made and its fields are set."""
    static = (
        inspect.getattr_static(kind, name, None) for name in _field_names(kind, sort_of(kind))
    )
    return (
        kind.__new__ is object.__new__
        and not inspect.isabstract(kind)
        and type(kind).__call__ is type.__call__
        and _has_plain_setattr(kind)
        and not any(
            hasattr(it, "__set__") and not isinstance(it, types.MemberDescriptorType)
            for it in static
        )
    )


def _has_plain_setattr(kind: Any) -> bool:
    """Whether ``__setattr__`` is that of objects, of frozen dataclasses, or of attrs, whose
    constructors do not call it."""
    if kind.__setattr__ is object.__setattr__ or sort_of(kind) == "attrs":
        return True
    return _code_name(kind.__setattr__).startswith("__create_fn__.")


def constructor_of(annotation: Any) -> Constructor:
    """Describes the constructor of a class.

    Raises:
        UnsupportedType: It takes arguments that JSON cannot name.
    """
    kind = typing.get_origin(annotation) or annotation
    hints = hints_of(annotation)
    sort = sort_of(kind)
    if sort == "struct":
        return _struct(kind, hints)
    if sort == "typeddict":
        required = required_keys(kind)
        arguments = [Argument(name, name, it, name in required) for name, it in hints.items()]
        return Constructor(dict, arguments)
    if inspect.isabstract(kind):
        raise UnsupportedType(type_name(kind), "it is abstract")
    return _called(kind, hints, sort)


def _struct(kind: Any, hints: dict[str, Any]) -> Constructor:
    import msgspec

    arguments = []
    for field in msgspec.structs.fields(kind):
        default = ABSENT if field.default is msgspec.NODEFAULT else field.default
        factory = None if field.default_factory is msgspec.NODEFAULT else field.default_factory
        made = Argument(field.name, field.encode_name, hints[field.name], field.required)
        arguments.append(dataclasses.replace(made, default=default, factory=factory))
    config = kind.__struct_config__
    options = {"array_like": config.array_like}
    options |= {"forbid_unknown_fields": config.forbid_unknown_fields}
    if config.tag is not None:
        options |= {"tag": config.tag, "tag_field": config.tag_field}
    refused: frozenset[str] = getattr(
        kind, "__ucall_refused__", frozenset()
    )  # Those of the class it stands for.
    return Constructor(kind, arguments, refused, options=options)


def _called(kind: Any, hints: dict[str, Any], sort: Sort | None) -> Constructor:
    own = {} if _takes_its_fields(kind, sort) else _own_hints(kind, sort)
    aliases = {it.alias: it for it in kind.__attrs_attrs__} if sort == "attrs" else {}
    arguments, by_position = [], 0
    for parameter in inspect.signature(kind).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            reason = f"its constructor takes {str(parameter).partition(':')[0]}"
            raise UnsupportedType(type_name(kind), reason)
        by_position += parameter.kind is parameter.POSITIONAL_ONLY
        attribute = aliases.get(parameter.name)
        named = parameter.name if attribute is None else attribute.name
        hint = own.get(parameter.name, hints.get(named, Any))
        is_required = parameter.default is ABSENT
        default, factory = _default(parameter.default, kind, named)
        made = Argument(parameter.name, parameter.name, hint, is_required, default, factory)
        arguments.append(made)
    taken = {argument.name for argument in arguments}
    by_name = {it.name: alias for alias, it in aliases.items()}
    refused = frozenset(name for name in hints if by_name.get(name, name) not in taken)
    options = {"array_like": True} if sort == "namedtuple" else {}
    return Constructor(kind, arguments, refused, by_position, options)


def _takes_its_fields(kind: Any, sort: Sort | None) -> bool:
    """Whether the arguments have the annotations of the fields."""
    if sort == "namedtuple":
        return _code_name(kind.__new__) == "<lambda>" and kind.__init__ is object.__init__
    return sort == "dataclass" and is_generated(kind)


def _own_hints(kind: Any, sort: Sort | None) -> dict[str, Any]:
    """The annotations of the parameters of a constructor that differ from those of the fields."""
    if sort == "attrs" and is_generated(kind):
        converted = [it.alias for it in kind.__attrs_attrs__ if it.converter is not None]
        return {name: _of_converter(kind, name) for name in converted}
    function = kind.__init__ if kind.__init__ is not object.__init__ else kind.__new__
    try:
        return typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError, AttributeError) as error:
        raise UnsupportedType(f"{type_name(kind)}.__init__", str(error)) from None


def _of_converter(kind: Any, name: str) -> Any:
    """The annotation of what a converter takes, if it has one that can be evaluated."""
    raw = {name: kind.__init__.__annotations__.get(name, Any)}
    holder = types.SimpleNamespace(__annotations__=raw)
    known = vars(sys.modules[kind.__module__])
    try:
        return typing.get_type_hints(holder, known, include_extras=True)[name]
    except (NameError, TypeError):
        return Any


def _default(default: Any, kind: Any, name: str) -> tuple[Any, Callable[[], Any] | None]:
    """The default of an argument, or what makes it."""
    field = getattr(kind, "__dataclass_fields__", {}).get(name)
    if field is not None and field.default_factory is not dataclasses.MISSING:
        return ABSENT, field.default_factory
    is_marker = type(default).__module__ in ("attr._make", "attr")
    return (ABSENT if is_marker else default), None
