"""Writes the types of a server's methods for `ucall.js`, as a TypeScript declaration file.

What a server says becomes only string literals, comments and names that are made safe here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from ucall._openrpc import Document, Method, Param, Schema, Subschema, branches
from ucall._stub.names import Identifiers, check_length, pascal

__all__ = ["typescript_declarations"]

_PLAIN = {
    "integer": "number",
    "number": "number",
    "boolean": "boolean",
    "string": "string",
    "null": "null",
}
_RESERVED = (
    *("any", "bigint", "boolean", "never", "null", "number", "object", "string", "symbol"),
    *("undefined", "unknown", "void", "Array", "Base64", "Binary", "CallOptions", "Client"),
    *("Methods", "ParamsOf", "Record", "Reply", "Stream", "Streams", "TypedClient", "Omit"),
    "Partial",
)
#: Words that label no element of a tuple.
_KEYWORDS = (
    *("break", "case", "catch", "class", "const", "continue", "debugger", "default", "delete"),
    *("do", "else", "enum", "export", "extends", "false", "finally", "for", "function", "if"),
    *("import", "in", "instanceof", "new", "null", "return", "super", "switch", "this", "throw"),
    *("true", "try", "typeof", "var", "void", "while", "with"),
)
_DEPTH_MAX = 16

_CLIENT = """\
/** The params of a method, which may be left out if none is required. */
type ParamsOf<P> = [] extends P
  ? [params?: P, options?: CallOptions]
  : [params: P, options?: CallOptions];

/** The client of `ucall.js` with these types: `new Client(url) as TypedClient`. */
export type TypedClient = Omit<Client, "call" | "stream"> & {
  call<M extends keyof Methods>(
    method: M,
    ...rest: ParamsOf<Methods[M]["params"]>
  ): Reply<Methods[M]["result"]>;
  stream<M extends keyof Streams>(
    method: M,
    ...rest: ParamsOf<Streams[M]["params"]>
  ): Stream<Streams[M]["item"], Streams[M]["returned"]>;
};
"""


def typescript_declarations(document: Document) -> str:
    """A declaration file with the types ``Methods``, ``Streams`` and ``TypedClient``.

    Raises:
        DescriptionError: The description has an invalid part, or would make too long a file.
    """
    types = _Types(document)
    title = document.title or "a server"
    methods = [document.methods[name] for name in sorted(document.methods)]
    streams = [method for method in methods if method.item is not None]
    sections = [
        "\n".join(_comment(f"The types of {title}, written by `ucall stub --typescript`.", "")),
        'import type { Binary, CallOptions, Client, Reply, Stream } from "./ucall.js";',
        "/** Bytes in base64: a file, a `.npy` array, an image. */\nexport type Base64 = string;",
        *types.components(),
        _interface("Methods", "The params and results of methods.", types, methods),
        _interface("Streams", "The params, items and returned values of streams.", types, streams),
        _CLIENT,
    ]
    declarations = "\n\n".join(sections)
    check_length(declarations)
    return declarations


def _interface(name: str, about: str, types: _Types, methods: list[Method]) -> str:
    is_streams = name == "Streams"
    lines = [f"/** {about} */", f"export interface {name} {{"]
    for method in methods:
        lines += _comment(_about(method), "  ")
        lines.append(f"  {json.dumps(method.name)}: {{")
        lines.append(f"    params: {types.params(method)};")
        value = method.item if is_streams and method.item is not None else method.result
        lines.append(f"    {'item' if is_streams else 'result'}: {types.of(value)};")
        if is_streams:
            lines.append(f"    returned: {types.of(method.returned or Schema())};")
        lines.append("  };")
    return "\n".join([*lines, "}"])


class _Types:
    def __init__(self, document: Document) -> None:
        self._document = document
        self._binary = "Base64"
        identifiers = Identifiers((*_KEYWORDS, *_RESERVED))
        self._names = {
            name: identifiers.add(pascal(name) or name) for name in sorted(document.components)
        }

    def components(self) -> Iterator[str]:
        """The declarations of the schemas that others refer to."""
        for name, identifier in self._names.items():
            schema = self._document.components[name]
            comment = _comment(self._document.resolve(schema).description, "")
            yield "\n".join([*comment, f"export type {identifier} = {self.of(schema)};"])

    def params(self, method: Method) -> str:
        """The params of a method, by name or by position."""
        method = method.as_called
        required = [param.is_required for param in method.params]
        # TypeScript allows no required element after an optional one.
        has_order = required == sorted(required, reverse=True)
        # What a schema of the document names is both a param and a result, so it stays base64.
        self._binary = "Base64 | Binary"
        try:
            if method.is_by_position and has_order:
                return self._by_position(method)
            if method.structure == "by-name" or not has_order:
                return self._by_name(method)
            return f"{self._by_name(method)} | {self._by_position(method)}"
        finally:
            self._binary = "Base64"

    def _by_position(self, method: Method) -> str:
        names = Identifiers(_KEYWORDS)
        elements = [
            f"{names.add(it.name)}{_mark(it)}: {self.of(it.schema)}" for it in method.params
        ]
        rest = method.rest("positional")
        if rest is not None:
            elements.append(f"...{names.add(rest.name)}: Array<{self.of(rest.schema)}>")
        return f"[{', '.join(elements)}]"

    def _by_name(self, method: Method) -> str:
        members = [f"{_key(it.name)}{_mark(it)}: {self.of(it.schema)}" for it in method.params]
        rest = method.rest("named")
        if rest is not None:  # Its type must include those of the other members.
            kind = "unknown" if members else self.of(rest.schema)
            members.append(f"[name: string]: {kind}")
        return f"{{ {'; '.join(members)} }}" if members else "Record<string, never>"

    def of(self, schema: Subschema | Schema, within: tuple[str, ...] = ()) -> str:
        """The type of a schema's values. `within` are the references of the schemas around it, or
        empty texts."""
        if isinstance(schema, Subschema) and schema.component in self._names:
            return self._names[schema.component]
        reference = schema.reference if isinstance(schema, Subschema) else ""
        resolved = self._document.resolve(schema)
        if (reference and reference in within) or len(within) > _DEPTH_MAX:
            return "unknown"
        within = (*within, reference)
        if resolved.choices:
            return " | ".join(json.dumps(value) for value in resolved.choices)
        if parts := branches(resolved):
            return " | ".join(dict.fromkeys(self.of(part, within) for part in parts))
        if resolved.binary:
            return self._binary
        kind = next(iter(resolved.types), "")
        if kind == "array":
            return self._array(resolved, within)
        if kind == "object" or resolved.properties:
            return self._object(resolved, within)
        return _PLAIN.get(kind, "unknown")

    def _array(self, schema: Schema, within: tuple[str, ...]) -> str:
        items = schema.prefix_items
        if items is None:
            return f"Array<{self.of(schema.items or Schema(), within)}>"
        least = schema.bounds.get("minItems", len(items))
        marks = ["" if position < least else "?" for position in range(len(items))]
        elements = [
            f"({self.of(item, within)}){mark}" for item, mark in zip(items, marks, strict=True)
        ]
        return f"[{', '.join(elements)}]"

    def _object(self, schema: Schema, within: tuple[str, ...]) -> str:
        if schema.properties:
            members = [
                f"{_key(name)}{'' if name in schema.required else '?'}: {self.of(member, within)}"
                for name, member in schema.properties.items()
            ]
            return f"{{ {'; '.join(members)} }}"
        inner = "unknown" if schema.others is None else self.of(schema.others, within)
        # A Record may not refer to itself.
        return f"{{ [name: string]: {inner} }}"


def _key(name: str) -> str:
    """A name of a member, quoted if it must be."""
    return name if re.fullmatch(r"[A-Za-z_$][A-Za-z0-9_$]*", name) else json.dumps(name)


def _mark(param: Param) -> str:
    return "" if param.is_required else "?"


def _about(method: Method) -> str:
    params = [
        f"@param {param.name} {' '.join(param.description.split())}"
        for param in method.params
        if param.description
    ]
    text = method.description or method.summary
    return "\n".join([text, *params, *["@deprecated"] * method.is_deprecated]).strip()


def _comment(text: str, indent: str) -> list[str]:
    """A comment of documentation; nothing without a text."""
    text = "".join(it if it.isprintable() or it == "\n" else " " for it in text.strip())
    lines = re.sub(r"\*/", "*\\/", text).split("\n")
    if not text:
        return []
    if len(lines) == 1:
        return [f"{indent}/** {lines[0]} */"]
    return [f"{indent}/**", *(f"{indent} * {line}".rstrip() for line in lines), f"{indent} */"]
