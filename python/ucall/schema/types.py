"""The JSON Schemas (2020-12) of annotations.

ucall writes those of the types that it builds itself; msgspec and pydantic write theirs. Classes
become components, which others refer to, so that recursive ones have a schema.
"""

from __future__ import annotations

import datetime
import enum
import inspect
import itertools
import typing
from typing import TYPE_CHECKING, Any, Literal

from ucall.schema import binary
from ucall.schema.dialects import LOCAL, PREFIX, reached, rewritten, with_new_references, writable
from ucall.schema.fields import describe_flags, describe_own_fields, of_flags
from ucall.schema.forms import SchemaForms
from ucall.types.aliases import resolve_alias
from ucall.types.classes import is_pydantic
from ucall.types.forms import part_in
from ucall.types.parts import is_union, parts_of

if TYPE_CHECKING:
    from ucall.types.registry import TypeRegistry

__all__ = ["Direction", "Schema", "Schemas"]

Schema = dict[str, Any]
Direction = Literal["param", "result"]

_JSON: dict[object, Schema] = {
    inspect.Parameter.empty: {},
    Any: {},
    object: {},
    None: {"type": "null"},
    type(None): {"type": "null"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    str: {"type": "string"},
    # As pydantic writes them. msgspec names no format, since some have no timezone.
    datetime.datetime: {"type": "string", "format": "date-time"},
    datetime.time: {"type": "string", "format": "time"},
    list: {"type": "array"},
    dict: {"type": "object"},
}

_BINARY = (bytes, bytearray, memoryview)


class Schemas:
    """The schemas of one server's types.

    Attributes:
        registry: The types of the server.
        components: The schemas of classes, by name.
    """

    def __init__(self, registry: TypeRegistry) -> None:
        self.registry = registry
        self.components: dict[str, Schema] = {}
        #: Each with all those that it refers to, as the libraries have written them.
        self._written: dict[str, dict[str, Schema]] = {}

    def of(self, annotation: Any, direction: Direction) -> Schema:
        """The schema of an annotation. One that no library describes accepts any value."""
        try:
            return typing.cast(Schema, writable(self._of(annotation, direction)))
        except Exception:
            # Results may have any annotation. A library may refuse to describe what it can build.
            return {}

    def _of(self, annotation: Any, direction: Direction) -> Schema:
        annotation = resolve_alias(annotation)
        found = self._without_library(annotation, direction)
        if found is not None:
            return found
        origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
        if origin is list and arguments:
            return {"type": "array", "items": self._of(arguments[0], direction)}
        if origin is dict and arguments and arguments[0] in (str, Any):
            return {"type": "object", "additionalProperties": self._of(arguments[1], direction)}
        if is_union(annotation):
            return self._union(annotation, direction)
        if origin is typing.Annotated and all(isinstance(note, str) for note in arguments[1:]):
            return self._of(arguments[0], direction) | {"description": arguments[1]}
        return self._by_library(annotation, direction)

    def _without_library(self, annotation: Any, direction: Direction) -> Schema | None:
        """The schema of a registered type, an array, an image, bytes or a type of JSON's."""
        if self.registry.is_registered(annotation):
            return {"title": annotation.__name__}
        decoder = self.registry.decoder_of(annotation)
        if decoder is not None and decoder.form == "value":
            return _scalar(annotation)
        if decoder is not None and "array" not in decoder.type_name:
            return binary.image_schema()
        if decoder is not None and direction == "param":
            return self._with_components(*binary.array_param(annotation), direction)
        if decoder is not None:
            return binary.array_result(annotation)
        if annotation in _BINARY:
            return binary.bytes_schema()
        known = _JSON.get(annotation)
        return None if known is None else dict(known)

    def _union(self, annotation: Any, direction: Direction) -> Schema:
        others = [part for part in typing.get_args(annotation) if part is not type(None)]
        if len(others) > 1:
            return self._by_library(annotation, direction)
        return {"anyOf": [self._of(others[0], direction), {"type": "null"}]}

    def _by_library(self, annotation: Any, direction: Direction) -> Schema:
        if any(is_pydantic(part) for part in parts_of(annotation)):
            return self._by_pydantic(annotation, direction)
        return self._by_msgspec(annotation, direction)

    def _by_msgspec(self, annotation: Any, direction: Direction) -> Schema:
        import msgspec

        annotation = SchemaForms(self.registry, direction == "param").of(annotation)
        (schema,), components = msgspec.json.schema_components(
            [annotation],
            schema_hook=lambda kind: self._of_part(kind, direction),
            ref_template=LOCAL + "{name}",
        )
        describe_own_fields(
            annotation, components, self.registry, lambda field: self._of(field, direction)
        )
        describe_flags(annotation, components)
        return self._with_components(schema, components, direction)

    def _of_part(self, kind: Any, direction: Direction) -> Schema:
        part = part_in(kind)
        return self._of(kind if part is None else part.annotation, direction)

    def _by_pydantic(self, annotation: Any, direction: Direction) -> Schema:
        from pydantic import TypeAdapter
        from pydantic.json_schema import GenerateJsonSchema

        class Generator(GenerateJsonSchema):
            def enum_schema(self, schema: Any) -> Schema:
                made = super().enum_schema(schema)
                return of_flags(made) if issubclass(schema["cls"], enum.Flag) else made

            def dataclass_args_schema(self, schema: Any) -> Schema:
                if self.mode == "validation":  # pydantic ignores what the constructor has not.
                    taken = [it for it in schema["fields"] if it.get("init") is not False]
                    schema = schema | {"fields": taken}
                return super().dataclass_args_schema(schema)

        mode: Any = "validation" if direction == "param" else "serialization"
        inputs = [(annotation, mode, TypeAdapter(annotation))]
        made, definitions = TypeAdapter.json_schemas(
            inputs, ref_template=LOCAL + "{model}", schema_generator=Generator
        )
        components = definitions.get("$defs", {})
        outside = rewritten(made[annotation, mode], _with_base64)
        return self._with_components(outside, components, direction)

    def _with_components(
        self, schema: Schema, components: dict[str, Schema], direction: Direction
    ) -> Schema:
        """Adds components, under other names where theirs belong to others, and returns the schema
        that refers to them."""
        components = {name: _completed(it, direction) for name, it in components.items()}
        names = {name: self._name_for(name, components) for name in components}
        references = {LOCAL + name: PREFIX + named for name, named in names.items()}
        for name, component in components.items():
            self.components[names[name]] = writable(with_new_references(component, references))
        return typing.cast(Schema, with_new_references(_completed(schema, direction), references))

    def _name_for(self, name: str, components: dict[str, Schema]) -> str:
        """The name of a component: its own, or with a number if that belongs to another."""
        written = reached(name, components)
        for number in itertools.count(1):
            numbered = name if number == 1 else f"{name}_{number}"
            if self._written.setdefault(numbered, written) == written:
                return numbered
        raise AssertionError("unreachable")


def _scalar(kind: Any) -> Schema:
    """The schema of a path or of a NumPy scalar."""
    if not hasattr(kind, "dtype"):
        return {"type": "string", "format": "path"}
    return binary.number_schema(kind)


def _with_base64(made: Schema) -> Schema:
    """A schema of pydantic's outside models, where ucall has it read bytes as base64."""
    if made.get("format") != "binary":
        return made
    of_text = ("type", "format", "minLength", "maxLength")
    return {name: it for name, it in made.items() if name not in of_text} | binary.bytes_schema()


def _completed(schema: Schema, direction: Direction) -> Schema:
    """A schema of a library with what it omits of the values that the server takes."""

    def change(made: Schema) -> Schema:
        if made.get("contentEncoding") == "base64" and "x-ucall" not in made:
            made |= binary.bytes_schema()
        if direction == "param" and made.get("uniqueItems") is True:
            del made["uniqueItems"]  # A set may be given an item twice.
        if direction == "param" and made.get("format") == "decimal":
            made["type"] = ["string", "number"]
        return made

    return typing.cast(Schema, rewritten(schema, change))
