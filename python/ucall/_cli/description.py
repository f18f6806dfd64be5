"""Prints what a server says about its methods: ``--list``, and ``--help`` after a method."""

from __future__ import annotations

import difflib
import itertools
import json
import textwrap

from ucall._cli.output import printable
from ucall._cli.type_names import COMMANDS, example_of, type_name
from ucall._openrpc import (
    DESCRIPTION_BYTES_MAX,
    NO_DEFAULT,
    DescriptionError,
    Document,
    Method,
    Param,
    wrap,
)
from ucall.client import Client
from ucall.errors import RPCError

__all__ = ["ask", "find_method", "help_text", "method_list"]

_METHOD_NOT_FOUND = -32601
_COLUMNS = 100
#: How many names of methods, and letters of a name, are compared.
_COMPARED_MAX = 1000
_TEXT_MAX = 16_384


def ask(client: Client) -> Document:
    """Asks a server for its description.

    Raises:
        ucall.RPCError: The server has no method ``rpc.discover``, or refuses the call.
        ucall.ConnectionError, ucall.TimeoutError: There is no reply.
        DescriptionError: The reply is no OpenRPC document, or too long to be read.
    """
    try:
        response = client.call("rpc.discover")
        if len(response.text) > DESCRIPTION_BYTES_MAX:
            raise DescriptionError(f"a description of more than {DESCRIPTION_BYTES_MAX} bytes")
        return Document(response.json)
    except RPCError as error:
        if error.code != _METHOD_NOT_FOUND:
            raise
        problem = "the server does not describe its methods: it has no rpc.discover"
        raise RPCError(error.code, problem) from None
    except DescriptionError:
        raise
    except ValueError as error:  # Such as a number of too many digits.
        raise DescriptionError(f"a description that Python cannot read: {error}") from None


def find_method(document: Document, name: str) -> Method:
    """The method of this name.

    Raises:
        ucall.RPCError: There is none; the message names methods with similar names.
    """
    method = document.methods.get(name)
    if method is None:
        names = itertools.islice(document.methods, _COMPARED_MAX)
        similar = difflib.get_close_matches(name[:_COMPARED_MAX], names, 3)
        hint = f"there is {', '.join(similar)}" if similar else "ucall --list lists the methods"
        raise RPCError(_METHOD_NOT_FOUND, f"the server has no method {name!r}; {hint}")
    return method


def method_list(document: Document) -> str:
    """A line for each method: its name and its summary."""
    rows = [(method.name, _summary(method)) for method in document.methods.values()]
    return _table(rows)


def _summary(method: Method) -> str:
    notes = [note for note, holds in _notes(method) if holds]
    notes += [method.runs] if method.runs else []
    notes += [f"needs {', '.join(method.scopes)}"] if method.scopes else []
    return " ".join(filter(None, (method.summary, f"({', '.join(notes)})" if notes else "")))


def _notes(method: Method) -> tuple[tuple[str, bool], ...]:
    return (
        ("stream", method.item is not None),
        ("deprecated", method.is_deprecated),
        ("public", method.is_public),
    )


def help_text(document: Document, method: Method, server_options: str) -> str:
    """The usage, params, result, errors and an example of a method."""
    params = (*method.params, *method.rests)
    option = ["--port=…"] if method.name in COMMANDS else []
    usage = " ".join(["usage: ucall", *option, method.name, *map(_usage_of, params)])
    shown = "items" if method.item is not None else "result"
    example = example_of(document, method, server_options)
    result = type_name(document, method.result if method.item is None else method.item)
    sections = [
        usage,
        _prose(method),
        _section("params", [_row(document, param) for param in params]),
        f"{shown}: {result}{_beside(method.result_description)}",
        _section("errors", [(str(code), message) for code, message in method.errors]),
        f"example:\n  {example}" if example else "",
    ]
    return "\n\n".join(_escape(section) for section in sections if section) + "\n"


def _usage_of(param: Param) -> str:
    if param.rest:
        return "[name=…]…" if param.rest == "named" else f"[{param.name}]…"
    return f"{param.name}=…" if param.is_required else f"[{param.name}=…]"


def _prose(method: Method) -> str:
    text = method.summary
    if method.description and method.description != method.summary:
        body = method.description.removeprefix(method.summary).strip()
        text = f"{method.summary}\n\n{body}".strip()
    return f"{text}\n\nDeprecated." if method.is_deprecated else text


def _row(document: Document, param: Param) -> tuple[str, str]:
    kind = type_name(document, param.schema)
    if param.rest:
        kind += f" each, all further params {'by name' if param.rest == 'named' else 'by position'}"
    elif param.is_required:
        kind += ", required"
    elif param.default is not NO_DEFAULT:
        kind += f", default {json.dumps(param.default, ensure_ascii=False)}"
    return param.name, kind + _beside(param.description)


def _beside(description: str) -> str:
    return f": {' '.join(description.split())}" if description else ""


def _section(title: str, rows: list[tuple[str, str]]) -> str:
    return f"{title}:\n{textwrap.indent(_table(rows), '  ')}".rstrip() if rows else ""


def _table(rows: list[tuple[str, str]]) -> str:
    """Two columns; the second one is wrapped."""
    width = max((len(name) for name, _ in rows), default=0) + 2
    lines = []
    for name, text in rows:
        prefix = f"{printable(name):{width}}"
        text = printable(" ".join(text[:_TEXT_MAX].split()))
        wrapped = wrap(text, max(_COLUMNS - width - 2, 40))
        lines.append(f"\n{' ' * width}".join([prefix + "".join(wrapped[:1]), *wrapped[1:]]))
    return "".join(f"{line.rstrip()}\n" for line in lines)


def _escape(text: str) -> str:
    return "\n".join(map(printable, text.split("\n")))
