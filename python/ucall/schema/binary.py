"""The JSON Schemas of bytes, arrays and images, whose JSON form is base64."""

from __future__ import annotations

from typing import Any

from ucall.schema.dialects import LOCAL

__all__ = ["FILE", "array_param", "array_result", "bytes_schema", "image_schema", "number_schema"]

Schema = dict[str, Any]

#: The bytes of a body. Generators of clients make a file of the format of OpenAPI 3.0 alone.
FILE: Schema = {"type": "string", "format": "binary"}


def bytes_schema() -> Schema:
    """The schema of bytes."""
    return _base64("application/octet-stream", {"type": "bytes"})


def image_schema() -> Schema:
    """The schema of an image in one of the formats of docs/types.md."""
    return _base64("image/*", {"type": "image"})


def array_result(annotation: Any) -> Schema:
    """The schema of an array that a function returns: a ``.npy`` in base64."""
    from ucall.types.array_params import array_type

    built = array_type(annotation)
    wanted, dimensions = built.dtypes, built.dimensions
    hint = {"type": "array", "dtype": wanted[0] if len(wanted) == 1 else None}
    shape = None if dimensions is None else [None] * dimensions
    return _base64("application/x-npy", hint | {"shape": shape})


def array_param(annotation: Any) -> tuple[Schema, dict[str, Schema]]:
    """The schema of an array that a function takes: a ``.npy`` in base64, or nested lists; and the
    components of lists that are nested to any depth."""
    from ucall.types.array_params import array_type

    built = array_type(annotation)
    wanted, dimensions = built.dtypes, built.dimensions
    components: dict[str, Schema] = {}
    lists = [
        _any_lists(name, leaf, components) if dimensions is None else _lists(leaf, dimensions)
        for name, leaf in _leaves(wanted).items()
    ]
    file = array_result(annotation)
    return {"anyOf": [file, *lists], "x-ucall": file["x-ucall"]}, components


def _any_lists(name: str, leaf: Schema, components: dict[str, Schema]) -> Schema:
    """The schema of lists that are nested to any depth."""
    lists = {"$ref": f"{LOCAL}Array_{name}"}
    components[f"Array_{name}"] = {"type": "array", "items": {"anyOf": [leaf, lists]}}
    return lists


def _lists(leaf: Schema, dimensions: int) -> Schema:
    lists: Schema = {"type": "array", "items": leaf}
    for _ in range(dimensions - 1):
        lists = {"type": "array", "items": lists, "minItems": 1}
    return lists


#: The numbers in lists that become a dtype of each abstract kind, or of a dtype that NumPy lacks.
#: None become one of the other kinds.
_ABSTRACT = {
    "number": "number",
    "inexact": "number",
    "floating": "number",
    "integer": "integer",
    "signedinteger": "integer",
    "bfloat16": "number",
}


def _leaves(wanted: list[str]) -> dict[str, Schema]:
    """The schemas of the items of nested lists, by names: a list has numbers or bools."""
    if not wanted:
        return {"number": {"type": "number"}, "bool": {"type": "boolean"}}
    found = {name: _leaf(name) for name in wanted}
    return {name: leaf for name, leaf in found.items() if leaf is not None}


def _leaf(name: str) -> Schema | None:
    import numpy

    try:
        dtype = numpy.dtype(name)
    except TypeError:  # It is abstract.
        return {"type": _ABSTRACT[name]} if name in _ABSTRACT else None
    if dtype.kind == "b":
        return {"type": "boolean"}
    if dtype.kind in "iu":
        bounds = numpy.iinfo(dtype)
        return {"type": "integer", "minimum": int(bounds.min), "maximum": int(bounds.max)}
    return {"type": "number"} | _float_bounds(numpy.finfo(dtype))


def number_schema(kind: Any) -> Schema:
    """The schema of a NumPy scalar: as that of an item of a list for its dtype."""
    import numpy

    return _leaf(numpy.dtype(kind).name) or {}


def _float_bounds(bounds: Any) -> Schema:
    """The first numbers that are rounded to an infinity; none for float64, which has all."""
    if bounds.bits >= 64:
        return {}
    most = float(bounds.max) + 2.0 ** (bounds.maxexp - bounds.nmant - 2)
    return {"exclusiveMinimum": -most, "exclusiveMaximum": most}


def _base64(media_type: str, hint: Schema) -> Schema:
    return {
        "type": "string",
        "contentEncoding": "base64",
        "contentMediaType": media_type,
        "x-ucall": hint,
    }
