"""Finds all errors of a value that ``msgspec`` has refused at the first.

A value that does not fit is searched for the parts of it that do not, each of which is converted
again alone. Each level of the search reads the text at most twice, so their number is limited.
"""

from __future__ import annotations

import collections.abc
import itertools
import typing
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from ucall.types import forms
from ucall.types.aliases import resolve_alias
from ucall.types.classes import Constructor, constructor_of, sort_of
from ucall.types.expected import described
from ucall.types.messages import PartError
from ucall.types.msgspec_errors import STEP, explain_part, info_of, parsed
from ucall.types.parts import is_union

if TYPE_CHECKING:
    from ucall.types.messages import Found

__all__ = ["Search"]

_LEVELS_MIN = 8
"""The levels that are searched, whatever the length of the text."""

_BYTES_MAX = 64 << 10
"""A short text is searched at as many levels as have this length together."""

_OF_LIBRARY_MAX = 100
"""The errors that another library is asked for."""

_ITEMS_AT_ONCE = 256
"""Items are converted together up to the next one that fails: they are copied after each."""


class Search:
    """Finds the errors of values of one annotation.

    Args:
        form: The annotation, as `ucall.types.forms` has completed it.
        hook: Builds the parts that ``msgspec`` does not know.
    """

    def __init__(self, form: Any, hook: Callable[[Any, Any], Any]) -> None:
        self._form = form
        self._hook = hook
        self._constructors: dict[Any, Constructor] = {}

    def errors_of(self, document: Any, size: int, limit: int) -> list[Found]:
        """The first errors, at most `limit`, of a value of which the text has `size` bytes."""
        levels = max(_LEVELS_MIN, _BYTES_MAX // size)
        return list(itertools.islice(self._errors(self._form, document, levels), limit))

    def _errors(self, annotation: Any, value: Any, levels: int) -> Iterator[Found]:
        """Yields the errors of a value: those of its parts, or its own."""
        error = self._error(annotation, value)
        if error is None:
            return
        is_own = True
        if levels > 1:
            for found in self._errors_of_parts(_resolved(annotation, value), value, levels - 1):
                is_own = False
                yield found
        if is_own:
            problem, steps = explain_part(annotation, error, value)
            yield from _of_library(problem, steps, error.__cause__)

    def _error(self, annotation: Any, value: Any) -> BaseException | None:
        import msgspec

        try:
            msgspec.convert(value, annotation, str_keys=True, dec_hook=self._hook)
        except msgspec.ValidationError as error:
            return error
        return None

    def _errors_of_parts(self, annotation: Any, value: Any, levels: int) -> Iterator[Found]:
        kind = typing.get_origin(annotation) or annotation
        arguments = typing.get_args(annotation)
        if not isinstance(kind, type) or not isinstance(value, (list, dict)):
            return
        if sort_of(kind) is not None:
            yield from self._errors_of_fields(annotation, value, levels)
        elif isinstance(value, dict) and len(arguments) == 2:
            yield from self._errors_of_items(arguments[1], list(value.items()), levels)
        elif kind is tuple and arguments[-1] is not Ellipsis:
            for (step, item), one in zip(enumerate(value), arguments, strict=False):
                yield from self._errors_at(step, one, item, levels)
        elif isinstance(value, list) and arguments:
            yield from self._errors_of_items(arguments[0], list(enumerate(value)), levels)

    def _errors_at(
        self, step: str | int, annotation: Any, value: Any, levels: int
    ) -> Iterator[Found]:
        for problem, steps in self._errors(annotation, value, levels):
            yield problem, [step, *steps]

    def _errors_of_items(
        self, annotation: Any, items: list[tuple[Any, Any]], levels: int
    ) -> Iterator[Found]:
        """Those of items with one annotation, each with its step."""
        at = 0
        while at < len(items):
            some = items[at : at + _ITEMS_AT_ONCE]
            failing = self._first_failing(annotation, [value for _, value in some])
            if failing is not None:
                yield from self._errors_at(some[failing][0], annotation, some[failing][1], levels)
            at += len(some) if failing is None else failing + 1

    def _first_failing(self, annotation: Any, values: list[Any]) -> int | None:
        error = self._error(list[annotation], values)
        step = None if error is None else _first_step(str(error))
        return step if isinstance(step, int) and step < len(values) else None

    def _errors_of_fields(self, annotation: Any, value: Any, levels: int) -> Iterator[Found]:
        constructor = self._constructor_of(annotation)
        is_list, has_tag = (constructor.options.get(name) for name in ("array_like", "tag"))
        if isinstance(value, dict) and not is_list:
            yield from self._errors_of_members(constructor, value, levels)
        elif isinstance(value, list) and is_list:
            rows = list(enumerate(value))[1 if has_tag else 0 :]
            for argument, (step, item) in zip(constructor.arguments, rows, strict=False):
                yield from self._errors_at(step, argument.annotation, item, levels)

    def _errors_of_members(
        self, constructor: Constructor, value: dict[str, Any], levels: int
    ) -> Iterator[Found]:
        arguments = {it.key: it for it in constructor.arguments}
        for key, item in value.items():
            if key in arguments:
                yield from self._errors_at(key, arguments[key].annotation, item, levels)
            elif _is_refused(constructor, key):
                yield "unexpected", [key]
        for key, argument in arguments.items():
            if argument.is_required and key not in value:
                yield f"missing, expected {_name(argument.annotation)}", [key]

    def _constructor_of(self, annotation: Any) -> Constructor:
        try:
            return self._constructors[annotation]
        except KeyError:
            made = self._constructors[annotation] = constructor_of(annotation)
            return made
        except TypeError:  # It has no hash.
            return constructor_of(annotation)


def _of_library(
    problem: str, steps: list[str | int], cause: BaseException | None
) -> Iterator[Found]:
    """An error of a value, or all errors that another library has found in the part at fault."""
    if not isinstance(cause, PartError):
        yield problem, steps
        return
    outer = steps[: len(steps) - len(cause.steps)]
    for problem, inner in cause.explain(_OF_LIBRARY_MAX):
        yield problem, [*outer, *inner]


def _resolved(annotation: Any, value: Any) -> Any:
    """What builds a value: an annotation without names and metadata, the form of a part, and the
    member of a union that takes such values."""
    while True:
        part = forms.part_in(annotation)
        if typing.get_origin(annotation) is typing.Annotated:
            inner = typing.get_args(annotation)[0]
        elif is_union(annotation):
            members = [it for it in typing.get_args(annotation) if _may_take(it, value)]
            inner = members[0] if len(members) == 1 else None
        elif part is not None and part.form is not None:
            inner = part.form
        else:
            inner = resolve_alias(annotation)
        if inner is annotation:
            return annotation
        annotation = inner


def _may_take(annotation: Any, value: Any) -> bool:
    """Whether a member of a union is the one for a list or a dict: it has that form, and the tag
    of the value."""
    annotation = _resolved(annotation, value)
    kind = typing.get_origin(annotation) or annotation
    if not isinstance(kind, type):
        return False
    if sort_of(kind) == "struct":
        config = kind.__struct_config__  # type: ignore[attr-defined]
        if config.array_like != isinstance(value, list):
            return False
        return config.tag is None or _tag_in(value, config) == config.tag
    if sort_of(kind) == "namedtuple":
        return isinstance(value, list)
    is_dict = sort_of(kind) is not None or issubclass(kind, collections.abc.Mapping)
    is_list = not is_dict and issubclass(kind, collections.abc.Collection)
    return (
        is_dict
        if isinstance(value, dict)
        else is_list and not issubclass(kind, (str, bytes, bytearray, memoryview))
    )


def _tag_in(value: Any, config: Any) -> Any:
    if isinstance(value, dict):
        return value.get(config.tag_field)
    return value[0] if value else None


def _is_refused(constructor: Constructor, key: str) -> bool:
    options = constructor.options
    is_known = key == options.get("tag_field") or not options.get("forbid_unknown_fields")
    return key in constructor.refused or not is_known


def _name(annotation: Any) -> str:
    return described(info_of(annotation))


def _first_step(message: str) -> str | int | None:
    found = STEP.match(parsed(message)[1])
    return None if found is None else int(found[2]) if found[2] else found[1]
