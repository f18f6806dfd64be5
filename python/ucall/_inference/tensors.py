"""What JSON Schemas are as tensors: their datatype, their shape, and the form of a param."""

from __future__ import annotations

from typing import Any, NamedTuple

from ucall.schema.dialects import LOCAL, PREFIX

__all__ = ["NotATensor", "Tensor", "input_of", "outputs_of"]

Schema = dict[str, Any]
Components = dict[str, Schema]

#: By the names of NumPy; complex numbers have none.
_DATATYPES = {
    "bool": "BOOL",
    **{f"int{bits}": f"INT{bits}" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": f"UINT{bits}" for bits in (8, 16, 32, 64)},
    "float16": "FP16",
    "float32": "FP32",
    "float64": "FP64",
    "bfloat16": "BF16",
}

#: Of an array whose annotation has no dtype: the metadata has to name one.
_ANY_DATATYPE = "FP32"

#: The numbers of JSON.
_NUMBERS = {"boolean": "BOOL", "integer": "INT64", "number": "FP64"}


class NotATensor(Exception):
    """The reason why a type is no tensor."""


class Tensor(NamedTuple):
    """A type as a tensor.

    Args:
        form: What a param takes of it: see ``set_models`` of the core.
        datatype: Its datatype.
        shape: Its shape; -1 for a side of any length.
        number: The datatype if its items are numbers of JSON, and no array.
    """

    form: str
    datatype: str
    shape: list[int]
    number: str | None = None

    def metadata(self, name: str) -> dict[str, Any]:
        """Its description, as an input or an output of this name."""
        return {"name": name, "datatype": self.datatype, "shape": self.shape}

    def config(self, name: str) -> dict[str, Any]:
        """The same in the configuration of a model, as Triton has it."""
        kind = "STRING" if self.datatype == "BYTES" else self.datatype
        return {"name": name, "data_type": f"TYPE_{kind}", "dims": self.shape}


def input_of(schema: Schema, components: Components) -> Tensor:
    """What a param takes.

    Raises:
        NotATensor: It takes no tensor.
    """
    return _tensor(schema, components)


def outputs_of(schema: Schema, components: Components) -> tuple[dict[str, Tensor], bool]:
    """The outputs of a result, by their names, as far as its annotation has them; and whether the
    items of a list are outputs.

    Raises:
        NotATensor: The result, or a part of it, is no tensor.
    """
    schema = _resolved(schema, components)
    if schema.get("type") == "null" or not schema.keys() - {"title", "description"}:
        return {}, False
    if schema.get("type") == "object":
        members = schema.get("properties")
        if members is None:
            others = schema.get("additionalProperties")
            if isinstance(others, dict) and others:
                _tensor(others, components)
            return {}, False
        return {name: _named(name, it, components) for name, it in members.items()}, False
    items = schema.get("prefixItems")
    if items:
        names = [f"output{at}" for at in range(len(items))]
        named = zip(names, items, strict=True)
        return {name: _named(name, it, components) for name, it in named}, True
    return {"output0": _tensor(schema, components)}, False


def _named(name: str, schema: Schema, components: Components) -> Tensor:
    try:
        return _tensor(schema, components)
    except NotATensor as reason:
        raise NotATensor(f"its {name!r} {reason}") from None


def _tensor(schema: Schema, components: Components) -> Tensor:
    schema = _resolved(schema, components)
    hint = schema.get("x-ucall", {})
    if hint.get("type") == "array":
        return _array(hint)
    if schema.get("contentEncoding") == "base64":
        return Tensor("bytes", "BYTES", [1])
    kind = _kind(schema)
    if kind == "string":
        return Tensor("text", "BYTES", [1])
    if kind in _NUMBERS:
        return Tensor("scalar", _NUMBERS[kind], [1], _NUMBERS[kind])
    if kind == "array" and isinstance(schema.get("items"), dict) and "prefixItems" not in schema:
        return _list(_tensor(schema["items"], components))
    raise NotATensor("is no array, number, text or bytes, and no list of these")


def _array(hint: Schema) -> Tensor:
    dtype = hint.get("dtype")
    datatype = _ANY_DATATYPE if dtype is None else _DATATYPES.get(dtype)
    if datatype is None and str(dtype).startswith("complex"):
        raise NotATensor("is an array of complex numbers, which the protocol does not have")
    shape = hint.get("shape")
    sides = [-1] if shape is None else [-1 if side is None else side for side in shape]
    return Tensor("array", datatype or _ANY_DATATYPE, sides)


def _list(item: Tensor) -> Tensor:
    if item.form == "text":
        return Tensor("texts", "BYTES", [-1])
    if item.form == "bytes":
        return Tensor("bytes_list", "BYTES", [-1])
    if item.form == "scalar":
        return Tensor("list", item.datatype, [-1], item.number)
    if item.form == "list":
        return item._replace(shape=[-1, *item.shape])
    raise NotATensor("is a list of arrays or of lists of texts, which are no single tensor")


def _kind(schema: Schema) -> str | None:
    """The type of a schema, also if it has only the values that there may be."""
    kind = schema.get("type")
    values = schema.get("enum")
    if kind is None and values and all(isinstance(it, str) for it in values):
        return "string"
    return kind if isinstance(kind, str) else None


def _resolved(schema: Schema, components: Components) -> Schema:
    """The schema that a reference is to, or what an optional value is if it is there."""
    for _ in range(len(components) + 8):
        reference = schema.get("$ref")
        options = schema.get("anyOf")
        if isinstance(reference, str):
            name = reference.removeprefix(PREFIX).removeprefix(LOCAL)
            schema = components.get(name, {})
        elif options and "x-ucall" not in schema:
            others = [it for it in options if it.get("type") != "null"]
            if len(others) != 1:
                return {"type": "one of several"}
            schema = others[0]
        else:
            break
    return schema
