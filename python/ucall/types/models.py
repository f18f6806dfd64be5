"""pydantic's models and annotated types: built by ``pydantic.TypeAdapter`` from the JSON text.

A model converts as its own configuration says. A bare annotated type (``Annotated[int, Gt(0)]``)
is read strictly, as all other parameters are: ``"5"`` is no int.

pydantic notes everything that does not fit, in hundreds of bytes each, so that megabytes of wrong
items would take gigabytes. Here a list stops at its first; and of many faults only the number is
told.
"""

from __future__ import annotations

import functools
import re
import typing
from typing import TYPE_CHECKING, Any

from ucall.types.annotations import parts_of
from ucall.types.collisions import with_collision_check
from ucall.types.messages import UnsupportedType, kind_of, require, type_name, value_text

if TYPE_CHECKING:
    from ucall.types.annotations import Takes
    from ucall.types.registry import Explained

__all__ = ["describe"]

_ERRORS_MAX = 1_000
"""Of which the first is told."""

_LISTS = ("list", "tuple", "set", "frozenset")
"""The schemas of pydantic that may stop at their first fault."""

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
    """Describes an annotation that pydantic can build.

    Raises:
        Unserved: It cannot.
        ImportError: pydantic is not installed.
    """
    pydantic = require("pydantic", type_name(annotation))
    try:
        adapter = pydantic.TypeAdapter(annotation)
    except (TypeError, NameError, pydantic.errors.PydanticUserError) as error:
        first_line = str(error).partition("\n")[0]
        raise UnsupportedType(type_name(annotation), first_line) from None
    strict = None if _holds_model(annotation) else True
    decode = functools.partial(_validator(adapter).validate_json, strict=strict)
    return "custom", ("text", *with_collision_check(annotation, decode, explain), _name(annotation))


def is_model(kind: object) -> bool:
    """Whether pydantic made the class."""
    return isinstance(kind, type) and hasattr(kind, "__pydantic_validator__")


def decode_part(kind: Any, value: Any) -> Any:
    """Builds a model from what ``msgspec`` found within another type.

    Raises:
        ValueError: It does not fit. The message begins with the way to what does not.
    """
    import pydantic

    try:
        return _validator_of(kind).validate_python(value)
    except pydantic.ValidationError as error:
        explained = explain(error, b"")
        if explained is None:
            raise
        problem, steps = explained
        path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps)
        raise ValueError(f"${path}: {problem}") from None


@functools.cache
def _validator_of(kind: Any) -> Any:
    import pydantic

    return _validator(pydantic.TypeAdapter(kind))


def _validator(adapter: Any) -> Any:
    """What the adapter validates by, but that lists stop at their first fault."""
    from pydantic_core import SchemaError, SchemaValidator

    # Models within it would otherwise be validated by their own validators, which do not.
    options: Any = {"_use_prebuilt": False}
    try:
        schema = _with_fail_fast(adapter.core_schema)
        try:
            return SchemaValidator(schema, **options)
        except TypeError:  # Before pydantic 2.12 there is no such option, and no need of it.
            return SchemaValidator(schema)
    except SchemaError:  # Before pydantic 2.8 no list stops early.
        return adapter


def _with_fail_fast(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_with_fail_fast(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    copied = {name: _with_fail_fast(part) for name, part in schema.items()}
    return copied | {"fail_fast": True} if schema.get("type") in _LISTS else copied


def explain(error: BaseException, raw: bytes) -> Explained:
    """What the first of pydantic's errors tells the caller, and how many more there are."""
    from pydantic import ValidationError

    if not isinstance(error, ValidationError):
        return None
    if error.error_count() > _ERRORS_MAX:
        return f"expected something else in {error.error_count()} places", []
    messages = error.errors(include_url=False, include_context=False)
    first = messages[0]
    more = f" (and {len(messages) - 1} more)" if len(messages) > 1 else ""
    return _message(first) + more, list(first["loc"])


def _message(fault: Any) -> str:
    if fault["type"] == "missing":
        return "missing"
    if fault["type"] == "extra_forbidden":
        return "unexpected"
    message, value = str(fault["msg"]), fault["input"]
    # What a caller has sent may be in it, in quotes: no regular expression looks through that.
    subject, _, problem = message.partition(" should ")
    is_known = subject.replace(" ", "").isalpha() and problem.startswith(("be ", "have ", "match "))
    if not is_known:
        return message[:1].lower() + message[1:]
    got = kind_of(value) if fault["type"].endswith("_type") else value_text(value)
    if fault["type"].endswith("_parsing"):
        problem = problem.partition(", ")[0]  # The rest is the parser's own complaint.
    return f"expected {_expected(problem)}, got {got}"


def _expected(problem: str) -> str:
    problem = re.sub(r"^be (an? valid |an? )?", "", problem)
    if problem in _WORDS:
        return _WORDS[problem]
    return re.sub(r"^(greater|less) than", r"a value \1 than", problem)


def _holds_model(annotation: Any) -> bool:
    return any(map(is_model, parts_of(annotation)))


def _name(annotation: Any) -> str:
    is_noted = typing.get_origin(annotation) is typing.Annotated
    return type_name(typing.get_args(annotation)[0] if is_noted else annotation)
