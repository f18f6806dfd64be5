"""The description of a server, and the OpenRPC document of it: https://spec.open-rpc.org."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ucall.schema.dialects import draft_07
from ucall.schema.methods import Error, Method, Parameter, Route
from ucall.schema.types import Schema

__all__ = ["VERSION", "Description"]

#: The version of the specification.
VERSION = "1.4.1"

Json = dict[str, Any]


@dataclass(frozen=True)
class Description:
    """The methods of a server, in the order in which they were added, and its routes.

    Args:
        base: What the paths of functions begin with; empty for ``/name``.
        challenge: The ``WWW-Authenticate`` of a server with ``auth``.
    """

    title: str
    version: str
    description: str
    methods: list[Method]
    components: dict[str, Schema]
    routes: list[Route] = field(default_factory=list)
    base: str = ""
    challenge: str | None = None

    def openrpc(self) -> dict[str, Any]:
        """The OpenRPC document: https://spec.open-rpc.org."""
        return _document(self)

    def openapi(self) -> dict[str, Any]:
        """The OpenAPI document: https://spec.openapis.org/oas/v3.1.1."""
        from ucall.schema.openapi import document

        return document(
            _info(self), self.methods, self.routes, self.components, self.base, self.challenge
        )


def _document(description: Description) -> Json:
    """The document of a server."""
    schemas = {name: draft_07(it) for name, it in description.components.items()}
    return {
        "openrpc": VERSION,
        "info": _info(description),
        "methods": [_method(method) for method in description.methods],
        "components": {"schemas": schemas},
    }


def _info(description: Description) -> Json:
    info = {"title": description.title, "version": description.version}
    return info | _given("description", description.description)


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
        **_given("x-runs", method.runs),
        **_given("x-scopes", method.scopes),
    }
    if method.needs_auth is not None:
        made["x-auth"] = method.needs_auth
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
