"""Generated classes: a function receives what the class's own constructor, or its library, makes.

Each field has a type, a default, a factory or neither, and may be ``init=False``; classes of one
sort are in the fields of others. The values in JSON are generated beside those in Python, of which
the constructors make what is expected. Of models, pydantic makes it from the JSON.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import json
import types
import uuid
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple, NotRequired

import attrs
import msgspec
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typing_extensions import TypedDict

from ucall.types.annotations import describe_annotation
from ucall.types.registry import TypeRegistry


class Colour(enum.Enum):
    RED = "r"
    BLUE = "b"


@dataclasses.dataclass(frozen=True)
class Made:
    """A type with valid values: each in JSON and in Python."""

    annotation: Any
    values: st.SearchStrategy[tuple[Any, Any]]
    is_of_pydantic: bool = False


def plain(annotation: Any, values: st.SearchStrategy[Any], written: Callable[[Any], Any]) -> Made:
    return Made(annotation, values.map(lambda it: (written(it), it)))


def same(value: Any) -> Any:
    return value


LEAVES = [
    plain(int, st.integers(-(2**63), 2**63), same),
    plain(str, st.text(max_size=5), same),
    plain(bytes, st.just(b"\0\xff"), lambda _: "AP8="),
    plain(datetime.date, st.dates(), str),
    plain(uuid.UUID, st.uuids(), str),
    plain(decimal.Decimal, st.decimals(-100, 100, places=2), str),
    plain(Colour, st.sampled_from(Colour), lambda it: it.value),
    plain(tuple[int, str], st.tuples(st.integers(0, 9), st.text(max_size=3)), list),
    plain(dict[str, int], st.dictionaries(st.text(max_size=3), st.integers(0, 9)), dict),
    plain(set[int], st.sets(st.integers(0, 9)), sorted),
]
POSITIVE = plain(Annotated[int, pydantic.Field(ge=1)], st.integers(1, 9), same)

SORTS = ["dataclass", "attrs", "struct", "typeddict", "namedtuple", "model", "noted"]


@dataclasses.dataclass(frozen=True)
class Field:
    name: str
    made: Made
    default: tuple[Any, Any] | None
    is_factory: bool
    is_init: bool


@st.composite
def classes(draw: st.DrawFn, depth: int = 2) -> Made:
    sort = draw(st.sampled_from(SORTS))
    inner = [classes(depth - 1)] if depth else []
    fields = []
    for index in range(draw(st.integers(1, 3))):
        made = draw(st.one_of(st.sampled_from(LEAVES), *inner))
        if sort in ("model", "noted") and not made.is_of_pydantic and made not in LEAVES:
            made = LEAVES[0]  # pydantic builds no Structs, nor classes of attrs.
        default = draw(st.none() | made.values)
        is_factory = draw(st.booleans())
        is_init = default is None or sort not in ("dataclass", "attrs", "noted")
        fields.append(Field(f"f{index}", made, default, is_factory, is_init or draw(st.booleans())))
    if sort == "noted":
        fields.insert(0, Field("noted", POSITIVE, None, False, True))
    fields.sort(key=lambda field: field.default is not None)
    kind = made_of(sort, fields, is_strict=draw(st.booleans()))
    return Made(kind, values_of(sort, kind, fields), sort in ("model", "noted"))


def made_of(sort: str, fields: list[Field], is_strict: bool) -> Any:
    if sort in ("dataclass", "noted"):
        made = [(it.name, it.made.annotation, field_of(dataclasses.field, it)) for it in fields]
        return dataclasses.make_dataclass("Generated", made)
    if sort == "attrs":
        named = {it.name: field_of(attrs.field, it, type=it.made.annotation) for it in fields}
        return attrs.make_class("Generated", named)
    if sort == "struct":
        rows = [(it.name, it.made.annotation, *in_struct(it)) for it in fields]
        return msgspec.defstruct("Generated", rows)
    if sort == "typeddict":
        keys = {
            it.name: it.made.annotation if it.default is None else NotRequired[it.made.annotation]
            for it in fields
        }
        return TypedDict("Generated", keys)  # type: ignore[operator]
    if sort == "namedtuple":
        space = {
            "__module__": __name__,
            "__annotations__": {it.name: it.made.annotation for it in fields},
        }
        defaults = {it.name: it.default[1] for it in fields if it.default is not None}
        return types.new_class(
            "Generated", (NamedTuple,), {}, lambda it: it.update(space | defaults)
        )
    configuration = pydantic.ConfigDict(strict=is_strict, val_json_bytes="base64")
    members = {it.name: (it.made.annotation, in_model(it)) for it in fields}
    return pydantic.create_model("Generated", __config__=configuration, **members)


def field_of(make: Any, field: Field, **options: Any) -> Any:
    if field.default is not None:
        value = field.default[1]
        factory = "default_factory" if make is dataclasses.field else "factory"
        has_hash = type(value).__hash__ is not None
        is_plain = has_hash and not field.is_factory
        options |= {"default": value} if is_plain else {factory: lambda: value}
    return make(init=field.is_init, **options)


def in_struct(field: Field) -> list[Any]:
    if field.default is None:
        return []
    value = field.default[1]
    return [msgspec.field(default_factory=lambda: value)]


def in_model(field: Field) -> Any:
    if field.default is None:
        return ...
    value = field.default[1]
    return pydantic.Field(default_factory=lambda: value)


def values_of(sort: str, kind: Any, fields: list[Field]) -> st.SearchStrategy[tuple[Any, Any]]:
    taken = [field for field in fields if field.is_init]

    @st.composite
    def values(draw: st.DrawFn) -> tuple[Any, Any]:
        given: dict[str, tuple[Any, Any]] = {}
        for field in taken:
            if field.default is None or draw(st.booleans()):
                given[field.name] = draw(field.made.values)
            elif sort == "namedtuple":
                break  # Its values in JSON have no names.
        written = {name: it[0] for name, it in given.items()}
        if sort == "model":
            return written, kind.model_validate_json(json.dumps(written))
        build = dict if sort == "typeddict" else kind
        built = build(**{name: it[1] for name, it in given.items()})
        return (list(written.values()) if sort == "namedtuple" else written), built

    return values()


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_a_function_receives_what_the_constructor_makes(data: st.DataObject) -> None:
    made = data.draw(classes())
    written, expected = data.draw(made.values)
    _, (_, decode, explain, _) = describe_annotation(  # type: ignore[misc]
        tuple[made.annotation, int], TypeRegistry(1, 1)
    )
    built, _ = decode(json.dumps([written, 1]).encode())
    assert type(built) is type(expected)
    assert built == expected
    for field in dataclasses.fields(built) if dataclasses.is_dataclass(built) else ():
        if not field.init and made.annotation.__name__ == "Generated":
            assert getattr(built, field.name) == getattr(expected, field.name)
    # The search for all errors finds none in what fits.
    text = json.dumps([written, "x"]).encode()
    with pytest.raises(ValueError) as wrong:
        decode(text)
    assert explain(wrong.value, text, 99) == [("expected int, got str", [1])]
