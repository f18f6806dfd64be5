"""Writes a typed client as a Python module.

What a server says becomes only string literals, docstrings and identifiers that are made safe here,
so that a module which was written from a foreign server does nothing but calls.
"""

from __future__ import annotations

import ast
import keyword
import re
from collections.abc import Iterator

from ucall._openrpc import DescriptionError, Document, Method, Param, Schema, Subschema, wrap
from ucall._stub.names import Identifiers, check_length, pascal
from ucall._stub.python_types import BUILTINS, RESERVED, PythonTypes, is_class, is_literal
from ucall._stub.tree import Group, tree_of

__all__ = ["python_client"]

_COLUMNS = 100
_INDENT = "    "
#: The variable of params that do not fit in one line.
_PARAMS = "_params"
#: The modules that annotations may name, in the order of their imports.
_MODULES = (
    *("builtins", "collections.abc", "datetime", "decimal", "typing", "uuid"),
    *("ucall.aio", "ucall.client", "numpy", "numpy.typing", "PIL.Image"),
)
#: Those that are imported for type checkers alone, as they need not be installed.
_OPTIONAL = ("numpy", "numpy.typing", "PIL.Image")


def python_client(document: Document) -> str:
    """A module with the classes ``Client`` and ``AsyncClient``.

    Raises:
        DescriptionError: The description has an invalid part, or would make too long a module.
    """
    root = tree_of(document)
    has_builtin = any(BUILTINS & set(name.split(".")) for name in document.methods)
    writer = _Writer(document, PythonTypes(document, "builtins." if has_builtin else ""))
    parts = [*writer.components(), *writer.clients(root)]
    body = "\n\n\n".join("\n".join(part) for part in parts)
    source = f"{_head(document, body)}\n\n\n{body}\n"
    check_length(source)
    try:
        ast.parse(source)
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise DescriptionError(f"a description without a client in Python: {error}") from None
    return source


def _head(document: Document, body: str) -> str:
    used = {
        name
        for name in _MODULES
        if f"{name}." in body and re.search(rf"\b{re.escape(name)}\.", body)
    }
    late = [f"{_INDENT}import {name}" for name in _MODULES if name in used and name in _OPTIONAL]
    plain = [name for name in _MODULES if name in used and name not in _OPTIONAL]
    if late and "typing" not in plain:
        plain.append("typing")
    title = document.title or "a server"
    return "\n".join(
        [
            *_docstring(f"A typed client of {title}, written by `ucall stub`.", ""),
            "",
            "from __future__ import annotations",
            "",
            *(f"import {name}" for name in plain if not name.startswith("ucall.")),
            *(["from typing import cast as _cast"] if "_cast(" in body else []),
            "",
            *(f"import {name}" for name in plain if name.startswith("ucall.")),
            *(["from ucall import stubs as _stubs"] if "_stubs." in body else []),
            *(["", "if typing.TYPE_CHECKING:", *late] if late else []),
        ]
    )


class _Writer:
    def __init__(self, document: Document, types: PythonTypes) -> None:
        self._document = document
        self._types = types
        self._groups = Identifiers({*RESERVED, *types.names.values()})

    def components(self) -> Iterator[list[str]]:
        """The classes and the literals that annotations refer to, then the decoders."""
        decoders = []
        first_names = {identifier: name for name, identifier in reversed(self._types.names.items())}
        for identifier, name in sorted(first_names.items()):
            schema = self._document.resolve(self._document.components[name])
            if is_class(schema):
                yield self._typed_dict(identifier, schema)
                if members := self._types.member_decoders(schema):
                    decoders.append(_decoder(identifier, members))
            elif is_literal(schema):
                yield [f"{identifier}: typing.TypeAlias = {self._types.literal(schema)}"]
        yield from decoders

    def _typed_dict(self, name: str, schema: Schema) -> list[str]:
        fields = {
            field: self._types.of_value(member)
            if field in schema.required
            else f"typing.NotRequired[{self._types.of_value(member)}]"
            for field, member in schema.properties.items()
        }
        about = _docstring(schema.description, _INDENT)
        if all(map(_is_field, fields)):
            lines = [f"{_INDENT}{field}: {kind}" for field, kind in fields.items()]
            blank = [""] if about else []
            return [f"class {name}(typing.TypedDict):", *about, *blank, *lines]
        lines = [
            f"{_INDENT * 2}{_quoted(field)}: {_quoted(kind)}," for field, kind in fields.items()
        ]
        return [
            f"{name} = typing.TypedDict(",
            f"{_INDENT}{_quoted(name)},",
            f"{_INDENT}{{",
            *lines,
            f"{_INDENT}}},",
            ")",
        ]

    def clients(self, root: Group) -> Iterator[list[str]]:
        for is_async in (False, True):
            yield from self._group(root, "AsyncClient" if is_async else "Client", is_async)

    def _group(self, group: Group, name: str, is_async: bool) -> Iterator[list[str]]:
        """The class of a group, after those of the groups within it."""
        identifiers = Identifiers({*keyword.kwlist, *RESERVED})
        held, methods = [], []
        if group.method is not None:
            methods.append(self._method(group.method, "__call__", is_async))
        for part, inner in group.groups.items():
            member = identifiers.add(part)
            if not inner.groups and inner.method is not None:
                methods.append(self._method(inner.method, member, is_async))
                continue
            kind = self._groups.add(f"_{'Async' * is_async}{pascal(inner.path) or 'Group'}")
            yield from self._group(inner, kind, is_async)
            held.append(f"{_INDENT * 2}self.{member} = {kind}(client)")
        client = f"ucall.{'aio' if is_async else 'client'}.Client"
        yield [
            f"class {name}:",
            *_docstring(_about_class(group, client), _INDENT),
            "",
            f"{_INDENT}def __init__(self, client: {client}) -> None:",
            f"{_INDENT * 2}self._client = client",
            *held,
            *(line for method in methods for line in ("", *method)),
        ]

    def _method(self, method: Method, name: str, is_async: bool) -> list[str]:
        method = method.as_called
        identifiers = Identifiers({*keyword.kwlist, *RESERVED})
        all_params = (*method.params, *method.rests)
        names = {param.name: identifiers.add(param.name) for param in all_params}
        is_stream = method.item is not None
        returned = self._types.of_value(method.result if method.item is None else method.item)
        if is_stream:
            kind = "AsyncGenerator" if is_async else "Generator"
            end = "None" if method.returned is None else self._types.of_value(method.returned)
            rest = ", None" if is_async else f", None, {end}"
            returned = f"collections.abc.{kind}[{returned}{rest}]"
        prefix = "async def" if is_async and not is_stream else "def"
        params = ["self", *self._signature(method, names)]
        return [
            *_split(f"{_INDENT}{prefix} {name}", params, f" -> {returned}:"),
            *_docstring(_about_method(method, names), _INDENT * 2),
            *self._body(method, names, is_async),
        ]

    def _signature(self, method: Method, names: dict[str, str]) -> Iterator[str]:
        has_default = is_keyword = False
        for param in method.params:
            kind = self._types.of_param(param.schema)
            if not param.is_required:
                has_default = True
                yield f"{names[param.name]}: {kind} | _stubs.Omitted = _stubs.OMITTED"
                continue
            if has_default and not is_keyword:
                is_keyword = True
                yield "*"
            yield f"{names[param.name]}: {kind}"
        if method.is_by_position and method.params and not is_keyword:
            yield "/"
        for rest in method.rests:
            stars = "*" if rest.rest == "positional" else "**"
            yield f"{stars}{names[rest.name]}: {self._types.of_param(rest.schema)}"

    def _body(self, method: Method, names: dict[str, str], is_async: bool) -> list[str]:
        line = self._statement(method, names, is_async, None)
        if len(line) <= _COLUMNS or not method.params:
            return [line]
        own = {param.name: names[param.name] for param in method.params}
        return [*_given_lines(method, own), self._statement(method, names, is_async, _PARAMS)]

    def _statement(
        self, method: Method, names: dict[str, str], is_async: bool, params: str | None
    ) -> str:
        """The statement that calls the method and returns its result."""
        indent = _INDENT * 2
        if method.item is not None:
            call = _call("self._client.stream.call", method, names, params)
            function = "_stubs.async_items" if is_async else "_stubs.items"
            decode = self._types.decoder(method.item) or "_stubs.unchanged"
            last = "" if is_async else self._returned(method)
            return f"{indent}return {function}({call}, {decode}{last})"
        call = _call("self._client.call", method, names, params)
        call = f"(await {call})" if is_async else call
        kind = self._types.of_value(method.result)
        if kind == "None":
            return f"{indent}{call}.raise_for_status()"
        return f"{indent}return {self._result(method.result, kind, call)}"

    def _returned(self, method: Method) -> str:
        """The decoder of what a generator returns, as a further argument."""
        if method.returned is None:
            return ""
        return f", {self._types.decoder(method.returned) or '_stubs.unchanged'}"

    def _result(self, schema: Subschema, kind: str, call: str) -> str:
        decode = self._types.decoder(schema)
        binary = self._document.resolve(schema).binary
        if decode is not None and binary:
            return f"{call}.{'numpy' if binary == 'array' else binary}"
        if decode is not None:
            return f"{decode}({call}.json)"
        return f"{call}.json" if kind == "typing.Any" else f"_cast({_quoted(kind)}, {call}.json)"


def _is_field(name: str) -> bool:
    """Whether a member of a TypedDict can be written as a field of the class. Python changes names
    of other letters than ASCII's and those that begin with __, and a field that is named as a type
    would hide it."""
    is_changed = not name.isascii() or name.startswith("__")
    is_hidden = name in BUILTINS or name in RESERVED
    return name.isidentifier() and not (is_changed or is_hidden or keyword.iskeyword(name))


def _decoder(name: str, members: dict[str, str]) -> list[str]:
    return [
        f"def _decode_{name}(value: typing.Any) -> {name}:",
        f"{_INDENT}decoders = {{",
        *(f"{_INDENT * 2}{_quoted(member)}: {decode}," for member, decode in members.items()),
        f"{_INDENT}}}",
        f"{_INDENT}return _cast({_quoted(name)}, _stubs.members(value, decoders))",
    ]


def _call(function: str, method: Method, names: dict[str, str], params: str | None = None) -> str:
    """A call; `params` is the variable that holds the params, if they have one."""
    words, stars = [_quoted(method.name)], "*" if method.is_by_position else "**"
    own = {param.name: names[param.name] for param in method.params}
    if params is not None:
        words.append(f"{stars}{params}")
    elif all(param.is_required and own[param.name] == param.name for param in method.params):
        words += [it if method.is_by_position else f"{it}={it}" for it in own.values()]
    else:
        start, items, end = _given(method, own)
        words.append(f"{stars}{start}{', '.join(items)}{end}")
    for rest in method.rests:
        words.append(f"{'*' if rest.rest == 'positional' else '**'}{names[rest.name]}")
    return f"{function}({', '.join(words)})"


def _given(method: Method, names: dict[str, str]) -> tuple[str, list[str], str]:
    """The expression for the params that are not omitted: its beginning, its items, its end."""
    if method.is_by_position:
        return "_stubs.given_positions([", list(names.values()), "])"
    return "_stubs.given({", [f"{_quoted(it)}: {names[it]}" for it in names], "})"


def _given_lines(method: Method, names: dict[str, str]) -> list[str]:
    """The same as a statement, with a line for each param."""
    start, items, end = _given(method, names)
    indent = _INDENT * 2
    return [
        f"{indent}{_PARAMS} = {start[:-1]}",
        f"{indent}{_INDENT}{start[-1]}",
        *(f"{indent}{_INDENT * 2}{item}," for item in items),
        f"{indent}{_INDENT}{end[0]}",
        f"{indent}{end[1]}",
    ]


def _quoted(text: str) -> str:
    """A string literal, in double quotes where it has none itself."""
    literal = repr(text)
    has_quotes = '"' in text or "'" in text
    return literal if has_quotes else f'"{literal[1:-1]}"'


def _about_class(group: Group, client: str) -> str:
    if group.path:
        return f"The methods {group.path}.*"
    return f"Calls the server's methods over a `{client}`, which its owner closes."


def _about_method(method: Method, names: dict[str, str]) -> str:
    params = (*method.params, *method.rests)
    lines = [_about_param(param, names) for param in params if param.description]
    parts = [
        method.summary,
        method.description.removeprefix(method.summary).strip(),
        "Deprecated." if method.is_deprecated else "",
        "\n".join(["Args:", *lines]) if lines else "",
        f"Returns:\n    {' '.join(method.result_description.split())}".rstrip()
        if method.result_description
        else "",
        "\n".join(
            ["Raises:", *(f"    ucall.RPCError: {code}: {text}" for code, text in method.errors)]
        )
        if method.errors
        else "",
    ]
    return "\n\n".join(part for part in parts if part)


def _about_param(param: Param, names: dict[str, str]) -> str:
    return f"    {names[param.name]}: {' '.join(param.description.split())}"


def _docstring(text: str, indent: str) -> list[str]:
    """A docstring, wrapped; nothing without a text."""
    if not text.strip():
        return []
    text = "".join(it if it.isprintable() or it == "\n" else " " for it in text)
    needs_escape = "\\" in text or '"""' in text or text.strip().endswith('"')
    lines = []
    for line in text.strip().split("\n"):
        own = line[: len(line) - len(line.lstrip())]
        lines += wrap(line, _COLUMNS - len(indent) - 6, own + "  " * bool(own)) or [""]
    if needs_escape:  # Now, as a line may have ended between a backslash and its letter.
        lines = [line.replace("\\", "\\\\").replace('"', '\\"') for line in lines]
    ending = [f'{indent}"""'] if len(lines) > 1 else []
    lines = [f"{indent}{line}".rstrip() for line in lines]
    lines[0] = f'{indent}"""{lines[0].lstrip()}'
    if not ending:
        lines[-1] += '"""'
    return [*lines, *ending]


def _split(start: str, params: list[str], end: str) -> list[str]:
    """A signature in one line, or in a line for each param."""
    line = f"{start}({', '.join(params)}){end}"
    if len(line) <= _COLUMNS:
        return [line]
    indent = start[: len(start) - len(start.lstrip())]
    lines = [f"{indent}{_INDENT}{param}," for param in params]
    return [f"{start}(", *lines, f"{indent}){end}"]
