"""The methods and routes of a server, of which its documents are made."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from ucall.schema.types import Schema

__all__ = ["Error", "Method", "Parameter", "Passing", "Route"]

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
        challenge: The ``WWW-Authenticate`` of its own ``auth``; ``None`` if it has none.
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
    challenge: str | None = None
    scopes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Route:
    """A route of the program for one method of HTTP: see `ucall.Server.http`.

    Args:
        method: The method, in capitals.
        path: As it was registered, with ``{name}`` for params or ``*`` at its end.
        name: The name of the function; ``route`` for one without, such as a lambda.
        needs_auth: Whether callers are authenticated.
        media_type: That of the response; ``None`` if the annotation of the function does not say.
        result: The JSON Schema of the response.
        summary: The first line of its docstring.
        description: The rest of its docstring.
        result_description: What the docstring says of the result.
        is_deprecated: Whether it is.
    """

    method: str
    path: str
    name: str
    needs_auth: bool
    media_type: str | None
    result: Schema
    summary: str = ""
    description: str = ""
    result_description: str = ""
    is_deprecated: bool = False
