"""The methods and the schemas of a server."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from ucall._openrpc.budget import Budget, DescriptionError
from ucall._openrpc.schema import Schema, Subschema, mapping, merged, read_schema, text_of

__all__ = ["Document", "Method", "Param"]

_REFERENCES_MAX = 64
_NAME_CHARACTERS_MAX = 1024


@dataclass(frozen=True)
class Param:
    """A param of a method.

    `rest` is ``"positional"`` or ``"named"`` for one that takes all further params; its schema is
    then that of each of them. `default` may be `NO_DEFAULT`.
    """

    name: str
    schema: Subschema
    is_required: bool
    description: str
    default: Any
    rest: str = ""


@dataclass(frozen=True)
class Method:
    """A method of a server.

    `item` is the schema of one item if it is a stream, `returned` that of what it returns at the
    end. `params` are those that are not the rest. `runs` says in words how it runs, or nothing.
    `is_public` of a server that authenticates other callers.
    """

    name: str
    summary: str
    description: str
    params: tuple[Param, ...]
    rests: tuple[Param, ...]
    result: Subschema
    result_description: str
    item: Subschema | None
    returned: Subschema | None
    errors: tuple[tuple[int, str], ...]
    structure: str
    is_deprecated: bool
    runs: str
    is_public: bool
    scopes: tuple[str, ...]
    #: Those that follow the rest by position, and so cannot go by position themselves.
    named_only: frozenset[str] = frozenset()

    def rest(self, kind: str) -> Param | None:
        """The param that takes all further ones: ``"positional"`` or ``"named"``."""
        return next((param for param in self.rests if param.rest == kind), None)

    @property
    def is_by_position(self) -> bool:
        """Whether params must go by position, for most of them to fit."""
        return self.structure == "by-position" or self.rest("positional") is not None

    @property
    def as_called(self) -> Method:
        """The method with those params alone that one call can have: JSON-RPC knows calls by
        position and calls by name, and no mix of both."""
        if not self.is_by_position:
            return self
        rest = self.rest("positional")
        params = tuple(it for it in self.params if it.name not in self.named_only)
        return replace(self, params=params, rests=() if rest is None else (rest,))


class Document:
    """The methods and the schemas of a server.

    Args:
        document: The JSON value of the description.
        clock: The seconds that were spent, for `Budget`.

    Raises:
        DescriptionError: The value is no OpenRPC document, or past its budget; the message names
            the invalid member.
    """

    def __init__(self, document: object, clock: Callable[[], float] = time.thread_time) -> None:
        if not isinstance(document, dict) or not isinstance(document.get("methods"), list):
            raise _invalid("it has no list of methods")
        self._document = document
        self._budget = Budget(document, clock)
        self._schemas: dict[int, tuple[Schema, int]] = {}
        self._read: dict[int, dict[str, Any]] = {}
        self._merging: set[int] = set()
        self.methods: dict[str, Method] = {}
        for position, value in enumerate(document["methods"]):
            method = self._method(self._object(value), f"methods[{position}]")
            self.methods[method.name] = method

    @property
    def title(self) -> str:
        """The title of the server's API, or an empty text."""
        return text_of(mapping(self._document.get("info")), "title")

    @cached_property
    def components(self) -> dict[str, Subschema]:
        """The schemas that others refer to, by name."""
        schemas = mapping(mapping(self._document.get("components")).get("schemas"))
        return {name: Subschema(schema) for name, schema in schemas.items()}

    def resolve(self, schema: Subschema | Schema) -> Schema:
        """Reads a schema: follows its references, and merges those of its ``allOf``.

        Raises:
            DescriptionError: A reference has no target, or refers to itself; or the description is
                past its budget.
        """
        if isinstance(schema, Schema):
            self._budget.spend(schema.characters)
            return schema
        # The value is a part of the document, so no other one gets its id.
        found, characters = self._schemas.get(id(schema.raw)) or self._resolved(schema)
        self._budget.spend(characters)
        return found

    def _resolved(self, schema: Subschema) -> tuple[Schema, int]:
        """The schema, and the characters of it and of the reference to it."""
        target = self._object(schema.raw)
        if target is schema.raw or target is _EMPTY:
            found = Schema(**self._members(target))
        else:
            found = self.resolve(Subschema(target))
        entry = found, found.characters + len(schema.reference)
        self._schemas[id(schema.raw)] = entry
        return entry

    def _object(self, value: object) -> Mapping[str, Any]:
        """The object of a value that may be a reference."""
        reference = ""
        for _ in range(_REFERENCES_MAX):
            found = value if isinstance(value, dict) else _EMPTY
            if not isinstance(found.get("$ref"), str):
                return found
            reference = found["$ref"]
            self._budget.spend(len(reference))
            value = self._target(reference)
        raise _invalid(f"{_named(reference)} refers to itself")

    def _members(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        """The members of a `Schema`, with those of ``allOf``. Each schema is read once."""
        if (found := self._read.get(id(schema))) is not None:
            return found
        found, parts = read_schema(schema), schema.get("allOf")
        if isinstance(parts, list) and parts:
            if id(schema) in self._merging or len(self._merging) > _REFERENCES_MAX:
                raise _invalid("an allOf contains itself, or too many others")
            self._merging.add(id(schema))
            found = merged([*(self._part(part) for part in parts), found])
            self._merging.discard(id(schema))
        self._read[id(schema)] = found
        return found

    def _part(self, value: object) -> dict[str, Any]:
        members = self._members(self._object(value))
        for _ in members.get("properties", ()):  # Each is copied.
            self._budget.spend(0)
        return members

    def _target(self, reference: str) -> object:
        found: object = self._document
        for part in reference.removeprefix("#/").split("/"):
            part = part.replace("~1", "/").replace("~0", "~")
            if not isinstance(found, dict) or part not in found:
                raise _invalid(f"{_named(reference)} has no target")
            found = found[part]
        return found

    def _method(self, value: Mapping[str, Any], place: str) -> Method:
        name, params = value.get("name"), value.get("params", [])
        if not isinstance(name, str) or not name:
            raise _invalid(f"{place} has no name")
        if not isinstance(params, list):
            raise _invalid(f"{place}.params is no list")
        is_stream = value.get("x-stream") is True
        if value.get("x-params-unknown") is True:
            params = _UNKNOWN_PARAMS
        found = self._params(params, place)
        summary, description = text_of(value, "summary"), text_of(value, "description")
        result = self._object(value.get("result"))
        return Method(
            _checked(name, place),
            summary or description.partition("\n")[0],
            description,
            tuple(param for param in found if not param.rest),
            tuple(param for param in found if param.rest),
            Subschema(result.get("schema")),
            text_of(result, "description"),
            Subschema(value.get("x-item")) if is_stream else None,
            Subschema(value["x-returned"]) if is_stream and "x-returned" in value else None,
            tuple(self._errors(value.get("errors"))),
            text_of(value, "paramStructure") or "either",
            value.get("deprecated") is True,
            text_of(value, "x-runs"),
            value.get("x-auth") is False,
            self._scopes(value.get("x-scopes")),
            frozenset(_after_rest(found)),
        )

    def _scopes(self, value: object) -> tuple[str, ...]:
        scopes = value if isinstance(value, list) else []
        return tuple(it for it in scopes if isinstance(it, str))

    def _params(self, params: list[Any], place: str) -> list[Param]:
        """The params, which all have other names. One takes the rest by position, one by name."""
        found = [self._param(self._object(value), place) for value in params]
        known: set[str] = set()
        for param in found:
            for key in (param.name, f"x-rest: {param.rest}" if param.rest else ""):
                if key in known:
                    raise _invalid(f"{place} has two params {_named(key)}")
                known |= {key} if key else set()
        return found

    def _param(self, value: Mapping[str, Any], place: str) -> Param:
        name = value.get("name")
        if not isinstance(name, str) or not name:
            raise _invalid(f"a param of {place} has no name")
        schema = mapping(value.get("schema"))
        description = text_of(value, "description") or text_of(value, "summary")
        description = description or text_of(schema, "description")
        rest = text_of(value, "x-rest")
        inner = {"positional": "items", "named": "additionalProperties"}.get(rest)
        taken, own = (rest, Subschema(schema.get(inner))) if inner else ("", Subschema(schema))
        is_required = not inner and value.get("required") is True
        default = Subschema(schema).default
        return Param(_checked(name, place), own, is_required, description, default, taken)

    def _errors(self, errors: object) -> Iterator[tuple[int, str]]:
        for error in errors if isinstance(errors, list) else []:
            known = self._object(error)
            code = known.get("code")
            if isinstance(code, int) and not isinstance(code, bool):
                yield code, text_of(known, "message")


#: One object each, so that their schemas are read once.
_EMPTY: Mapping[str, Any] = {}
_UNKNOWN_PARAMS = [{"name": "params", "x-rest": "positional", "schema": {"items": {}}}]


def _after_rest(params: list[Param]) -> Iterator[str]:
    has_rest = False
    for param in params:
        if has_rest and not param.rest:
            yield param.name
        has_rest |= param.rest == "positional"


def _checked(name: str, place: str) -> str:
    if len(name) > _NAME_CHARACTERS_MAX:
        raise _invalid(f"a name of {place} has more than {_NAME_CHARACTERS_MAX} characters")
    return name


def _invalid(problem: str) -> DescriptionError:
    return DescriptionError(f"no OpenRPC document: {problem}")


def _named(text: str) -> str:
    return repr(text if len(text) <= 100 else f"{text[:100]}…")
