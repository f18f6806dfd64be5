"""Builds pydantic's models and annotated types from JSON text, by ``pydantic.TypeAdapter``.

A model converts values as its configuration says. An annotated type without a model
(``Annotated[int, Gt(0)]``) is strict, as all other parameters are: ``"5"`` is not an int. Outside
models, bytes are base64 and numbers are finite, as in all other parameters.

pydantic collects all errors, at hundreds of bytes each, so that megabytes of wrong items would take
gigabytes. Here a list stops at its first error, unless the text is short, and above `_ERRORS_MAX`
errors the message has only their number.
"""

from __future__ import annotations

import functools
import re
import typing
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from ucall.types.collisions import with_collision_check
from ucall.types.messages import UnsupportedType, kind_of, require, type_name, value_text
from ucall.types.parts import metadata_of, parts_of

if TYPE_CHECKING:
    from ucall.types.messages import Explained, Takes

__all__ = ["decoder", "describe"]

_ERRORS_MAX = 1_000
"""Up to this number of errors, the messages have them."""

_EVERY_ITEM_BYTES_MAX = 16 << 10
"""Up to this length of the text, the errors are those of all items of its lists."""

_LISTS = ("list", "tuple", "set", "frozenset")
"""The schemas of pydantic that have the option ``fail_fast``."""

_WORDS = {
    "integer": "int",
    "number": "float",
    "string": "str",
    "boolean": "bool",
    "array": "list",
    "object": "dict",
    "dictionary": "dict",
}


def describe(annotation: Any) -> Takes:
    """Describes an annotation that pydantic builds.

    Raises:
        UnsupportedType: pydantic cannot build it.
        ImportError: pydantic is not installed.
    """
    built = decoder(annotation)
    return "custom", ("text", *built, _name(annotation))


class TextDecoder(NamedTuple):
    """Builds the values of an annotation from JSON text, and explains the errors."""

    decode: Callable[[bytes], Any]
    explain: Callable[[BaseException, bytes, int], Explained]


def decoder(annotation: Any) -> TextDecoder:
    """The decoder of an annotation that pydantic builds.

    Raises:
        UnsupportedType: pydantic cannot build it.
        ImportError: pydantic is not installed.
    """
    pydantic = require("pydantic", type_name(annotation))
    pydantic_core = require("pydantic_core", type_name(annotation))
    try:
        for model in filter(is_model, parts_of(annotation)):
            model.__pydantic_core_schema__["type"]  # Raises if it refers to an unknown name.
        validator, of_every_item = _validators(annotation)
    except (TypeError, NameError, pydantic.errors.PydanticUserError) as error:
        first_line = str(error).partition("\n")[0]
        raise UnsupportedType(type_name(annotation), first_line) from None
    except pydantic_core.SchemaError as error:
        raise UnsupportedType(type_name(annotation), " ".join(str(error).split())) from None
    explained = functools.partial(explain, of_every_item)
    return TextDecoder(*with_collision_check(annotation, validator.validate_json, explained))


def is_model(kind: object) -> bool:
    """Whether a class is a pydantic model."""
    return isinstance(kind, type) and hasattr(kind, "__pydantic_validator__")


def _configuration(annotation: Any) -> Any:
    """pydantic's configuration of what is outside models, which have their own."""
    from pydantic import EncodedBytes

    # ``Base64Bytes`` and its like decode the text themselves.
    notes = (note for part in parts_of(annotation) for note in metadata_of(part))
    form = "utf8" if any(isinstance(note, EncodedBytes) for note in notes) else "base64"
    return {"strict": True, "val_json_bytes": form, "allow_inf_nan": False}


def _validators(annotation: Any) -> tuple[Any, Callable[[], Any]]:
    """A validator with lists that stop at their first error, and what makes one with lists that do
    not."""
    from pydantic import TypeAdapter
    from pydantic_core import SchemaError, SchemaValidator

    configuration = _configuration(annotation)
    # A class alone may not be given a configuration; within a tuple it may.
    made = _first_item(TypeAdapter(tuple[annotation], config=configuration).core_schema)
    of_every_item = functools.cache(lambda: SchemaValidator(made, configuration))
    try:
        schema = _with_fail_fast(made)
        try:
            # Otherwise nested models would use their own validators, whose lists do not stop.
            options: Any = {"_use_prebuilt": False}
            return SchemaValidator(schema, configuration, **options), of_every_item
        except TypeError:  # pydantic before 2.12 has neither prebuilt validators nor the option.
            return SchemaValidator(schema, configuration), of_every_item
    except SchemaError:  # pydantic before 2.8 has no ``fail_fast``.
        return of_every_item(), of_every_item


def _first_item(schema: Any) -> Any:
    """The schema of the item of a tuple."""
    if schema["type"] == "definitions":
        return schema | {"schema": _first_item(schema["schema"])}
    return schema["items_schema"][0]


def _with_fail_fast(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_with_fail_fast(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    copied = {name: _with_fail_fast(part) for name, part in schema.items()}
    return copied | {"fail_fast": True} if schema.get("type") in _LISTS else copied


def explain(
    of_every_item: Callable[[], Any], error: BaseException, raw: bytes, limit: int
) -> Explained:
    """The messages of the first of pydantic's errors.

    Args:
        of_every_item: Makes the validator with lists that do not stop at their first error.
        error: What the other one raised.
        raw: The text.
        limit: The number of messages.
    """
    from pydantic import ValidationError
    from pydantic_core import from_json

    if not isinstance(error, ValidationError):
        return []
    found = error
    if limit > 1 and len(raw) <= _EVERY_ITEM_BYTES_MAX:
        found = _errors_of_every_item(of_every_item(), error, raw)
    if found.error_count() > _ERRORS_MAX:
        return [(f"invalid in {found.error_count()} places", [])]
    faults = found.errors(include_url=False, include_context=False)
    if len(raw) <= _EVERY_ITEM_BYTES_MAX:
        return _without_members(faults, from_json(raw))[:limit]
    return [(_message(it), list(it["loc"])) for it in faults[:limit]]


def _without_members(faults: list[Any], document: Any) -> Explained:
    """The errors without the members of unions in their paths, and without those of the members
    that the parts of a value do not come to."""
    paths = [list(_path(fault, document)) for fault in faults]
    outer = {repr(path[:length]) for path in paths for length in range(len(path))}
    return [
        (_message(fault), path)
        for fault, path in zip(faults, paths, strict=True)
        if len(path) == len(fault["loc"]) or repr(path) not in outer
    ]


def _path(fault: Any, value: Any) -> Iterator[str | int]:
    """The steps of an error that lead into the document. pydantic names the member of a union among
    them."""
    *outer, last = fault["loc"] or (None,)
    for step in outer:
        if (isinstance(value, dict) and step in value) or isinstance(step, int):
            yield step
            value = _part(value, step)
    is_part = isinstance(value, dict) and (last in value or fault["type"] == "missing")
    if last is not None and (is_part or isinstance(last, int)):
        yield last


def _errors_of_every_item(validator: Any, error: Any, raw: bytes) -> Any:
    try:
        validator.validate_json(raw)
    except type(error) as every:
        return error if every.error_count() > _ERRORS_MAX else every
    return error


def _part(value: Any, step: str | int) -> Any:
    try:
        return value[step]
    except (LookupError, TypeError):  # No part of the document has the error.
        return None


def _message(fault: Any) -> str:
    if fault["type"] == "missing":
        return "missing"
    if fault["type"] == "extra_forbidden":
        return "unexpected"
    message, value = str(fault["msg"]), fault["input"]
    # A message may quote what the caller sent, so it is not matched by a regular expression.
    subject, _, problem = message.partition(" should ")
    is_known = subject.replace(" ", "").isalpha() and problem.startswith(("be ", "have ", "match "))
    if not is_known:
        return message[:1].lower() + message[1:]
    got = kind_of(value) if fault["type"].endswith("_type") else value_text(value)
    if fault["type"].endswith("_parsing"):
        problem = problem.partition(", ")[0]  # The rest is the message of the parser.
    if fault["type"] == "bytes_invalid_encoding":
        problem = problem.partition(": ")[0]  # The rest is the message of the decoder.
    return f"expected {_expected(problem)}, got {got}"


def _expected(problem: str) -> str:
    """What follows "should", as the object of "expected"."""
    problem = problem.partition(" after validation")[0]  # The rest is the length.
    problem = re.sub(r"^have (a )?", "", problem)
    problem = re.sub(r"^match ", "text that matches ", problem)
    problem = re.sub(r"^be in ", "a value in ", problem)
    problem = re.sub(r"^be (an? valid |an? )?", "", problem)
    if problem in _WORDS:
        return _WORDS[problem]
    return re.sub(r"^(greater|less) than", r"a value \1 than", problem)


def _name(annotation: Any) -> str:
    is_annotated = typing.get_origin(annotation) is typing.Annotated
    return type_name(typing.get_args(annotation)[0] if is_annotated else annotation)
