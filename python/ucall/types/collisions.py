"""Refuses keys and items that were chosen so that Python hashes them alike.

A str is hashed with a secret, a number is not: multiples of 2**61 - 1 have one hash, and UUIDs,
decimals and tuples are made of numbers. As keys of one dict, or items of one set, each is compared
with all before it, so that a megabyte would keep the server busy for seconds and 16 for half an
hour. So a long text is looked at before such a type is built of it.

The look knows nothing of the type: it takes each item for whatever number it can be read as, and
strings that are none for themselves. What hashes alike by chance is a handful of ways to write the
same number.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import decimal
import json
import re
import typing
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

from ucall.types.annotations import parts_of

if TYPE_CHECKING:
    from ucall.types.registry import Explained

__all__ = ["with_collision_check"]

Decode: TypeAlias = Callable[[bytes], Any]
Explain: TypeAlias = Callable[[BaseException, bytes], "Explained"]

_TEXT_BYTES_MIN = 16 << 10
"""A text that is no longer can hold too few to matter."""

_COLLISIONS_MAX = 100
"""Different items of one list or dict that may have one hash."""

_DIGITS_MAX = 4300
"""As Python has it. Longer ones are refused by whoever builds the value."""

_RANDOMIZED_HASH_TYPES = (str, bytes)

_UUID = re.compile(r"(?:urn:uuid:)?\{?([0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12})\}?", re.I)
_NUMBER = re.compile(r"[\s+-]*[0-9.][0-9_.]*(?:e[+-]?[0-9]+)?\s*", re.I)


class _Colliding(ValueError):
    pass


def with_collision_check(
    annotation: Any, decode: Decode, explain: Explain
) -> tuple[Decode, Explain]:
    """Both as they are, or with that look before, if the annotation has any use for it."""
    if not _hashes_numbers(annotation, set()):
        return decode, explain

    def decode_checked(raw: bytes) -> Any:
        if len(raw) >= _TEXT_BYTES_MIN:
            _check(_parsed(raw))
        return decode(raw)

    def explain_checked(error: BaseException, raw: bytes) -> Explained:
        return (str(error), []) if isinstance(error, _Colliding) else explain(error, raw)

    return decode_checked, explain_checked


def _hashes_numbers(annotation: Any, seen: set[int]) -> bool:
    """Whether it has a set, or a dict with other keys than strings, at any depth."""
    for part in parts_of(annotation):
        kind = typing.get_origin(part) or part
        if not isinstance(kind, type) or id(part) in seen:
            continue
        seen.add(id(part))
        first = (*typing.get_args(part), None)[0]
        if issubclass(kind, collections.abc.Set) and first not in _RANDOMIZED_HASH_TYPES:
            return True
        if issubclass(kind, collections.abc.Mapping) and first not in (*_JSON_KEYS, None):
            return True
        if any(_hashes_numbers(hint, seen) for hint in _fields(kind)):
            return True
    return False


_JSON_KEYS = (*_RANDOMIZED_HASH_TYPES, Any)


def _fields(kind: type) -> Iterable[Any]:
    """The types of a class's own fields."""
    if not (dataclasses.is_dataclass(kind) or hasattr(kind, "__annotations__")):
        return ()
    try:
        return typing.get_type_hints(kind, include_extras=True).values()
    except (NameError, TypeError):
        return (set[Any],)  # Nobody knows: it may have one.


def _parsed(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except ValueError:  # A number has too many digits.
        return json.loads(raw, parse_int=lambda digits: int(digits[:_DIGITS_MAX]))


def _check(value: Any) -> None:
    """Raises if any list or dict in the value has too many items, or keys, that hash alike."""
    rest = [value]
    while rest:
        value = rest.pop()
        items: list[Any] = list(value.values()) if isinstance(value, dict) else value
        hashed = value if isinstance(value, dict) else items
        if len(hashed) > _COLLISIONS_MAX and _largest_collision(hashed) > _COLLISIONS_MAX:
            raise _Colliding(f"expected at most {_COLLISIONS_MAX} keys or items that hash alike")
        rest += [item for item in items if isinstance(item, (list, dict))]


def _largest_collision(items: Iterable[Any]) -> int:
    """How many different items have the most frequent hash."""
    hashes = list(map(_hash, items))
    most = {found for found, count in Counter(hashes).items() if count > _COLLISIONS_MAX}
    different = {
        (found, repr(it)) for found, it in zip(hashes, items, strict=True) if found in most
    }
    return max(Counter(found for found, _ in different).values(), default=0)


def _hash(item: Any) -> int:
    """The hash of what may be built of an item."""
    if isinstance(item, str):
        return _hash_of_text(item)
    if isinstance(item, dict):
        item = list(item.values())
    return hash(tuple(map(_hash, item)) if isinstance(item, list) else item)


def _hash_of_text(text: str) -> int:
    uuid = _UUID.fullmatch(text)
    if uuid:
        return hash(int(uuid[1].replace("-", ""), 16))
    if len(text) > _DIGITS_MAX or not _NUMBER.fullmatch(text):
        return hash(text)
    try:
        return hash(decimal.Decimal(text))
    except (ArithmeticError, ValueError):
        return hash(text)
