"""The description of a server, and the OpenRPC document of it: https://spec.open-rpc.org."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from ucall.schema.dialects import draft_07
from ucall.schema.types import Schema

__all__ = ["VERSION", "Description", "Error", "Method", "Parameter", "Passing"]

#: The version of the specification.
VERSION = "1.4.1"

Json = dict[str, Any]


#: How params may be passed: OpenRPC's ``paramStructure``.
Passing = Literal["either", "by-name", "by-position"]


@dataclass(frozen=True)
class Parameter:
    """A parameter of a method.

    Args:
        name: Its name.
        schema: Its JSON Schema of 2020-12, which may refer to `Description.components`.
        is_required: Whether it has no default.
        description: Its text in the docstring; may be empty.
        takes_rest: ``"positional"`` for ``*args``, ``"named"`` for ``**kwargs``, whose schema is
            that of the list or object of all further params.
    """

    name: str
    schema: Schema
    is_required: bool = True
    description: str = ""
    takes_rest: Literal["positional", "named"] | None = None


@dataclass(frozen=True)
class Error:
    """An error that a method declares in its docstring."""

    code: int
    message: str


@dataclass(frozen=True)
class Method:
    """A method.

    Args:
        name: Its name.
        params: Its parameters; ``None`` for a builtin function, which has no signature.
        result: The JSON Schema of its result; of the list of its items, if it is a stream.
        item: The JSON Schema of an item; ``None`` if it is no stream.
        summary: The first line of its docstring.
        description: The rest of its docstring.
        result_description: What the docstring says of the result.
        errors: The errors that it declares.
        is_deprecated: Whether it is.
        passing: How its params may be passed.
        is_idempotent: Whether a call may run twice.
        returned: The JSON Schema of what a generator returns at the end, if its annotation has it.
        runs: How it runs, in words; empty for a plain function on the server's thread.
        needs_auth: Whether callers are authenticated; ``None`` on a server without ``auth``.
        scopes: What their tokens must allow.
    """

    name: str
    params: list[Parameter] | None
    result: Schema
    item: Schema | None = None
    summary: str = ""
    description: str = ""
    result_description: str = ""
    errors: list[Error] = field(default_factory=list)
    is_deprecated: bool = False
    passing: Passing = "either"
    is_idempotent: bool = False
    returned: Schema | None = None
    runs: str = ""
    needs_auth: bool | None = None
    scopes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Description:
    """The methods of a server, in the order in which they were added."""

    title: str
    version: str
    description: str
    methods: list[Method]
    components: dict[str, Schema]

    def openrpc(self) -> dict[str, Any]:
        """The OpenRPC document: https://spec.open-rpc.org."""
        return _document(self)


def _document(description: Description) -> Json:
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
