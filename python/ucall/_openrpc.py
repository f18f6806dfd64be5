"""Reads the OpenRPC document with which a server describes its methods.

The document may come from a server of any make, so every member is checked here before it is used:
the other modules get methods and schemas of the right JSON types.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

__all__ = [
    "BINARY_TYPES",
    "NO_DEFAULT",
    "Document",
    "Method",
    "Param",
    "Schema",
    "binary_type",
    "branches",
    "component_of",
    "reference_of",
    "text_of",
    "types_of",
]

Schema: TypeAlias = Mapping[str, Any]

#: The types of ``x-ucall`` members: data in base64.
BINARY_TYPES = ("bytes", "array", "image")

#: The default of a param without one, which may be null.
NO_DEFAULT: Any = object()

_COMPONENTS = "#/components/schemas/"
_REFERENCES_MAX = 64


@dataclass(frozen=True)
class Param:
    """A param of a method.

    `rest` is ``"positional"`` or ``"named"`` for one that takes all further params; its schema is
    then that of each of them.
    """

    name: str
    schema: Schema
    is_required: bool
    description: str
    rest: str = ""

    @property
    def default(self) -> Any:
        """Its default, or `NO_DEFAULT`."""
        return self.schema.get("default", NO_DEFAULT)


@dataclass(frozen=True)
class Method:
    """A method of a server.

    `item` is the schema of one item if it is a stream. `params` are those that are not the rest.
    """

    name: str
    summary: str
    description: str
    params: tuple[Param, ...]
    rests: tuple[Param, ...]
    result: Schema
    result_description: str
    item: Schema | None
    errors: tuple[tuple[int, str], ...]
    structure: str
    is_deprecated: bool

    def rest(self, kind: str) -> Param | None:
        """The param that takes all further ones: ``"positional"`` or ``"named"``."""
        return next((param for param in self.rests if param.rest == kind), None)

    @property
    def is_by_position(self) -> bool:
        """Whether params must go by position, for all of them to fit."""
        return self.structure == "by-position" or self.rest("positional") is not None


class Document:
    """The methods and the schemas of a server.

    Raises:
        ValueError: The value is no OpenRPC document; the message names the invalid member.
    """

    def __init__(self, document: object) -> None:
        if not isinstance(document, dict) or not isinstance(document.get("methods"), list):
            raise ValueError("no OpenRPC document: it has no list of methods")
        self._document = document
        self.methods: dict[str, Method] = {}
        for position, value in enumerate(document["methods"]):
            method = self._method(self.resolve(value), f"methods[{position}]")
            self.methods[method.name] = method

    @property
    def title(self) -> str:
        """The title of the server's API, or an empty text."""
        return text_of(_mapping(self._document.get("info")), "title")

    @property
    def components(self) -> dict[str, Schema]:
        """The schemas that others refer to, by name."""
        schemas = _mapping(_mapping(self._document.get("components")).get("schemas"))
        return {name: _mapping(schema) for name, schema in schemas.items()}

    def resolve(self, value: object) -> Schema:
        """Follows references within the document, and merges the schemas of ``allOf``.

        Raises:
            ValueError: A reference has no target, or refers to itself.
        """
        for _ in range(_REFERENCES_MAX):
            reference = value.get("$ref") if isinstance(value, dict) else None
            if not isinstance(reference, str):
                return self._merged(_mapping(value))
            value = self._target(reference)
        raise ValueError(f"no OpenRPC document: {reference!r} refers to itself")

    def _merged(self, schema: Schema) -> Schema:
        parts = schema.get("allOf")
        if not isinstance(parts, list) or not parts:
            return schema
        merged: dict[str, Any] = {}
        for part in parts:
            resolved = self.resolve(part) if part is not schema else {}
            members = {**_mapping(merged.get("properties")), **_mapping(resolved.get("properties"))}
            merged |= {**resolved, "properties": members} if members else resolved
        return merged | {name: value for name, value in schema.items() if name != "allOf"}

    def _target(self, reference: str) -> object:
        found: object = self._document
        for part in reference.removeprefix("#/").split("/"):
            part = part.replace("~1", "/").replace("~0", "~")
            if not isinstance(found, dict) or part not in found:
                raise ValueError(f"no OpenRPC document: {reference!r} has no target")
            found = found[part]
        return found

    def _method(self, value: Schema, place: str) -> Method:
        name, params = value.get("name"), value.get("params", [])
        if not isinstance(name, str) or not name:
            raise ValueError(f"no OpenRPC document: {place} has no name")
        if not isinstance(params, list):
            raise ValueError(f"no OpenRPC document: {place}.params is no list")
        is_stream = value.get("x-stream") is True
        if value.get("x-params-unknown") is True:
            params = [{"name": "params", "x-rest": "positional", "schema": {"items": {}}}]
        found = [self._param(self.resolve(param), place) for param in params]
        summary, description = text_of(value, "summary"), text_of(value, "description")
        result = self.resolve(value.get("result"))
        return Method(
            name,
            summary or description.partition("\n")[0],
            description,
            tuple(param for param in found if not param.rest),
            tuple(param for param in found if param.rest),
            _mapping(result.get("schema")),
            text_of(result, "description"),
            _mapping(value.get("x-item")) if is_stream else None,
            tuple(self._errors(value.get("errors"))),
            text_of(value, "paramStructure") or "either",
            value.get("deprecated") is True,
        )

    def _param(self, value: Schema, place: str) -> Param:
        name = value.get("name")
        if not isinstance(name, str) or not name:
            raise ValueError(f"no OpenRPC document: a param of {place} has no name")
        schema = _mapping(value.get("schema"))
        description = text_of(value, "description") or text_of(value, "summary")
        description = description or text_of(schema, "description")
        rest = text_of(value, "x-rest")
        inner = {"positional": "items", "named": "additionalProperties"}.get(rest)
        if inner is None:
            return Param(name, schema, value.get("required") is True, description)
        return Param(name, _mapping(schema.get(inner)), False, description, rest)

    def _errors(self, errors: object) -> Iterator[tuple[int, str]]:
        for error in errors if isinstance(errors, list) else []:
            known = self.resolve(error)
            if isinstance(known.get("code"), int):
                yield known["code"], text_of(known, "message")


def types_of(schema: Schema) -> tuple[str, ...]:
    """The names of the JSON types that a schema's member ``type`` allows; empty without one."""
    found = schema.get("type")
    found = found if isinstance(found, list) else [found]
    return tuple(name for name in found if isinstance(name, str))


def branches(schema: Schema) -> list[Schema]:
    """The alternatives of a schema that is a union; empty for any other schema."""
    for keyword in ("anyOf", "oneOf"):
        found = schema.get(keyword)
        if isinstance(found, list) and found:
            return [_mapping(branch) for branch in found]
    types = types_of(schema)
    return [{**schema, "type": name} for name in types] if len(types) > 1 else []


def binary_type(schema: Schema) -> str | None:
    """``"bytes"``, ``"array"`` or ``"image"`` for data in base64; None for any other schema."""
    known = _mapping(schema.get("x-ucall")).get("type")
    if known in BINARY_TYPES:
        return str(known)
    return "bytes" if schema.get("contentEncoding") == "base64" else None


def reference_of(schema: Schema) -> str | None:
    """The schema that this one refers to, with other members beside it or without."""
    parts = schema.get("allOf")
    if isinstance(parts, list) and len(parts) == 1:
        schema = _mapping(parts[0])
    reference = schema.get("$ref")
    return reference if isinstance(reference, str) else None


def _mapping(value: object) -> Schema:
    return value if isinstance(value, dict) else {}


def component_of(schema: Schema) -> str | None:
    """The name of the component that a schema refers to."""
    reference = reference_of(schema)
    if reference is None or not reference.startswith(_COMPONENTS):
        return None
    return reference.removeprefix(_COMPONENTS).replace("~1", "/").replace("~0", "~")


def text_of(holder: Schema, name: str) -> str:
    """The text of a member; empty without one."""
    value = holder.get(name)
    return value if isinstance(value, str) else ""
