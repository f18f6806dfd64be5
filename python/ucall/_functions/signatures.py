"""Describes the parameters of a function for the core.

Annotations are evaluated once, when a function is registered. An unsupported one is refused here,
with the names of the function and the parameter.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
import typing
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from ucall._core import Context
from ucall.types.aliases import resolve_alias
from ucall.types.annotations import describe_annotation
from ucall.types.classes import hints_of, required_keys, sort_of
from ucall.types.markers import check_default, has_own_default
from ucall.types.messages import Takes, UnsupportedType, type_name
from ucall.types.parts import metadata_of

if sys.version_info >= (3, 14):
    import annotationlib

if TYPE_CHECKING:
    from ucall.types.registry import TypeRegistry

Parameter: TypeAlias = tuple[str, int, Takes | list[tuple[str, Takes]], bool, object]
"""Name, kind (see `inspect.Parameter`), type, whether it has a default, and the default. Of a
``**kwargs`` that takes certain keys, the types by their names."""


def describe(
    function: Callable[..., object],
    name: str,
    hints: dict[str, object],
    registry: TypeRegistry,
    item_of: Callable[[object], object] | None = None,
) -> list[Parameter] | None:
    """Describes each parameter in order; ``None`` for a builtin without a signature.

    Args:
        function: The function.
        name: The name of its method, for messages.
        hints: Its `evaluate_annotations`.
        registry: The types besides those of JSON.
        item_of: Maps a written annotation to the one that counts.

    Raises:
        ImportError: An annotation needs a module that is not installed.
        TypeError: The function cannot be served; the message names it and the parameter.
    """
    try:
        parameters = parameters_of(function, hints)
    except ValueError:
        return None
    except UnsupportedType as unsupported:
        raise TypeError(f"{name}: {unsupported}") from None
    described = [
        _describe_parameter(parameter, registry, name, item_of) for parameter in parameters
    ]
    optional = [it for it in described if it[4] is _ABSENT]
    if not optional:
        return described
    keys: list[tuple[str, Any]] = [(named, takes) for named, _, takes, _, _ in optional]
    kind = int(inspect.Parameter.VAR_KEYWORD)
    return [*(it for it in described if it[4] is not _ABSENT), ("", kind, keys, False, None)]


_ABSENT = object()
"""The default of a key that need not be given: it is not passed."""


def parameters_of(
    function: Callable[..., object], hints: dict[str, object]
) -> list[inspect.Parameter]:
    """The parameters, with their evaluated annotations. Those that a ``**kwargs`` takes by
    ``Unpack[TypedDict]`` are keyword-only ones in its place.

    Raises:
        ValueError: It is a builtin without a signature.
        UnsupportedType: It unpacks something else, or a key that is a parameter, too.
    """
    found: list[inspect.Parameter] = []
    for parameter in inspect_signature(function).parameters.values():
        annotation = hints.get(parameter.name, parameter.annotation)
        if getattr(typing.get_origin(annotation), "__name__", "") == "Unpack":
            found += _keys_of(annotation, parameter, {it.name for it in found})
        else:
            found.append(parameter.replace(annotation=annotation))
    return found


def _keys_of(
    annotation: Any, parameter: inspect.Parameter, taken: set[str]
) -> list[inspect.Parameter]:
    (kind,) = typing.get_args(annotation)
    if sort_of(typing.get_origin(kind) or kind) != "typeddict":
        raise UnsupportedType(f"parameter {parameter.name!r}: {type_name(annotation)}")
    required = required_keys(typing.get_origin(kind) or kind)
    hints = hints_of(kind)
    for key in hints:
        if key in taken or not key.isidentifier():
            problem = f"parameter {parameter.name!r}: {type_name(annotation)}"
            reason = "is a parameter, too" if key in taken else "is no name"
            raise UnsupportedType(problem, f"its key {key!r} {reason}")
    return [
        inspect.Parameter(
            key,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if key in required else _ABSENT,
            annotation=hint,
        )
        for key, hint in hints.items()
    ]


def is_absent(parameter: inspect.Parameter) -> bool:
    """Whether it is a key that is not passed unless it is given."""
    return parameter.default is _ABSENT


def inspect_signature(function: Callable[..., object]) -> inspect.Signature:
    """The parameters. Python 3.14 evaluates annotations on access (PEP 649), and some of them refer
    to names that only type checkers import."""
    if sys.version_info >= (3, 14):
        return inspect.signature(function, annotation_format=annotationlib.Format.FORWARDREF)
    return inspect.signature(function)


def name_of(function: Callable[..., object]) -> str:
    """The default name of a function's method.

    Raises:
        TypeError: The callable has no name (a lambda, a partial, an object), or is not callable.
    """
    if not callable(function):
        raise TypeError(f"expected a function to serve, got {type(function).__name__}")
    name = getattr(function, "__name__", None)
    if not isinstance(name, str) or not name.isidentifier():
        raise TypeError(f"{function!r} has no name: give one, name='...'")
    return name


def is_redefinition(function: Callable[..., object], known: Callable[..., object]) -> bool:
    """Whether a function is a known one, or a new definition of it."""
    return _origin(function) == _origin(known)


def _origin(function: Callable[..., object]) -> tuple[object, ...]:
    """Identifies a definition: a function that is defined again has the same one."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not module or not name or "<lambda>" in name:
        return (id(function),)
    return module, name, id(getattr(function, "__self__", None))


def _check_runnable(function: Callable[..., object], name: str) -> None:
    if not callable(function):
        raise TypeError(f"{name}: {type(function).__name__} cannot be called")
    if isinstance(function, type):
        raise TypeError(f"{name}: is a class; serve a function or an object's method")


def is_async(function: Callable[..., object]) -> bool:
    """Whether a call returns a coroutine or an async generator."""
    return _kind_of(function)[0]


def yields(function: Callable[..., object]) -> bool:
    """Whether a call returns a generator, plain or async."""
    return _kind_of(function)[1]


def takes_argument(hook: Callable[..., object], what: str) -> bool:
    """Whether a hook has a parameter to fill.

    Raises:
        TypeError: It has more, or one that has to be named; the message says ``what`` one is for.
    """
    parameters = inspect.signature(hook).parameters.values()
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    to_fill = [it for it in parameters if it.default is it.empty and it.kind not in kinds]
    if len(to_fill) > 1 or any(it.kind is it.KEYWORD_ONLY for it in to_fill):
        raise TypeError(f"{hook!r}: expected no parameter, or one for {what}")
    return bool(to_fill)


def is_plain_wrapper(function: Callable[..., object]) -> bool:
    """Whether a plain function wraps one that is async or a generator, so that what it returns
    decides: the coroutine or the generator of that, or what it has made of them."""
    return _own_kind(function) == _PLAIN != _kind_of(function)


_PLAIN = (False, False)


def _kind_of(function: Callable[..., object]) -> tuple[bool, bool]:
    """Whether it is async, and whether it yields: its own kind, and that of the function that it
    wraps if it is plain itself."""
    own = _own_kind(function)
    return _kind(underlying_function(function)) if own == _PLAIN else own


def _own_kind(function: Callable[..., object]) -> tuple[bool, bool]:
    while isinstance(function, functools.partial):
        function = function.func
    kind = _kind(function)
    if kind == _PLAIN and not inspect.isroutine(function):
        return _kind(type(function).__call__)
    return kind


def _kind(function: Callable[..., object]) -> tuple[bool, bool]:
    is_async_generator = inspect.isasyncgenfunction(function)
    return (
        is_async_generator or inspect.iscoroutinefunction(function),
        is_async_generator or inspect.isgeneratorfunction(function),
    )


def underlying_function(function: Callable[..., object]) -> Callable[..., object]:
    """The function within partials, wrappers and callable objects. It has the annotations."""
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


def evaluate_annotations(function: Callable[..., object], name: str) -> dict[str, object]:
    """The annotations of the parameters and of the result. Strings are evaluated, but for that of
    the result, which may refer to names that only type checkers import.

    Raises:
        TypeError: The function cannot be served; the message names it.
    """
    _check_runnable(function, name)
    signed = _given_signature(function)
    function = underlying_function(function)
    raw = _raw_annotations(function) if signed is None else _annotations_in(signed)
    result = {"return": raw.pop("return")} if "return" in raw else {}
    known = getattr(function, "__globals__", {})
    holder = types.SimpleNamespace(__annotations__=raw)
    local = _enclosing_names(function)
    if local and isinstance(result.get("return"), str):
        result = _result_annotation(result, known, local)
    try:
        return typing.get_type_hints(holder, known, local, include_extras=True) | result
    except NameError as error:
        raise TypeError(
            f"{name}: an annotation refers to an unknown name: {error}; "
            "define or import it before the function is served, not for type checkers alone"
        ) from error
    except (AttributeError, SyntaxError, TypeError):
        return raw | result  # An invalid one is refused later, with the parameter's name.


def _result_annotation(
    result: dict[str, object], known: dict[str, object], local: dict[str, object]
) -> dict[str, object]:
    """The annotation of a result that refers to local names, which exist only now."""
    try:
        holder = types.SimpleNamespace(__annotations__=result)
        return typing.get_type_hints(holder, known, local, include_extras=True)
    except Exception:  # Results need no annotation that can be evaluated.
        return {}


def _raw_annotations(function: Callable[..., object]) -> dict[str, object]:
    """The annotations as written. Unknown names are forward references."""
    if sys.version_info >= (3, 14):
        form = annotationlib.Format.FORWARDREF
        return annotationlib.get_annotations(function, format=form)
    return dict(getattr(function, "__annotations__", None) or {})


def _given_signature(function: Callable[..., object]) -> inspect.Signature | None:
    """The ``__signature__`` that `inspect.signature` finds before it comes to a function's own."""
    while True:
        if isinstance(getattr(function, "__dict__", {}).get("__signature__"), inspect.Signature):
            return inspect_signature(function)
        if isinstance(function, functools.partial):
            function = function.func
        elif hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        else:
            return None


def _annotations_in(signature: inspect.Signature) -> dict[str, object]:
    annotations: dict[str, object] = {
        name: parameter.annotation
        for name, parameter in signature.parameters.items()
        if parameter.annotation is not inspect.Parameter.empty
    }
    if signature.return_annotation is not inspect.Signature.empty:
        annotations["return"] = signature.return_annotation
    return annotations


def _enclosing_names(function: Callable[..., object]) -> dict[str, object]:
    """The local names of the enclosing function, while that runs, and the type parameters of this
    one."""
    own = {parameter.__name__: parameter for parameter in getattr(function, "__type_params__", ())}
    enclosing, is_inside, _ = getattr(function, "__qualname__", "").rpartition(".<locals>.")
    frame = sys._getframe() if is_inside else None
    while frame is not None:
        if frame.f_code.co_qualname == enclosing:
            return frame.f_locals | own
        frame = frame.f_back
    return own


def _describe_parameter(
    parameter: inspect.Parameter,
    registry: TypeRegistry,
    name: str,
    item_of: Callable[[object], object] | None,
) -> Parameter:
    annotation = parameter.annotation
    try:
        if item_of is not None:
            annotation = item_of(annotation)
        if resolve_alias(annotation) is Context:
            return parameter.name, int(parameter.kind), "context", True, None
        _check_default(parameter, annotation)
        takes = describe_annotation(annotation, registry)
    except UnsupportedType as unsupported:
        raise TypeError(f"{name}: parameter {parameter.name!r}: {unsupported}") from None
    except ImportError as missing:
        problem = f"{name}: parameter {parameter.name!r}: {missing}"
        raise ImportError(problem, name=missing.name) from None
    has_default = parameter.default is not inspect.Parameter.empty
    return parameter.name, int(parameter.kind), takes, has_default, parameter.default


def _check_default(parameter: inspect.Parameter, annotation: object) -> None:
    """Refuses a description of a field as a default, and a default within one."""
    reason = check_default(parameter.default)
    if reason is None and any(map(has_own_default, metadata_of(resolve_alias(annotation)))):
        reason = "its default is in its metadata: write it after the annotation, = default"
    if reason is not None:
        raise UnsupportedType(type_name(annotation), reason)
