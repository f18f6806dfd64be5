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
from collections.abc import Mapping
from typing import Any

from ucall._openrpc import Document, Schema, binary_type, branches, component_of, types_of
from ucall._stub.names import Identifiers, pascal

__all__ = ["BUILTINS", "RESERVED", "PythonTypes", "is_class"]

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
            fields = {field: self.of_value(member) for field, member in _members(schema).items()}
            text = re.sub(rf"\b{name}\b", "self", f"{sorted(fields.items())}")
            if is_class(schema):
                self.names[component] = known.setdefault((base, text), name)

    def of_param(self, schema: Schema) -> str:
        """The annotation of a param."""
        return self._annotation(schema, 0, is_param=True)

    def of_value(self, schema: Schema) -> str:
        """The annotation of a decoded result, item or member."""
        return self._annotation(schema, 0)

    def decoder(self, schema: Schema, depth: int = 0) -> str | None:
        """An expression for the function that decodes a value; None if JSON's is the value."""
        component = self._component(schema)
        resolved = self._simplified(schema)
        if depth > _DEPTH_MAX or self._is_literal(resolved):
            return None
        if component is not None and is_class(resolved):
            return f"_decode_{component}" if self._needs_decoder(schema) else None
        if kind := binary_type(resolved):
            return f"_stubs.{kind}_of"
        if parts := branches(resolved):
            return self._union_decoder(parts, depth + 1)
        if types_of(resolved) == ("string",):
            return _FORMATS.get(str(resolved.get("format")), (None, None))[1]
        for keyword_, function in (("items", "list_of"), ("additionalProperties", "dict_of")):
            if isinstance(inner := resolved.get(keyword_), dict):
                decode = self.decoder(inner, depth + 1)
                return None if decode is None else f"_stubs.{function}({decode})"
        return None

    def member_decoders(self, schema: Schema) -> dict[str, str]:
        """The decoders of the members of an object that need one."""
        decoders = {name: self.decoder(member) for name, member in sorted(_members(schema).items())}
        return {name: decode for name, decode in decoders.items() if decode is not None}

    def _union_decoder(self, parts: list[Schema], depth: int) -> str | None:
        others = [part for part in parts if not self._is_null(part)]
        decode = self.decoder(others[0], depth) if len(others) == 1 else None
        return decode and (decode if len(parts) == 1 else f"_stubs.optional({decode})")

    def _needs_decoder(self, schema: Schema, seen: tuple[str, ...] = ()) -> bool:
        """Whether a part of it does. `seen` names the classes on the way here."""
        component, resolved = self._component(schema), self._simplified(schema)
        if len(seen) > _DEPTH_MAX:
            return False
        if component is not None and is_class(resolved):
            inner = _members(resolved).values()
            seen_now = (*seen, component)
            return component not in seen and any(self._needs_decoder(it, seen_now) for it in inner)
        if binary_type(resolved) or resolved.get("format") in _FORMATS:
            return True
        parts = [part for part in branches(resolved) if not self._is_null(part)]
        if len(parts) > 1:
            return False
        holders = (*parts, resolved.get("items"), resolved.get("additionalProperties"))
        return any(self._needs_decoder(it, (*seen, "")) for it in holders if isinstance(it, dict))

    def _annotation(
        self, schema: Schema, depth: int, *, is_param: bool = False, is_raw: bool = False
    ) -> str:
        """An annotation. A raw one is of a value that is not decoded."""
        component, resolved = self._component(schema), self._simplified(schema)
        if depth > _DEPTH_MAX:
            return "typing.Any"
        if component is not None and is_class(resolved):
            is_decoded = is_raw and self._needs_decoder(schema)
            return self._builtin("dict[str, typing.Any]") if is_decoded else component
        if self._is_literal(resolved):
            return component or self.literal(resolved)
        if kind := binary_type(resolved):
            return self._builtin("str") if is_raw else self._binary(resolved, kind, is_param)
        if parts := branches(resolved):
            return self._union(parts, depth + 1, is_param, is_raw)
        kind = next(iter(types_of(resolved)), "")
        if kind == "array":
            return self._array(resolved, depth + 1, is_param, is_raw)
        if kind == "object":
            return self._object(resolved, depth + 1, is_param, is_raw)
        if kind == "string" and not is_raw and resolved.get("format") in _FORMATS:
            return _FORMATS[resolved["format"]][0]
        if kind == "null":
            return "None"
        return self._builtin(_PLAIN[kind]) if kind in _PLAIN else "typing.Any"

    def _union(self, parts: list[Schema], depth: int, is_param: bool, is_raw: bool) -> str:
        others = [part for part in parts if not self._is_null(part)]
        is_raw = is_raw or (len(others) > 1 and not is_param)
        names = [self._annotation(part, depth, is_param=is_param, is_raw=is_raw) for part in parts]
        return "typing.Any" if "typing.Any" in names else " | ".join(dict.fromkeys(names))

    def _array(self, schema: Schema, depth: int, is_param: bool, is_raw: bool) -> str:
        items = schema.get("prefixItems", schema.get("items", {}))
        if isinstance(items, list):
            inner = self._union(items, depth, is_param, True) if items else "typing.Any"
        else:
            inner = self._annotation(items, depth, is_param=is_param, is_raw=is_raw)
        if is_param:
            is_set = schema.get("uniqueItems") is True
            return f"collections.abc.{'Collection' if is_set else 'Sequence'}[{inner}]"
        return f"{self._builtin('list')}[{inner}]"

    def _object(self, schema: Schema, depth: int, is_param: bool, is_raw: bool) -> str:
        values = schema.get("additionalProperties")
        inner = "typing.Any"
        if isinstance(values, dict):
            inner = self._annotation(values, depth, is_param=is_param, is_raw=is_raw)
        kind = "collections.abc.Mapping" if is_param else self._builtin("dict")
        return f"{kind}[{self._builtin('str')}, {inner}]"

    def literal(self, schema: Schema) -> str:
        """The annotation of a schema that lists its values."""
        values = [schema["const"]] if "const" in schema else schema["enum"]
        return f"typing.Literal[{', '.join(map(_literal, values))}]"

    def _is_literal(self, schema: Schema) -> bool:
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        kinds = (str, int, bool, type(None))
        return isinstance(values, list) and all(isinstance(it, kinds) for it in values or [[]])

    def _binary(self, schema: Schema, kind: str, is_param: bool) -> str:
        if kind == "image":
            return "PIL.Image.Image"
        if kind == "array":
            dtype = schema.get("x-ucall", {}).get("dtype")
            dtype = "bool_" if dtype == "bool" else dtype
            inner = f"numpy.{dtype}" if dtype in _DTYPES else "typing.Any"
            return f"numpy.typing.NDArray[{inner}]"
        names = ("bytes", "bytearray", "memoryview") if is_param else ("bytes",)
        return " | ".join(map(self._builtin, names))

    def _builtin(self, name: str) -> str:
        return f"{self._prefix}{name}"

    def _component(self, schema: Schema) -> str | None:
        """The Python name of the schema that this one refers to."""
        name = component_of(schema)
        return None if name is None else self.names.get(name)

    def _is_null(self, schema: Schema) -> bool:
        return types_of(self._document.resolve(schema)) == ("null",)

    def _simplified(self, schema: Schema) -> Schema:
        """The schema without references. Arrays may also be sent as nested lists, which is left
        out."""
        resolved = self._document.resolve(schema)
        if binary_type(resolved):
            return resolved
        parts = branches(resolved)
        arrays = [it for it in parts if binary_type(self._document.resolve(it)) == "array"]
        if not arrays:
            return resolved
        nulls = [part for part in parts if self._is_null(part)]
        return {"anyOf": [*arrays[:1], *nulls]} if nulls else self._document.resolve(arrays[0])


def is_class(schema: Schema) -> bool:
    """Whether a schema is an object with known members."""
    return bool(_members(schema)) and types_of(schema) in ((), ("object",))


def _members(schema: Schema) -> Mapping[str, Any]:
    found = schema.get("properties")
    return found if isinstance(found, dict) else {}


def _literal(value: object) -> str:
    """A value of a Literal; text in double quotes where it has none itself."""
    is_plain = isinstance(value, str) and not set("'\"") & set(value)
    return f'"{repr(value)[1:-1]}"' if is_plain else repr(value)
