"""The OpenAPI document of a server: https://spec.openapis.org/oas/v3.1.1.

It has the routes of the program, and each function at ``POST /name`` (docs/bodies.md). Its schemas
are those of the OpenRPC document in JSON Schema 2020-12, but for arrays in results, which
``POST /name`` answers as nested lists.
"""

from __future__ import annotations

import re
import urllib.parse
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ucall.schema.dialects import PREFIX, rewritten, with_new_references

if TYPE_CHECKING:
    from ucall.schema.methods import Error, Method, Parameter, Route
    from ucall.schema.types import Schema

__all__ = ["VERSION", "document"]

#: The version of the specification.
VERSION = "3.1.1"

Json = dict[str, Any]

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
#: The codes of errors that are a status; others are 500.
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
        names[PREFIX + name].removeprefix(PREFIX): rewritten(it, _as_either)
        for name, it in components.items()
    }
    made = {
        "openapi": VERSION,
        "info": info,
        "paths": _paths(methods, routes, base, challenge),
        "components": {
            "schemas": schemas | {"Error": _ERROR_SCHEMA},
            **_given("securitySchemes", _security_schemes(challenge)),
        },
        **_given("security", [{"caller": []}] if challenge else []),
    }
    document: Json = with_new_references(made, names)
    return document


def _paths(methods: list[Method], routes: list[Route], base: str, challenge: str | None) -> Json:
    """The operations by path and method of HTTP. Their ids differ."""
    paths: dict[str, Json] = {}
    numbers = Counter[str]()

    def add(path: str, verb: str, name: str, operation: Json) -> None:
        numbers[name] += 1
        unique = name if numbers[name] == 1 else f"{name}_{numbers[name]}"
        paths.setdefault(path, {})[verb] = {"operationId": unique, **operation}

    for method in methods:
        path = f"{base}/{urllib.parse.quote(method.name, safe='')}"
        add(path, "post", method.name, _function(method, challenge))
    # In place of the function of the same path, as the server has it.
    for route in routes:
        verb = route.method.lower()
        add(_templated(route.path), verb, route.name, _route(route, challenge))
    return paths


def _component_names(components: Mapping[str, Schema]) -> dict[str, str]:
    """The references to components by those of the server. ``Error`` is that of a response."""
    names = {PREFIX + name: PREFIX + name for name in components}
    if "Error" in components:
        number = 2
        while f"Error_{number}" in components:
            number += 1
        names[f"{PREFIX}Error"] = f"{PREFIX}Error_{number}"
    return names


def _security_schemes(challenge: str | None) -> Json:
    """How callers identify themselves, by the ``WWW-Authenticate`` of the server."""
    if challenge is None:
        return {}
    if found := re.fullmatch(r'ApiKey header="([^"]+)"', challenge):
        return {"caller": {"type": "apiKey", "in": "header", "name": found[1]}}
    scheme = challenge.partition(" ")[0].lower()
    return {"caller": {"type": "http", "scheme": scheme}}


def _function(method: Method, challenge: str | None) -> Json:
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
        **_security(challenge, method.needs_auth, method.scopes),
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
            content[_media_type(params[0].schema)] = {}
            query = [_query_param(it) for it in params[1:] if it not in files]
    is_required = any(it.is_required for it in params)
    return {"content": content, "required": is_required}, query


def _query_param(param: Parameter) -> Json:
    return {
        "name": param.name,
        "in": "query",
        **_given("description", param.description),
        "schema": param.schema,
    }


def _as_file(schema: Json) -> Json:
    return {"contentMediaType": _media_type(schema)}


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
        content[media_type] = {}
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


def _security(challenge: str | None, needs_auth: bool | None, scopes: Iterable[str]) -> Json:
    """What differs from the server's."""
    if challenge is None:
        return {}
    if not needs_auth:
        return {"security": []}
    return {"security": [{"caller": sorted(scopes)}]} if scopes else {}


def _templated(path: str) -> str:
    """The path of a route; its ``*`` at the end is a param."""
    return f"{path[:-1]}{{rest}}" if path.endswith("*") else path


def _route(route: Route, challenge: str | None) -> Json:
    names = re.findall(r"\{(\w+)\}", _templated(route.path))
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in names
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
        **_given("requestBody", {"content": {"*/*": {}}} if has_body else {}),
        "responses": {"200" if content else "default": response | _given("content", content)},
        **_security(challenge, route.needs_auth, ()),
    }


def _given(name: str, value: object) -> Json:
    """The member, unless it is empty."""
    return {name: value} if value else {}
