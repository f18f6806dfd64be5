"""The OpenAPI document of a server: https://spec.openapis.org/oas/v3.1.1.

It has the routes of the program, and each function at ``POST /name`` (docs/bodies.md). Its schemas
are those of the OpenRPC document in JSON Schema 2020-12, but for arrays in results, which
``POST /name`` answers as nested lists.
"""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ucall.schema.binary import FILE
from ucall.schema.dialects import PREFIX, rewritten, with_new_references

if TYPE_CHECKING:
    from ucall.schema.methods import Error, Method, Parameter, Route
    from ucall.schema.types import Schema

__all__ = ["VERSION", "document"]

#: The version of the specification.
VERSION = "3.1.1"

Json = dict[str, Any]

_PARAM = re.compile(r"\{(\w+)\}")
_ERROR_REF: Json = {"$ref": f"{PREFIX}Error"}
_ERROR_SCHEMA: Json = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {"code": {"type": "integer"}, "message": {"type": "string"}, "data": {}},
            "required": ["code", "message"],
        }
    },
    "required": ["error"],
}
#: The media types of a file, by what the base64 of a schema holds.
_MEDIA_TYPES = {
    "array": "application/x-npy",
    "image": "image/*",
    "bytes": "application/octet-stream",
}
#: The body of a route, which reads it itself. Generators of clients leave out what has no schema.
_ANY_BODY: Json = {"application/octet-stream": {"schema": FILE}, "*/*": {}}
#: The codes of errors that are a status; others are 500, also 401: a function asks for no key.
_STATUSES = {400, 403, 404, 406, 409, 410, 413, 415, 422, 429, 502, 503, 504}


def document(
    info: Json,
    methods: list[Method],
    routes: list[Route],
    components: dict[str, Schema],
    base: str,
    challenge: str | None,
) -> Json:
    """The document of a server.

    Args:
        info: Its title, version and description.
        components: The schemas of classes, to which the others refer.
        base: What the paths of functions begin with; empty for ``/name``.
        challenge: The ``WWW-Authenticate`` of a server with ``auth``.
    """
    names = _component_names(components)
    schemas = {
        names[PREFIX + name].removeprefix(PREFIX): _renamed(rewritten(it, _as_either), names)
        for name, it in components.items()
    }
    methods = [
        replace(
            it,
            params=it.params and [replace(p, schema=_renamed(p.schema, names)) for p in it.params],
            result=_renamed(it.result, names),
        )
        for it in methods
    ]
    routes = [replace(it, result=_renamed(it.result, names)) for it in routes]
    access = _Access(challenge, methods)
    return {
        "openapi": VERSION,
        "info": info,
        "paths": _paths(methods, routes, base, access),
        "components": {
            "schemas": schemas | {"Error": _ERROR_SCHEMA},
            **_given("securitySchemes", access.schemes()),
        },
        **_given("security", access.of_server()),
    }


def _renamed(schema: Schema, names: dict[str, str]) -> Schema:
    """A schema of the program with the names of components in this document."""
    renamed: Schema = with_new_references(schema, names)
    return renamed


def _paths(methods: list[Method], routes: list[Route], base: str, access: _Access) -> Json:
    """The operations by path and method of HTTP. Their ids differ."""
    paths: dict[str, Json] = {}
    ids: set[str] = set()

    def add(path: str, verb: str, name: str, operation: Json) -> None:
        unique = _unused(name, ids)
        ids.add(unique)
        paths.setdefault(path, {})[verb] = {"operationId": unique, **operation}

    for method in methods:
        path = f"{base}/{urllib.parse.quote(method.name, safe='')}"
        add(path, "post", method.name, _function(method, access))
    shapes = {_shape(it.path) for it in routes}
    # In place of the function of the same path, as the server has it.
    for route in routes:
        path = _templated(route.path, shapes)
        add(path, route.method.lower(), route.name, _route(route, path, access))
    return paths


def _unused(name: str, used: Container[str]) -> str:
    """The name, with a number if it is used."""
    unused, number = name, 1
    while unused in used:
        number += 1
        unused = f"{name}_{number}"
    return unused


def _component_names(components: Mapping[str, Schema]) -> dict[str, str]:
    """The references to components by those of the server. ``Error`` is that of a response."""
    names = {PREFIX + name: PREFIX + name for name in components}
    if "Error" in components:
        names[f"{PREFIX}Error"] = PREFIX + _unused("Error", components)
    return names


class _Access:
    """How callers identify themselves: to the server, and to functions with their own ``auth``."""

    def __init__(self, challenge: str | None, methods: list[Method]) -> None:
        self._challenge = challenge
        #: The names of schemes by the challenges.
        self._names: dict[str, str] = {}
        for it in (challenge, *(method.challenge for method in methods)):
            if it is not None and it not in self._names:
                self._names[it] = _unused("caller", self._names.values())

    def schemes(self) -> Json:
        return {name: _security_scheme(it) for it, name in self._names.items()}

    def of_server(self) -> list[Json]:
        return [] if self._challenge is None else [{self._names[self._challenge]: []}]

    def of(self, needs_auth: bool | None, own: str | None, scopes: Iterable[str]) -> Json:
        """The ``security`` of an operation, if it differs from the server's."""
        challenge = self._challenge if own is None else own
        if challenge is None:
            return {}
        if not needs_auth:
            return {"security": []}
        if challenge == self._challenge and not scopes:
            return {}
        return {"security": [{self._names[challenge]: sorted(scopes)}]}


def _security_scheme(challenge: str) -> Json:
    """How callers identify themselves, by the ``WWW-Authenticate`` that they get."""
    if found := re.fullmatch(r'ApiKey header="([^"]+)"', challenge):
        return {"type": "apiKey", "in": "header", "name": found[1]}
    return {"type": "http", "scheme": challenge.partition(" ")[0].lower()}


def _function(method: Method, access: _Access) -> Json:
    files = [it for it in method.params or () if _media_type(it.schema)]
    body, query = _body(method, files)
    return {
        "tags": ["functions"],
        **_given("summary", method.summary),
        **_given("description", method.description),
        **_given("deprecated", method.is_deprecated),
        **_given("parameters", query),
        **_given("requestBody", body),
        "responses": dict(_responses(method)),
        **access.of(method.needs_auth, method.challenge, method.scopes),
    }


def _body(method: Method, files: list[Parameter]) -> tuple[Json, list[Json]]:
    """The body of a request, and the params that may be in the query instead."""
    if method.params == []:
        return {}, []
    content: Json = {"application/json": {"schema": _params_schema(method)}}
    params = method.params or []
    query: list[Json] = []
    if files and method.passing != "by-position":
        form = _params_schema(method)
        form["properties"] |= {it.name: _as_file(it.schema) for it in files}
        content["multipart/form-data"] = {"schema": form}
        if files[0] is params[0]:
            content[_media_type(params[0].schema)] = {"schema": _as_file(params[0].schema)}
            query = [_query_param(it) for it in params[1:] if it not in files]
    is_required = any(it.is_required for it in params)
    return {"content": content, "required": is_required}, query


def _query_param(param: Parameter) -> Json:
    """A param beside a file. Generated clients would send a default beside a form."""
    schema = {name: it for name, it in param.schema.items() if name != "default"}
    return {
        "name": param.name,
        "in": "query",
        **_given("description", param.description),
        "schema": schema,
    }


def _as_file(schema: Json) -> Json:
    return FILE | {"contentMediaType": _media_type(schema)}


def _params_schema(method: Method) -> Json:
    """The schema of all params: an object, or a list of those that are passed by position only."""
    if method.params is None:
        return {"type": "array"}
    named = [it for it in method.params if it.takes_rest is None]
    required = [it.name for it in named if it.is_required]
    rest = {it.takes_rest: it.schema for it in method.params}
    if method.passing == "by-position":
        made: Json = {"type": "array", "minItems": len(required)}
        made |= _given("prefixItems", [_described(it) for it in named])
        return made | {"items": rest["positional"]["items"] if "positional" in rest else False}
    return {
        "type": "object",
        "properties": {it.name: _described(it) for it in named},
        **_given("required", required),
        "additionalProperties": rest["named"]["additionalProperties"] if "named" in rest else False,
    }


def _described(param: Parameter) -> Json:
    return param.schema | _given("description", param.description)


def _responses(method: Method) -> Iterator[tuple[str, Json]]:
    """The responses by their status."""
    content: Json = {"application/json": {"schema": rewritten(method.result, _as_lists)}}
    if media_type := _media_type(method.result):
        content[media_type] = {"schema": _as_file(method.result)}
    yield "200", {"description": method.result_description or "The result.", "content": content}
    errors: dict[int, list[Error]] = {}
    for error in method.errors:
        errors.setdefault(error.code if error.code in _STATUSES else 500, []).append(error)
    if method.params != []:
        yield "400", _error("The body cannot be read.", errors.pop(400, ()))
        yield "422", _error("Params are missing or invalid.", errors.pop(422, ()))
    if method.needs_auth:
        # An error of HTTP, whose body is text.
        yield "401", {"description": "The caller is unknown."}
    if method.scopes:
        yield "403", _error("The caller lacks a scope.", errors.pop(403, ()))
    yield "500", _error("The function failed.", errors.pop(500, ()))
    for status, declared in sorted(errors.items()):
        yield str(status), _error("", declared)
    yield "default", _error("Another error.")


def _error(text: str, declared: Iterable[Error] = ()) -> Json:
    """The response with an error, and what the function declares of it."""
    texts = [text] if text else []
    texts += [f"{it.code}: {it.message}" for it in declared]
    return {
        "description": "\n\n".join(texts),
        "content": {"application/json": {"schema": _ERROR_REF}},
    }


def _media_type(schema: Json) -> str:
    """The media type of the file that a value may be; empty if it is none."""
    return _MEDIA_TYPES.get(schema.get("x-ucall", {}).get("type"), "")


def _as_lists(schema: Json) -> Json:
    """Arrays of a result as JSON has them: as nested lists."""
    hint = schema.get("x-ucall", {})
    if hint.get("type") != "array" or "contentEncoding" not in schema:
        return schema
    lists: Json = {"x-ucall": hint}
    for _ in hint.get("shape") or ():
        inner = {name: it for name, it in lists.items() if name != "x-ucall"}
        lists = {"type": "array", "items": inner, "x-ucall": hint}
    return lists


def _as_either(schema: Json) -> Json:
    """Arrays in a class: as lists in results, and as either in params."""
    lists = _as_lists(schema)
    return schema if lists is schema else {"anyOf": [schema, lists]}


def _templated(path: str, shapes: Container[str]) -> str:
    """The path of a route; its ``*`` at the end is a param.

    To OpenAPI ``/a/{x}`` and ``/a/{rest}`` are the same path. The server asks ``/a/*`` only for
    what no route with params has, so it has a segment more here.

    Args:
        shapes: The paths of routes with params.
    """
    if not path.endswith("*"):
        return path
    stem, number = path[:-1], 0
    while _shape(f"{stem}{{rest}}") in shapes:
        number += 1
        stem += f"{{segment_{number}}}/"
    return f"{stem}{{rest}}"


def _shape(path: str) -> str:
    """The path without the names of its params, by which OpenAPI compares paths."""
    return _PARAM.sub("{}", path)


def _route(route: Route, path: str, access: _Access) -> Json:
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in _PARAM.findall(path)
    ]
    if route.path.endswith("*"):
        parameters[-1]["description"] = "The rest of the path, which may have more segments."
    response = {"description": route.result_description or "The response."}
    content = {} if route.media_type is None else {route.media_type: {"schema": route.result}}
    has_body = route.method in ("POST", "PUT", "PATCH")
    return {
        "tags": ["routes"],
        **_given("summary", route.summary),
        **_given("description", route.description),
        **_given("deprecated", route.is_deprecated),
        **_given("parameters", parameters),
        **_given("requestBody", {"content": _ANY_BODY} if has_body else {}),
        "responses": {"200" if content else "default": response | _given("content", content)},
        **access.of(route.needs_auth, None, ()),
    }


def _given(name: str, value: object) -> Json:
    """The member, unless it is empty."""
    return {name: value} if value else {}
