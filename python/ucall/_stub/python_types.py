"""Writes schemas as Python's annotations, and the decoders that make their values.

A schema has two annotations. That of a param allows all that the client sends (`Sequence`, bytes,
dates); that of a value is what the decoder makes of a result (`list`). Objects with known members
are TypedDicts, which JSON's own dicts fit, so only dates, UUIDs, bytes, arrays and images need a
decoder. In a union of several types other than None nothing says which one a text is, so they stay
in JSON's types there.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterator, Sequence
from functools import cached_property

from ucall._openrpc import Document, Schema, Subschema, branches
from ucall._stub.names import Identifiers, pascal

__all__ = ["BUILTINS", "RESERVED", "PythonTypes", "is_class", "is_literal"]

#: The names of builtins that annotations use; a method may have the same name.
BUILTINS = frozenset(
    ("bool", "bytearray", "bytes", "dict", "float", "int", "list", "memoryview", "object", "str")
)

#: The names that a typed client's module has.
RESERVED = frozenset(
    (
        *("AsyncClient", "Client", "PIL", "builtins", "collections", "datetime", "decimal"),
        *("numpy", "typing", "ucall", "uuid", "self", "_cast", "_client", "_params", "_stubs"),
    )
)

_PLAIN = {"integer": "int", "number": "float", "boolean": "bool", "string": "str"}
#: The annotation and the decoder of a text in a format.
_FORMATS = {
    "date": ("datetime.date", "_stubs.date_of"),
    "date-time": ("datetime.datetime", "_stubs.datetime_of"),
    "time": ("datetime.time", "_stubs.time_of"),
    "uuid": ("uuid.UUID", "_stubs.uuid_of"),
    "decimal": ("decimal.Decimal", "_stubs.decimal_of"),
}
_DTYPES = frozenset(
    (
        *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64", "longdouble", "bool_"),
        *("complex64", "complex128", "clongdouble", "number", "integer", "signedinteger"),
        *("unsignedinteger", "inexact", "floating", "complexfloating"),
    )
)
_DEPTH_MAX = 16


class PythonTypes:
    """The types of a document. `prefix` precedes the names of builtins."""

    def __init__(self, document: Document, prefix: str) -> None:
        self._document = document
        self._prefix = prefix
        identifiers = Identifiers({*keyword.kwlist, *BUILTINS, *RESERVED})
        #: The Python names of the schemas that others refer to.
        self.names = {
            name: identifiers.add(pascal(name) or name) for name in sorted(document.components)
        }
        self._share_names()

    def _share_names(self) -> None:
        """Gives classes one name that a server describes apart, as params and as results, and whose
        members have the same annotations."""
        known: dict[tuple[str, str], str] = {}
        for component, name in self.names.items():
            base = re.sub(r"_\d+$", "", component)
            schema = self._document.resolve(self._document.components[component])
            members = schema.properties.items()
            fields = {field: self.of_value(member) for field, member in members}
            text = re.sub(rf"\b{name}\b", "self", f"{sorted(fields.items())}")
            if is_class(schema):
                self.names[component] = known.setdefault((base, text), name)

    def of_param(self, schema: Subschema) -> str:
        """The annotation of a param."""
        return self._annotation(schema, 0, is_param=True)

    def of_value(self, schema: Subschema) -> str:
        """The annotation of a decoded result, item or member."""
        return self._annotation(schema, 0)

    def decoder(self, schema: Subschema | Schema, depth: int = 0) -> str | None:
        """An expression for the function that decodes a value; None if JSON's is the value."""
        component, resolved = self._component(schema), self._simplified(schema)
        if depth > _DEPTH_MAX or is_literal(resolved):
            return None
        if component is not None and is_class(resolved):
            return f"_decode_{self.names[component]}" if component in self._decoded else None
        if resolved.binary:
            return f"_stubs.{resolved.binary}_of"
        if parts := branches(resolved):
            return self._union_decoder(parts, depth + 1)
        if resolved.types == ("string",):
            return _FORMATS.get(resolved.format, (None, None))[1]
        for inner, function in ((resolved.items, "list_of"), (resolved.others, "dict_of")):
            if inner is not None and resolved.prefix_items is None:
                decode = self.decoder(inner, depth + 1)
                return None if decode is None else f"_stubs.{function}({decode})"
        return None

    def member_decoders(self, schema: Schema) -> dict[str, str]:
        """The decoders of the members of an object that need one."""
        members = sorted(schema.properties.items())
        decoders = {name: self.decoder(member) for name, member in members}
        return {name: decode for name, decode in decoders.items() if decode is not None}

    def _union_decoder(self, parts: list[Subschema | Schema], depth: int) -> str | None:
        others = [part for part in parts if not self._is_null(part)]
        decode = self.decoder(others[0], depth) if len(others) == 1 else None
        return decode and (decode if len(parts) == 1 else f"_stubs.optional({decode})")

    @cached_property
    def _decoded(self) -> set[str]:
        """The components whose values need a decoder: those with a part that does, and those that
        contain such a component."""
        holders: dict[str, list[str]] = {}
        found: list[str] = []
        for name, component in self._document.components.items():
            for member in self._document.resolve(component).properties.values():
                for part in self._decoded_parts(member, 0):
                    if part is None:
                        found.append(name)
                    else:
                        holders.setdefault(part, []).append(name)
        decoded: set[str] = set()
        while found:
            name = found.pop()
            if name not in decoded:
                decoded.add(name)
                found += holders.get(name, ())
        return decoded

    def _decoded_parts(self, schema: Subschema | Schema, depth: int) -> Iterator[str | None]:
        """None for each part of a value that needs a decoder, and the components in it."""
        component, resolved = self._component(schema), self._simplified(schema)
        if depth > _DEPTH_MAX:
            return
        if component is not None and is_class(resolved):
            yield component
            return
        if resolved.binary or resolved.format in _FORMATS:
            yield None
            return
        parts = [part for part in branches(resolved) if not self._is_null(part)]
        if len(parts) <= 1:
            for part in (*parts, resolved.items, resolved.others):
                if part is not None:
                    yield from self._decoded_parts(part, depth + 1)

    def _annotation(
        self,
        schema: Subschema | Schema,
        depth: int,
        *,
        is_param: bool = False,
        is_raw: bool = False,
    ) -> str:
        """An annotation. A raw one is of a value that is not decoded."""
        component, resolved = self._component(schema), self._simplified(schema)
        if depth > _DEPTH_MAX:
            return "typing.Any"
        if component is not None and is_class(resolved):
            if is_raw and component in self._decoded:
                return self._builtin("dict[str, typing.Any]")
            return self.names[component]
        if is_literal(resolved):
            return self.literal(resolved) if component is None else self.names[component]
        if resolved.binary:
            return self._builtin("str") if is_raw else self._binary(resolved, is_param)
        if parts := branches(resolved):
            return self._union(parts, depth + 1, is_param, is_raw)
        kind = next(iter(resolved.types), "")
        if kind == "array":
            return self._array(resolved, depth + 1, is_param, is_raw)
        if kind == "object":
            return self._object(resolved, depth + 1, is_param, is_raw)
        if kind == "string" and not is_raw and resolved.format in _FORMATS:
            return _FORMATS[resolved.format][0]
        if kind == "null":
            return "None"
        return self._builtin(_PLAIN[kind]) if kind in _PLAIN else "typing.Any"

    def _union(
        self, parts: Sequence[Subschema | Schema], depth: int, is_param: bool, is_raw: bool
    ) -> str:
        others = [part for part in parts if not self._is_null(part)]
        is_raw = is_raw or (len(others) > 1 and not is_param)
        names = [self._annotation(part, depth, is_param=is_param, is_raw=is_raw) for part in parts]
        return "typing.Any" if "typing.Any" in names else " | ".join(dict.fromkeys(names))

    def _array(self, schema: Schema, depth: int, is_param: bool, is_raw: bool) -> str:
        inner = "typing.Any"
        if schema.prefix_items:
            inner = self._union(schema.prefix_items, depth, is_param, True)
        elif schema.prefix_items is None and schema.items is not None:
            inner = self._annotation(schema.items, depth, is_param=is_param, is_raw=is_raw)
        if is_param:
            kind = "Collection" if schema.has_unique_items else "Sequence"
            return f"collections.abc.{kind}[{inner}]"
        return f"{self._builtin('list')}[{inner}]"

    def _object(self, schema: Schema, depth: int, is_param: bool, is_raw: bool) -> str:
        inner = "typing.Any"
        if schema.others is not None:
            inner = self._annotation(schema.others, depth, is_param=is_param, is_raw=is_raw)
        kind = "collections.abc.Mapping" if is_param else self._builtin("dict")
        return f"{kind}[{self._builtin('str')}, {inner}]"

    def literal(self, schema: Schema) -> str:
        """The annotation of a schema that lists its values."""
        return f"typing.Literal[{', '.join(map(_literal, schema.choices))}]"

    def _binary(self, schema: Schema, is_param: bool) -> str:
        if schema.binary == "image":
            return "PIL.Image.Image"
        if schema.binary == "array":
            dtype = "bool_" if schema.dtype == "bool" else schema.dtype
            inner = f"numpy.{dtype}" if dtype in _DTYPES else "typing.Any"
            return f"numpy.typing.NDArray[{inner}]"
        names = ("bytes", "bytearray", "memoryview") if is_param else ("bytes",)
        return " | ".join(map(self._builtin, names))

    def _builtin(self, name: str) -> str:
        return f"{self._prefix}{name}"

    def _component(self, schema: Subschema | Schema) -> str | None:
        """The component that this schema refers to."""
        name = schema.component if isinstance(schema, Subschema) else None
        return name if name in self.names else None

    def _is_null(self, schema: Subschema | Schema) -> bool:
        return self._document.resolve(schema).types == ("null",)

    def _simplified(self, schema: Subschema | Schema) -> Schema:
        """The schema without references. Arrays may also be sent as nested lists, which is left
        out."""
        resolved = self._document.resolve(schema)
        if resolved.binary:
            return resolved
        array, nulls = None, []
        for part in resolved.parts:
            if self._is_null(part):
                nulls.append(part)
            elif array is None and self._document.resolve(part).binary == "array":
                array = part
        if array is None:
            return resolved
        return Schema(parts=(array, *nulls)) if nulls else self._document.resolve(array)


def is_class(schema: Schema) -> bool:
    """Whether a schema is an object with known members."""
    return bool(schema.properties) and schema.types in ((), ("object",))


def is_literal(schema: Schema) -> bool:
    """Whether a schema lists its values, of types that a Literal may have."""
    kinds = (str, int, bool, type(None))
    return bool(schema.choices) and all(isinstance(it, kinds) for it in schema.choices)


def _literal(value: object) -> str:
    """A value of a Literal; text in double quotes where it has none itself."""
    is_plain = isinstance(value, str) and not set("'\"") & set(value)
    return f'"{repr(value)[1:-1]}"' if is_plain else repr(value)
