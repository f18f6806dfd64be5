"""Writes descriptions as OpenRPC documents: https://spec.open-rpc.org."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ucall.schema.dialects import draft_07

if TYPE_CHECKING:
    from ucall.schema.description import Description, Error, Method, Parameter

__all__ = ["VERSION", "document"]

#: The version of the specification: the newest that its meta-schema knows.
VERSION = "1.3.2"

Json = dict[str, Any]


def document(description: Description) -> Json:
    """The document of a server."""
    info = {"title": description.title, "version": description.version}
    schemas = {name: draft_07(it) for name, it in description.components.items()}
    return {
        "openrpc": VERSION,
        "info": info | _given("description", description.description),
        "methods": [_method(method) for method in description.methods],
        "components": {"schemas": schemas},
    }


def _method(method: Method) -> Json:
    result = {"name": "result", "schema": draft_07(method.result)}
    made: Json = {
        "name": method.name,
        **_given("summary", method.summary),
        **_given("description", method.description),
        "paramStructure": method.passing,
        "params": [_param(param) for param in method.params or ()],
        "result": result | _given("description", method.result_description),
        **_given("errors", [_error(error) for error in method.errors]),
        **_given("deprecated", method.is_deprecated),
        **_given("x-idempotent", method.is_idempotent),
    }
    if method.params is None:
        made["x-params-unknown"] = True
    if method.item is not None:
        made |= {"x-stream": True, "x-item": draft_07(method.item)}
    if method.returned is not None:
        made["x-returned"] = draft_07(method.returned)
    return made


def _param(param: Parameter) -> Json:
    return {
        "name": param.name,
        **_given("description", param.description),
        "required": param.is_required,
        "schema": draft_07(param.schema),
        **_given("x-rest", param.takes_rest),
    }


def _error(error: Error) -> Json:
    return {"code": error.code, "message": error.message}


def _given(name: str, value: object) -> Json:
    """The member, unless it is empty."""
    return {name: value} if value else {}
