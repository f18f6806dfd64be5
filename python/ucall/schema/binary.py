"""The JSON Schemas of bytes, arrays and images, whose JSON form is base64."""

from __future__ import annotations

from typing import Any

__all__ = ["array_param", "array_result", "bytes_schema", "image_schema"]

Schema = dict[str, Any]


def bytes_schema() -> Schema:
    """The schema of bytes."""
    return _base64("application/octet-stream", {"type": "bytes"})


def image_schema() -> Schema:
    """The schema of an image in one of the formats of docs/types.md."""
    return _base64("image/*", {"type": "image"})


def array_result(annotation: Any) -> Schema:
    """The schema of an array that a function returns: a ``.npy`` in base64."""
    from ucall.types import array_params

    dimensions, wanted = array_params.described(annotation)
    hint = {"type": "array", "dtype": wanted[0] if len(wanted) == 1 else None}
    shape = None if dimensions is None else [None] * dimensions
    return _base64("application/x-npy", hint | {"shape": shape})


def array_param(annotation: Any, components: dict[str, Schema]) -> Schema:
    """The schema of an array that a function takes: a ``.npy`` in base64, or nested lists.

    Args:
        annotation: The array's annotation.
        components: Gets the schema of lists that are nested to any depth.
    """
    from ucall.types import array_params

    dimensions, wanted = array_params.described(annotation)
    leaf = _number(wanted)
    if dimensions is None:
        name = f"Array_{'_or_'.join(wanted) or 'any'}"
        nested = {"anyOf": [leaf, {"$ref": f"#/components/schemas/{name}"}]}
        components[name] = {"type": "array", "items": nested}
        lists: Schema = {"$ref": f"#/components/schemas/{name}"}
    else:
        lists = {"type": "array", "items": leaf}
        for _ in range(dimensions - 1):
            lists = {"type": "array", "items": lists, "minItems": 1}
    file = array_result(annotation)
    return {"anyOf": [file, lists], "x-ucall": file["x-ucall"]}


def _number(wanted: tuple[str, ...]) -> Schema:
    """The schema of the items of nested lists."""
    if len(wanted) != 1:
        return {"type": ["number", "boolean"]}
    import numpy

    try:
        dtype = numpy.dtype(wanted[0])
    except TypeError:  # An abstract one, such as "floating".
        return {"type": "integer" if "integer" in wanted[0] else "number"}
    if dtype.kind == "b":
        return {"type": "boolean"}
    if dtype.kind not in "iu":
        return {"type": "number"}
    bounds = numpy.iinfo(dtype)
    return {"type": "integer", "minimum": int(bounds.min), "maximum": int(bounds.max)}


def _base64(media_type: str, hint: Schema) -> Schema:
    return {
        "type": "string",
        "contentEncoding": "base64",
        "contentMediaType": media_type,
        "x-ucall": hint,
    }
