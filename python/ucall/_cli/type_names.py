"""Names the types of a JSON Schema as the server's errors do, and makes example values."""

from __future__ import annotations

import json
import shlex
from typing import Any

from ucall._cli.params import InexactNumberError, infer
from ucall._openrpc import (
    NO_DEFAULT,
    Document,
    Method,
    Param,
    Schema,
    binary_type,
    branches,
    reference_of,
    types_of,
)

__all__ = ["COMMANDS", "choices_of", "example_of", "type_name"]

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


def type_name(document: Document, schema: Schema, depth: int = 0) -> str:
    """The name of a schema's type with its bounds, such as ``list[int >= 0]``."""
    resolved = document.resolve(schema)
    choices = choices_of(document, resolved)
    if choices:
        return f"one of {', '.join(map(_literal, choices))}"
    reference = reference_of(schema)
    if reference and (types_of(resolved) == ("object",) or depth > _DEPTH_MAX):
        return reference.rpartition("/")[2]
    kind = binary_type(resolved)
    if kind is not None:
        return _binary_name(kind, resolved)
    if parts := branches(resolved):
        names = [type_name(document, part, depth + 1) for part in parts]
        return " | ".join(dict.fromkeys(names))
    return " ".join((_plain_name(document, resolved, depth), *_bounds(resolved)))


def choices_of(document: Document, schema: Schema) -> list[object]:
    """The only values of a schema, if it lists them."""
    resolved = document.resolve(schema)
    if "const" in resolved:
        return [resolved["const"]]
    found = resolved.get("enum")
    return found if isinstance(found, list) else []


def _literal(value: object) -> str:
    return repr(value) if isinstance(value, str) else json.dumps(value)


def _binary_name(kind: str, schema: Schema) -> str:
    dtype = schema.get("x-ucall", {}).get("dtype")
    return f"{kind} of {dtype}" if isinstance(dtype, str) else kind


def _plain_name(document: Document, schema: Schema, depth: int) -> str:
    kind = next(iter(types_of(schema)), "")
    if kind == "array":
        return _array_name(document, schema, depth + 1)
    if kind == "object":
        title, values = schema.get("title"), schema.get("additionalProperties")
        if isinstance(values, dict):
            return f"dict[str, {type_name(document, values, depth + 1)}]"
        return title if isinstance(title, str) else "dict"
    form = schema.get("format")
    name = _NAMES.get(kind, "any value")
    return f"{name} ({form})" if kind == "string" and isinstance(form, str) else name


def _array_name(document: Document, schema: Schema, depth: int) -> str:
    items = schema.get("prefixItems", schema.get("items"))
    if isinstance(items, list):
        return f"tuple[{', '.join(type_name(document, item, depth) for item in items)}]"
    return f"list[{type_name(document, items, depth)}]" if isinstance(items, dict) else "list"


def _bounds(schema: Schema) -> list[str]:
    is_tuple = isinstance(schema.get("prefixItems", schema.get("items")), list)
    bounds = [
        f"{sign} {schema[name]}"
        for name, sign in _BOUNDS
        if _is_number(schema.get(name)) and not (is_tuple and name.endswith("Items"))
    ]
    if isinstance(schema.get("pattern"), str):
        bounds.append(f"matching {schema['pattern']!r}")
    return bounds[:1] + [f"and {bound}" for bound in bounds[1:]]


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def example_of(document: Document, method: Method, server_options: str = "") -> str:
    """A command that calls the method with its required params."""
    required = [param for param in method.params if param.is_required]
    if method.structure == "by-position":
        words = [_shell_value(document, param) for param in required]
        words = ["--positional", *words] if words else []
    else:
        words = [_named_example(document, param) for param in required]
    stream = ["--stream"] if method.item is not None else []
    name = shlex.quote(method.name)
    if method.name in COMMANDS:
        return " ".join([f"ucall{server_options or ' --port 8545'} {name}", *words, *stream])
    return " ".join(["ucall", name, *words, *stream]) + server_options


def _named_example(document: Document, param: Param) -> str:
    kind = binary_type(document.resolve(param.schema))
    if kind is not None:
        return f"{shlex.quote(param.name)}=@{_FILES[kind]}"
    value = _sample(document, param.schema)
    needs_type = isinstance(value, str) and not _is_sent_as_text(value)
    name = f"{param.name}:str" if needs_type else param.name
    return f"{shlex.quote(name)}={shlex.quote(_written(value))}"


def _is_sent_as_text(value: str) -> bool:
    try:
        return infer(value) == value and not value.startswith("@")
    except InexactNumberError:
        return False


def _shell_value(document: Document, param: Param) -> str:
    return shlex.quote(_written(_sample(document, param.schema)))


def _written(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _sample(document: Document, schema: Schema, within: tuple[str, ...] = ()) -> Any:
    """A value that the schema accepts, where its bounds and lengths are enough to find one.

    `within` are the references of the schemas around this one, or empty texts.
    """
    resolved = document.resolve(schema)
    examples = resolved.get("examples")
    if isinstance(examples, list) and examples:
        return examples[0]
    if choices := choices_of(document, resolved):
        return choices[0]
    if len(within) > _DEPTH_MAX:
        return None
    within = (*within, reference_of(schema) or "")
    if parts := branches(resolved):
        is_array = binary_type(resolved) is not None  # Nested lists are its other form.
        # A type that contains itself ends at another one.
        others = [part for part in parts if reference_of(part) not in within]
        return _sample(document, parts[-1] if is_array else [*others, *parts][0], within)
    if binary_type(resolved) is not None:
        return ""
    default = resolved.get("default", NO_DEFAULT)
    if default is not NO_DEFAULT:
        return default
    kind = next(iter(types_of(resolved)), "")
    if kind == "object":
        return _sample_object(document, resolved, within)
    return _sample_array(document, resolved, within) if kind == "array" else _scalar(resolved)


def _sample_object(document: Document, schema: Schema, within: tuple[str, ...]) -> dict[str, Any]:
    properties, required = schema.get("properties", {}), schema.get("required", [])
    return {name: _sample(document, properties[name], within) for name in required}


def _sample_array(document: Document, schema: Schema, within: tuple[str, ...]) -> list[Any]:
    items = schema.get("prefixItems", schema.get("items", {}))
    if isinstance(items, list):
        return [_sample(document, item, within) for item in items]
    return [_sample(document, items, within) for _ in range(schema.get("minItems", 1))]


def _scalar(schema: Schema) -> Any:
    kind = next(iter(types_of(schema)), "string")
    if kind == "null":
        return None
    if kind == "boolean":
        return True
    if kind == "string":
        text = _TEXTS.get(schema.get("format", ""), "text")
        return text.ljust(schema.get("minLength", 0), "x")[: schema.get("maxLength")]
    least = schema.get("minimum", schema.get("exclusiveMinimum", 0) + 1)
    most = schema.get("maximum", schema.get("exclusiveMaximum", least + 1) - 1)
    value = min(max(1, least), max(most, least))
    return int(value) if kind == "integer" else float(value)
