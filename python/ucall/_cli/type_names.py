"""Names the types of a JSON Schema as the server's errors do, and makes example values."""

from __future__ import annotations

import json
from typing import Any

from ucall._cli import shell
from ucall._openrpc import NO_DEFAULT, Document, Method, Param, Schema, Subschema, branches

__all__ = ["COMMANDS", "example_of", "type_name"]

#: Words that are no methods where they are first: there an option comes before the method.
COMMANDS = ("health", "stub")

_NAMES = {"integer": "int", "number": "float", "boolean": "bool", "string": "str", "null": "None"}
_BOUNDS = (
    ("exclusiveMinimum", ">"),
    ("minimum", ">="),
    ("exclusiveMaximum", "<"),
    ("maximum", "<="),
    ("minLength", "of length >="),
    ("maxLength", "of length <="),
    ("minItems", "of length >="),
    ("maxItems", "of length <="),
)
_TEXTS = {
    "date": "2026-01-31",
    "decimal": "1.5",
    "date-time": "2026-01-31T12:00:00Z",
    "time": "12:00:00Z",
    "duration": "PT1H",
    "uuid": "00000000-0000-4000-8000-000000000000",
}
_FILES = {"bytes": "FILE", "array": "array.npy", "image": "picture.png"}
#: Recursive schemas are named and sampled to this depth.
_DEPTH_MAX = 6
#: An example has no longer texts and arrays, whatever the schema asks for.
_SAMPLE_LENGTH_MAX = 100


def type_name(document: Document, schema: Subschema | Schema, within: tuple[str, ...] = ()) -> str:
    """The name of a schema's type with its bounds, such as ``list[int >= 0]``.

    `within` are the references of the schemas around this one.
    """
    resolved = document.resolve(schema)
    if resolved.choices:
        return f"one of {', '.join(map(_literal, resolved.choices))}"
    reference = schema.reference if isinstance(schema, Subschema) else ""
    if reference:
        if resolved.types == ("object",) or reference in within or len(within) > _DEPTH_MAX:
            return reference.rpartition("/")[2]
        within = (*within, reference)
    if resolved.binary:
        return f"{resolved.binary} of {resolved.dtype}" if resolved.dtype else resolved.binary
    if parts := branches(resolved):
        names = [type_name(document, part, within) for part in parts]
        return " | ".join(dict.fromkeys(names))
    return " ".join((_plain_name(document, resolved, within), *_bounds(resolved)))


def _literal(value: object) -> str:
    return repr(value) if isinstance(value, str) else json.dumps(value)


def _plain_name(document: Document, schema: Schema, within: tuple[str, ...]) -> str:
    kind = next(iter(schema.types), "")
    if kind == "array":
        return _array_name(document, schema, within)
    if kind == "object":
        if schema.others is not None:
            return f"dict[str, {type_name(document, schema.others, within)}]"
        return schema.title or "dict"
    name = _NAMES.get(kind, "any value")
    return f"{name} ({schema.format})" if kind == "string" and schema.format else name


def _array_name(document: Document, schema: Schema, within: tuple[str, ...]) -> str:
    if schema.prefix_items is not None:
        items = [type_name(document, item, within) for item in schema.prefix_items]
        return f"tuple[{', '.join(items)}]"
    if schema.items is None:
        return "list"
    return f"list[{type_name(document, schema.items, within)}]"


def _bounds(schema: Schema) -> list[str]:
    is_tuple = schema.prefix_items is not None
    bounds = [
        f"{sign} {schema.bounds[name]}"
        for name, sign in _BOUNDS
        if name in schema.bounds and not (is_tuple and name.endswith("Items"))
    ]
    if schema.pattern:
        bounds.append(f"matching {schema.pattern!r}")
    return bounds[:1] + [f"and {bound}" for bound in bounds[1:]]


def example_of(document: Document, method: Method, server_options: str = "") -> str:
    """A command that calls the method with its required params; empty if there is none."""
    required = [param for param in method.params if param.is_required]
    is_by_position = method.structure == "by-position"
    write = _positional_example if is_by_position else _named_example
    words = [shell.method_word(method.name), *(write(document, param) for param in required)]
    if None in words:
        return ""
    name, *params = map(str, words)
    params = ["--positional"] * (is_by_position and bool(params)) + params
    stream = ["--stream"] * (method.item is not None)
    if method.name in COMMANDS:
        return " ".join([f"ucall{server_options or ' --port 8545'} {name}", *params, *stream])
    return " ".join(["ucall", name, *params, *stream]) + server_options


def _named_example(document: Document, param: Param) -> str | None:
    kind = document.resolve(param.schema).binary
    if kind:
        return shell.file_word(param.name, _FILES[kind])
    return shell.param_word(param.name, _sample(document, param.schema))


def _positional_example(document: Document, param: Param) -> str | None:
    return shell.positional_word(_sample(document, param.schema))


def _sample(document: Document, schema: Subschema | Schema, within: tuple[str, ...] = ()) -> Any:
    """A value that the schema accepts, where its bounds and lengths are enough to find one.

    `within` are the references of the schemas around this one, or empty texts.
    """
    resolved = document.resolve(schema)
    for values in (resolved.examples, resolved.choices):
        if values:
            return values[0]
    if len(within) > _DEPTH_MAX:
        return None
    within = (*within, _reference(schema))
    if parts := branches(resolved):
        is_array = bool(resolved.binary)  # Nested lists are its other form.
        # A type that contains itself ends at another one.
        others = [part for part in parts if _reference(part) not in within]
        return _sample(document, parts[-1] if is_array else [*others, *parts][0], within)
    if resolved.binary:
        return ""
    if resolved.default is not NO_DEFAULT:
        return resolved.default
    kind = next(iter(resolved.types), "")
    if kind == "object":
        members = [name for name in resolved.required if name in resolved.properties]
        return {name: _sample(document, resolved.properties[name], within) for name in members}
    return _sample_array(document, resolved, within) if kind == "array" else _scalar(resolved)


def _reference(schema: Subschema | Schema) -> str:
    return schema.reference if isinstance(schema, Subschema) else ""


def _sample_array(document: Document, schema: Schema, within: tuple[str, ...]) -> list[Any]:
    if schema.prefix_items is not None:
        return [_sample(document, item, within) for item in schema.prefix_items]
    count = min(schema.bounds.get("minItems", 1), _SAMPLE_LENGTH_MAX)
    items = schema.items or Schema()
    return [_sample(document, items, within) for _ in range(int(count))]


def _scalar(schema: Schema) -> Any:
    kind, bounds = next(iter(schema.types), "string"), schema.bounds
    if kind == "null":
        return None
    if kind == "boolean":
        return True
    if kind == "string":
        least = min(bounds.get("minLength", 0), _SAMPLE_LENGTH_MAX)
        most = min(bounds.get("maxLength", _SAMPLE_LENGTH_MAX), _SAMPLE_LENGTH_MAX)
        return _TEXTS.get(schema.format, "text").ljust(int(least), "x")[: int(most)]
    least = bounds.get("minimum", bounds.get("exclusiveMinimum", 0) + 1)
    most = bounds.get("maximum", bounds.get("exclusiveMaximum", least + 1) - 1)
    value = min(max(1, least), max(most, least))
    return int(value) if kind == "integer" else float(value)
