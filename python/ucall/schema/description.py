"""Describes each function of a server, from its signature, annotations and docstring."""

from __future__ import annotations

import base64
import functools
import inspect
import json
import re
import typing
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ucall._core import Context
from ucall._functions import results, signatures
from ucall._routes.response import HttpResponse
from ucall.errors import RPCError
from ucall.schema.binary import FILE
from ucall.schema.docstrings import Docs, read_docs
from ucall.schema.methods import Error, Method, Parameter, Passing, Route
from ucall.schema.openrpc import Description
from ucall.schema.types import Schema, Schemas
from ucall.types.aliases import resolve_alias

if TYPE_CHECKING:
    from ucall._functions.methods import Methods, NativeMethod, Served, ServedRoute
    from ucall.types.registry import TypeRegistry

__all__ = ["describe_by_name", "describe_functions", "is_passed_by_name"]

_ERROR_CODE = re.compile(r"(-?\d+)[\s,:.]*(.*)", re.DOTALL)


def describe_functions(methods: Methods, title: str, version: str, description: str) -> Description:
    """Describes functions as those of a server with this title, version and description."""
    schemas = Schemas(methods.types)
    described = [
        replace(_method(name, served, schemas), **_access(served, methods.has_auth))
        for name, served in methods.served.items()
    ]
    natives = map(_native_method, methods.natives.values())
    described += [replace(it, needs_auth=methods.has_auth or None) for it in natives]
    routes = [_route(*key, route, schemas) for key, route in methods.routes.items()]
    return Description(
        title,
        version,
        description,
        described,
        schemas.components,
        routes,
        methods.base,
        methods.challenge,
    )


def _route(method: str, path: str, route: ServedRoute, schemas: Schemas) -> Route:
    function = route.function
    docs = read_docs(function)
    try:
        name = signatures.name_of(function)
    except TypeError:  # Routes need no name.
        name = "route"
    try:
        hints = signatures.evaluate_annotations(function, name)
    except TypeError:  # Routes need no annotations that can be evaluated.
        hints = {}
    media_type, result = _response(results.annotation_of(function, hints), schemas)
    return Route(
        method,
        path,
        name,
        route.needs_auth,
        media_type,
        result,
        docs.summary,
        docs.description,
        docs.result,
        docs.is_deprecated or hasattr(function, "__deprecated__"),
    )


def _response(annotation: Any, schemas: Schemas) -> tuple[str | None, Schema]:
    """The media type and the schema of what a route returns, as `ucall.HttpResponse` sends it."""
    annotation = resolve_alias(annotation)
    if annotation is str:
        return "text/plain", {"type": "string"}
    if annotation in (bytes, bytearray):
        return "application/octet-stream", FILE
    origin = typing.get_origin(annotation) or annotation
    is_iterated = isinstance(origin, type) and issubclass(origin, (Iterator, AsyncIterator))
    if annotation in (Any, None) or origin is HttpResponse or is_iterated:
        return None, {}
    return "application/json", schemas.of(annotation, "result")


def _access(served: Served, has_auth: bool) -> dict[str, Any]:
    """Who may call a function."""
    if isinstance(served.auth, str):
        return {"needs_auth": True, "challenge": served.auth}
    return {"needs_auth": served.auth is None if has_auth else None}


def describe_by_name(name: str, served: Served, schemas: Schemas) -> Method:
    """Describes a function with those of its params that can be passed by name."""
    return _method(name, served, schemas, "by-name")


def is_passed_by_name(served: Served) -> bool:
    """Whether all params that a call needs can be passed by name."""
    parameters = _parameters(served)
    return parameters is not None and not any(
        it.kind is it.POSITIONAL_ONLY and it.default is it.empty for it in parameters
    )


def _method(name: str, served: Served, schemas: Schemas, passing: Passing | None = None) -> Method:
    docs = read_docs(served.function)
    parameters = _parameters(served)
    passing = passing or _passing(parameters)
    params = (
        None
        if parameters is None
        else [
            _parameter(
                it,
                schemas.of(it.annotation, "param"),
                docs.params.get(it.name, ""),
                schemas.registry,
            )
            for it in parameters
            if _NOT_PASSED.get(it.kind) != passing
        ]
    )
    result, item, returned = _result(served, schemas)
    return Method(
        name,
        params,
        result,
        item,
        docs.summary,
        docs.description,
        docs.result,
        _errors(served.function, docs),
        docs.is_deprecated or hasattr(served.function, "__deprecated__"),
        passing,
        served.is_idempotent,
        returned,
        served.runs,
        scopes=sorted(served.scopes),
    )


def _native_method(native: NativeMethod) -> Method:
    schema = json.loads(native.params)
    required = schema.get("required", ())
    params = [Parameter(name, it, name in required) for name, it in schema["properties"].items()]
    item = None if native.item is None else json.loads(native.item)
    result = json.loads(native.result)
    return Method(native.name, params, result, item=item, summary=native.summary)


def _parameters(served: Served) -> list[inspect.Parameter] | None:
    """Those that a caller may pass, each with the annotation of one call."""
    try:
        parameters = signatures.parameters_of(served.function, served.hints)
    except ValueError:
        return None
    if served.takes_batches:
        from ucall._functions.batches import default_of_call, item_of

        items = [(it, item_of(it.annotation)) for it in parameters]
        return [
            it.replace(annotation=item, default=default_of_call(it.annotation, it.default))
            for it, item in items
            if resolve_alias(item) is not Context
        ]
    return [it for it in parameters if resolve_alias(it.annotation) is not Context]


def _parameter(
    parameter: inspect.Parameter, schema: Schema, text: str, registry: TypeRegistry
) -> Parameter:
    if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
        rest = {"type": "array", "items": schema}
        return Parameter(parameter.name, rest, False, text, "positional")
    if parameter.kind is inspect.Parameter.VAR_KEYWORD:
        rest = {"type": "object", "additionalProperties": schema}
        return Parameter(parameter.name, rest, False, text, "named")
    if parameter.default is inspect.Parameter.empty:
        return Parameter(parameter.name, schema, True, text)
    if signatures.is_absent(parameter):
        return Parameter(parameter.name, schema, False, text)
    default = _default(parameter.default, registry)
    return Parameter(parameter.name, schema | default, False, text)


def _default(value: object, registry: TypeRegistry) -> Schema:
    """The member ``default`` of a schema; empty if the value has no JSON form."""

    def encode(part: object) -> object:
        if isinstance(part, (bytes, bytearray, memoryview)):
            return base64.b64encode(part).decode()
        if isinstance(part, (set, frozenset)):
            raise TypeError("its order differs between worker processes")
        return registry.encode(part)

    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, default=encode)
        return {"default": json.loads(text.encode())}
    except Exception:  # It has a lone surrogate, or an encoder of the program's raises any.
        return {}


#: How parameters of a kind cannot be passed.
_NOT_PASSED: dict[int, str] = {
    inspect.Parameter.POSITIONAL_ONLY: "by-name",
    inspect.Parameter.VAR_POSITIONAL: "by-name",
    inspect.Parameter.KEYWORD_ONLY: "by-position",
    inspect.Parameter.VAR_KEYWORD: "by-position",
}


def _passing(params: list[inspect.Parameter] | None) -> Passing:
    if params is None:
        return "by-position"
    required = {it.kind for it in params if it.default is inspect.Parameter.empty}
    kinds = {it.kind for it in params}
    by_position = {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL}
    by_name = {inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD}
    if inspect.Parameter.POSITIONAL_ONLY in required:
        return "by-position"
    if inspect.Parameter.KEYWORD_ONLY in required:
        return "by-name"
    if {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_KEYWORD} <= kinds:
        return "by-position"  # By name its value would be among those of **kwargs.
    if kinds & by_name and not kinds & by_position:
        return "by-name"
    return "by-position" if kinds & by_position and not kinds & by_name else "either"


def _result(served: Served, schemas: Schemas) -> tuple[Schema, Schema | None, Schema | None]:
    """The schemas of the result and, for a stream, of an item and of what it returns."""
    annotation = results.annotation_of(served.function, served.hints)
    is_stream = signatures.yields(served.function)
    returned = None
    if is_stream:
        arguments = typing.get_args(annotation)
        annotation = results.yielded(annotation)
        if len(arguments) == 3 and arguments[2] is not type(None):
            returned = schemas.of(arguments[2], "result")
    if served.takes_batches:
        annotation = results.of_call(annotation)
    schema = schemas.of(annotation, "result")
    if not is_stream:
        return schema, None, None
    return {"type": "array", "items": schema}, schema, returned


def _errors(function: Callable[..., object], docs: Docs) -> list[Error]:
    """The errors in the section "Raises": ``RPCError: 4001, no such user``, or a class of it with
    the attribute ``code``."""
    known = getattr(signatures.underlying_function(function), "__globals__", {})
    errors = []
    for name, text in docs.raises:
        found = _named(name, known)
        if not isinstance(found, type) or not issubclass(found, RPCError):
            continue
        numbered = _ERROR_CODE.fullmatch(text)
        code = getattr(found, "code", None)
        if isinstance(code, int):
            errors.append(Error(code, text or found.__name__))
        elif numbered:
            errors.append(Error(int(numbered[1]), numbered[2].strip() or found.__name__))
    return errors


def _named(path: str, known: dict[str, Any]) -> object:
    first, *others = path.split(".")
    return functools.reduce(lambda at, name: getattr(at, name, None), others, known.get(first))
