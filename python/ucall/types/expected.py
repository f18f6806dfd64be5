"""Names types for messages: ``int >= 0``, ``Point (dict)``, ``one of 'a', 'b'``.

It reads the type descriptions of ``msgspec.inspect``.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import Any

__all__ = ["described", "nodes"]

_CHOICES_MAX = 10

_NAMES = {
    "AnyType": "any value",
    "NoneType": "None",
    "BoolType": "bool",
    "IntType": "int",
    "FloatType": "float",
    "StrType": "str",
    "BytesType": "bytes in base64",
    "ByteArrayType": "bytes in base64",
    "MemoryViewType": "bytes in base64",
    "DateTimeType": "datetime (RFC 3339)",
    "DateType": "date (RFC 3339)",
    "TimeType": "time (RFC 3339)",
    "TimeDeltaType": "timedelta (ISO 8601)",
    "UUIDType": "UUID",
    "DecimalType": "Decimal",
    "RawType": "any value",
}

_BOUNDS = (("gt", ">"), ("ge", ">="), ("lt", "<"), ("le", "<="))


def described(info: Any) -> str:
    """The name of a type with its constraints."""
    kind = type(info).__name__
    if kind == "Metadata":
        return described(info.type)
    if kind in _NAMES:
        return " ".join((_NAMES[kind], *_bounds(info)))
    describe = _COMPOSED.get(kind, _class)
    return " ".join((describe(info), *_bounds(info)))


def nodes(node: Any, where: str, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """Yields a type's description and all its parts, each with the name of its field."""
    if id(node) in seen:
        return
    seen.add(id(node))
    yield where, node
    for name in getattr(node, "__struct_fields__", ()):
        parts = getattr(node, name)
        for part in parts if isinstance(parts, tuple) else (parts,):
            if type(part).__name__ == "Field":
                yield from nodes(part.type, f"{node.cls.__name__}.{part.encode_name}: ", seen)
            elif type(part).__module__ == "msgspec.inspect":
                yield from nodes(part, where, seen)


def _bounds(info: Any) -> list[str]:
    bounds = [
        f"{sign} {getattr(info, name)}"
        for name, sign in _BOUNDS
        if getattr(info, name, None) is not None
    ]
    if getattr(info, "multiple_of", None) is not None:
        bounds.append(f"a multiple of {info.multiple_of}")
    if getattr(info, "pattern", None) is not None:
        bounds.append(f"matching {info.pattern!r}")
    bounds.extend(_lengths(info))
    if getattr(info, "tz", None) is not None:
        bounds.append("with a timezone" if info.tz else "without a timezone")
    return bounds[:1] + [f"and {bound}" for bound in bounds[1:]]


def _lengths(info: Any) -> list[str]:
    least, most = getattr(info, "min_length", None), getattr(info, "max_length", None)
    if least is not None and least == most:
        return [f"of length {least}"]
    lengths = [] if least is None else [f"of length >= {least}"]
    return lengths if most is None else [*lengths, f"of length <= {most}"]


def _list(info: Any) -> str:
    return f"list[{described(info.item_type)}]"


def _set(info: Any) -> str:
    return f"set[{described(info.item_type)}] (list)"


def _tuple(info: Any) -> str:
    items = ", ".join(described(item) for item in info.item_types)
    return f"tuple[{items}] (list of length {len(info.item_types)})"


def _dict(info: Any) -> str:
    return f"dict[{described(info.key_type)}, {described(info.value_type)}]"


def _union(info: Any) -> str:
    return " | ".join(described(one) for one in info.types)


def _enum(info: Any) -> str:
    values = [member.value for member in info.cls]
    return f"flags of {_some(values)}" if issubclass(info.cls, enum.Flag) else _choice(values)


def _literal(info: Any) -> str:
    return _choice(list(info.values))


def _choice(values: list[Any]) -> str:
    return f"one of {_some(sorted(values, key=repr))}"


def _some(values: list[Any]) -> str:
    more = ", …" if len(values) > _CHOICES_MAX else ""
    return f"{', '.join(map(repr, values[:_CHOICES_MAX]))}{more}"


def _named_tuple(info: Any) -> str:
    return f"{info.cls.__name__} (list)"


def _class(info: Any) -> str:
    """The name of a class, with its form in JSON if it has fields."""
    name = getattr(getattr(info, "cls", None), "__name__", type(info).__name__)
    if not hasattr(info, "fields"):
        return str(name)
    return f"{name} ({'list' if getattr(info, 'array_like', False) else 'dict'})"


_COMPOSED = {
    "ListType": _list,
    "VarTupleType": _list,
    "CollectionType": _list,
    "SetType": _set,
    "FrozenSetType": _set,
    "TupleType": _tuple,
    "DictType": _dict,
    "UnionType": _union,
    "EnumType": _enum,
    "LiteralType": _literal,
    "NamedTupleType": _named_tuple,
}
