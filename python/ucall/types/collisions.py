"""Refuses dict keys and set items with many hash collisions.

Python randomizes the hash of a str, but not of a number: all multiples of 2**61 - 1 have one hash,
and the hashes of UUIDs, decimals and tuples derive from numbers. Each key of a dict, or item of a
set, is compared with all earlier ones of the same hash, so that a megabyte of colliding numbers
takes seconds, and 16 MiB half an hour. Long texts are therefore checked before a dict or a set is
built of them.

The check ignores the type: it hashes each item as the number that it can be parsed as, else as a
str. Only a few spellings of one number collide by chance.
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

from ucall.types.parts import parts_of

if TYPE_CHECKING:
    from ucall.types.messages import Explained

__all__ = ["with_collision_check"]

Decode: TypeAlias = Callable[[bytes], Any]
Explain: TypeAlias = Callable[[BaseException, bytes, int], "Explained"]

_TEXT_BYTES_MIN = 16 << 10
"""A shorter text holds too few items to take long."""

_COLLISIONS_MAX = 100
"""Different items of one list or dict with one hash."""

_DIGITS_MAX = 4300
"""Python's limit. The decoder refuses longer numbers."""

_RANDOMIZED_HASH_TYPES = (str, bytes)

_UUID = re.compile(r"(?:urn:uuid:)?\{?([0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12})\}?", re.I)
_NUMBER = re.compile(r"[\s+-]*[0-9.][0-9_.]*(?:e[+-]?[0-9]+)?\s*", re.I)


class _Colliding(ValueError):
    pass


def with_collision_check(
    annotation: Any, decode: Decode, explain: Explain
) -> tuple[Decode, Explain]:
    """Adds the check to a decoder and its `explain`, if the annotation has sets or such dicts."""
    if not _hashes_numbers(annotation, set()):
        return decode, explain

    def decode_checked(raw: bytes) -> Any:
        if len(raw) >= _TEXT_BYTES_MIN:
            _check(_parsed(raw))
        return decode(raw)

    def explain_checked(error: BaseException, raw: bytes, limit: int) -> Explained:
        is_colliding = isinstance(error, _Colliding)
        return [(str(error), [])] if is_colliding else explain(error, raw, limit)

    return decode_checked, explain_checked


def _hashes_numbers(annotation: Any, seen: set[int]) -> bool:
    """Whether it contains a set, or a dict with keys other than strings, at any depth."""
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
    """The annotations of a class's fields."""
    if not (dataclasses.is_dataclass(kind) or hasattr(kind, "__annotations__")):
        return ()
    try:
        return typing.get_type_hints(kind, include_extras=True).values()
    except (NameError, TypeError):
        return (set[Any],)  # Unknown fields may contain one.


def _parsed(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except ValueError:  # A number exceeds the limit of digits.
        return json.loads(raw, parse_int=lambda digits: int(digits[:_DIGITS_MAX]))


def _check(value: Any) -> None:
    """Raises if a list or dict in the value has too many items or keys with one hash."""
    rest = [value]
    while rest:
        value = rest.pop()
        items: list[Any] = list(value.values()) if isinstance(value, dict) else value
        hashed = value if isinstance(value, dict) else items
        if len(hashed) > _COLLISIONS_MAX and _largest_collision(hashed) > _COLLISIONS_MAX:
            raise _Colliding(f"expected at most {_COLLISIONS_MAX} keys or items that hash alike")
        rest += [item for item in items if isinstance(item, (list, dict))]


def _largest_collision(items: Iterable[Any]) -> int:
    """The number of different items with the most frequent hash."""
    hashes = list(map(_hash, items))
    most = {found for found, count in Counter(hashes).items() if count > _COLLISIONS_MAX}
    different = {
        (found, repr(it)) for found, it in zip(hashes, items, strict=True) if found in most
    }
    return max(Counter(found for found, _ in different).values(), default=0)


def _hash(item: Any) -> int:
    """The hash of the object that an item may be decoded to."""
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
