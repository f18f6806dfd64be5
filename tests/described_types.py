"""A description with every type of docs/types.md, written by hand."""

from __future__ import annotations

import datetime
import decimal
import uuid
from typing import Any

from described import ARRAY, INTEGER, NUMBER, STRING, binary, method, param

NULL = {"type": "null"}


def ref(name: str) -> Any:
    return {"$ref": f"#/components/schemas/{name}"}


def list_of(schema: Any, **members: Any) -> Any:
    return {"type": "array", "items": schema, **members}


def optional(schema: Any) -> Any:
    return {"anyOf": [schema, NULL]}


def text_of(form: str) -> Any:
    return {"type": "string", "format": form}


def both(name: str, schema: Any) -> Any:
    """A method that returns its param."""
    return method(name, param("value", schema), result=schema)


IMAGE = binary("image", "image/*")
READING = {
    "type": "object",
    "title": "Reading",
    "description": "What a sensor has measured.",
    "properties": {
        "at": text_of("date-time"),
        "values": {"anyOf": [ARRAY, list_of(NUMBER)]},
        "next": optional(ref("Reading")),
        "id": {"anyOf": [text_of("uuid"), INTEGER]},
    },
    "required": ["at", "values"],
}

#: A method for each type of docs/types.md, with the annotations of its param and its result, and a
#: value.
KINDS: list[tuple[str, Any, str, str, object]] = [
    ("an_int", INTEGER, "int", "int", 5),
    ("a_float", NUMBER, "float", "float", 0.5),
    ("a_bool", {"type": "boolean"}, "bool", "bool", True),
    ("a_str", STRING, "str", "str", "é"),
    ("a_list", list_of(INTEGER), "Sequence[int]", "list[int]", [1, 2]),
    (
        "a_dict",
        {"type": "object", "additionalProperties": INTEGER},
        "Mapping[str, int]",
        "dict[str, int]",
        {"a": 1},
    ),
    ("an_optional", optional(INTEGER), "int | None", "int | None", None),
    ("an_any", {}, "Any", "Any", [1]),
    ("a_union", {"anyOf": [INTEGER, STRING]}, "int | str", "int | str", "a"),
    ("some_bytes", binary("bytes"), "bytes", "bytes", b"\xff"),
    ("maybe_bytes", optional(binary("bytes")), "bytes | None", "bytes | None", b"\xff"),
    ("an_array", ARRAY, "NDArray[numpy.float32]", "NDArray[numpy.float32]", None),
    ("an_image", IMAGE, "PIL.Image.Image", "PIL.Image.Image", None),
    ("a_date", text_of("date"), "datetime.date", "datetime.date", datetime.date(2026, 1, 31)),
    (
        "a_datetime",
        text_of("date-time"),
        "datetime.datetime",
        "datetime.datetime",
        datetime.datetime(2026, 1, 31, 12, tzinfo=datetime.UTC),
    ),
    ("a_time", text_of("time"), "datetime.time", "datetime.time", datetime.time(12, 30)),
    ("a_uuid", text_of("uuid"), "uuid.UUID", "uuid.UUID", uuid.UUID(int=5)),
    (
        "a_decimal",
        text_of("decimal"),
        "decimal.Decimal",
        "decimal.Decimal",
        decimal.Decimal("1.50"),
    ),
    ("a_duration", text_of("duration"), "str", "str", "PT1H"),
    ("a_set", list_of(STRING, uniqueItems=True), "Collection[str]", "list[str]", ["a"]),
    ("a_tuple", list_of([INTEGER, STRING]), "Sequence[int | str]", "list[int | str]", [1, "a"]),
    ("an_enum", ref("Colour"), "Colour", "Colour", "red"),
    (
        "a_literal",
        {"enum": ["mm", 1, None]},
        'Literal["mm", 1, None]',
        'Literal["mm", 1, None]',
        1,
    ),
    (
        "some_dates",
        {"type": "object", "additionalProperties": list_of(text_of("date"))},
        "Mapping[str, Sequence[datetime.date]]",
        "dict[str, list[datetime.date]]",
        {"a": [datetime.date(2026, 1, 31)]},
    ),
    (
        "a_date_or_int",
        {"anyOf": [text_of("date"), INTEGER]},
        "datetime.date | int",
        "str | int",
        5,
    ),
    ("a_tree", ref("Tree"), "Tree", "Tree", {"name": "a", "inner": [{"name": "b"}]}),
]

KINDS_DOCUMENT: Any = {
    "info": {"title": "Kinds"},
    "methods": [
        *(both(name, schema) for name, schema, *_ in KINDS),
        both("a_reading", ref("Reading")),
        method("maybe_reading", result={"anyOf": [ref("Reading"), INTEGER]}),
        method("nothing", result=NULL),
        method("late", param("a", INTEGER, required=False), param("b", INTEGER), result=INTEGER),
        both("list.of.it", list_of(INTEGER)),
        both("list.of", INTEGER),
        method("words", param("prompt", STRING), result=list_of(STRING))
        | {"x-stream": True, "x-item": STRING},
        both("class", INTEGER),
        method("import.print", param("self", INTEGER), param("class", INTEGER, required=False)),
        method("in_order", param("a", INTEGER), param("b", INTEGER, required=False))
        | {"paramStructure": "by-position"},
    ],
    "components": {
        "schemas": {
            "Colour": {"enum": ["red", "blue"]},
            "Reading": READING,
            "Odd": {"type": "object", "properties": {"a-b": INTEGER}, "required": ["a-b"]},
            "Tree": {
                "type": "object",
                "properties": {"name": STRING, "inner": list_of(ref("Tree"))},
                "required": ["name"],
            },
        }
    },
}
