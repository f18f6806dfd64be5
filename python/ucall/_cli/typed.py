"""Gives params the types that the server describes: ``--typed``."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from ucall._cli.type_names import type_name
from ucall._cli.validate import problem_with
from ucall._cli.values import (
    InexactNumberError,
    UsageError,
    exact_json,
    is_number,
    parse_as,
    shortened,
)
from ucall._openrpc import DescriptionError, Document, Method, Param, Schema, Subschema, branches

__all__ = ["TypedParams"]

#: The types of ``name:type=value`` by those of JSON Schema.
_TYPES = {
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "string": "str",
    "null": "json",
    "array": "json",
    "object": "json",
}
#: Unions within unions are parsed to this depth.
_DEPTH_MAX = 32


class TypedParams:
    """The params of one method, as the server describes them."""

    def __init__(self, document: Document, method: Method) -> None:
        self._document = document
        self._method = method
        self._params = {param.name: param for param in method.params}

    def check(self, positional_count: int, names: Collection[str]) -> None:
        """Checks that no param is missing, unknown, or too many.

        Raises:
            UsageError: The message names the param and its type.
        """
        for name in names:
            self._named(name)
        if positional_count:
            self._positional(positional_count - 1)
        for param in self._method.params[positional_count:]:
            if param.is_required and param.name not in names:
                kind = type_name(self._document, param.schema)
                raise UsageError(f"{param.name}: missing, expected {kind}")

    def parse_named(self, name: str, text: str, read: Callable[[str], bytes]) -> object:
        """Parses a param by name. `read` returns the bytes of a file.

        Raises:
            UsageError: The value is of another type; the message names the param and its type.
        """
        return self._parse(replace(self._named(name), name=name), text, read)

    def parse_positional(self, position: int, text: str, read: Callable[[str], bytes]) -> object:
        """Parses a param by position. See `parse_named`."""
        return self._parse(self._positional(position), text, read)

    def is_binary(self, key: str | int) -> bool:
        """Whether a param takes data in base64."""
        param = self._positional(key) if isinstance(key, int) else self._named(key)
        return bool(self._document.resolve(param.schema).binary)

    def _positional(self, position: int) -> Param:
        params, rest = self._method.params, self._method.rest("positional")
        if position < len(params):
            return params[position]
        if rest is None:
            raise UsageError(f"{self._method.name} takes {len(params)} params, got more")
        return rest

    def _named(self, name: str) -> Param:
        param = self._params.get(name) or self._method.rest("named")
        if param is None:
            known = f"it has {', '.join(self._params)}" if self._params else "it has none"
            raise UsageError(f"{name}: {self._method.name} has no such param; {known}")
        return param

    def _parse(self, param: Param, text: str, read: Callable[[str], bytes]) -> object:
        expected = f"{param.name}: expected {type_name(self._document, param.schema)}"
        try:
            value = self._parse_by(param.schema, text, read)
        except InexactNumberError as error:
            raise UsageError(f"{param.name}: {error}") from None
        except UsageError as error:
            raise UsageError(f"{expected} from a file: {error}") from None
        except DescriptionError:
            raise
        except (ValueError, RecursionError):
            raise UsageError(f"{expected}, got {shortened(text)}") from None
        problem = problem_with(self._document, param.schema, value)
        if problem is not None and not isinstance(value, bytes):
            raise UsageError(f"{param.name}{problem}")
        return value

    def _parse_by(
        self,
        schema: Subschema | Schema,
        text: str,
        read: Callable[[str], bytes],
        depth: int = 0,
    ) -> object:
        resolved = self._document.resolve(schema)
        takes_digits = resolved.format == "decimal" and "string" in resolved.types
        if takes_digits and is_number(text.strip()):
            return text.strip()  # As a number it would be a float.
        if parts := branches(resolved):
            return self._parse_union(parts, text, read, depth)
        if resolved.binary:
            return read(text.removeprefix("@"))
        if not resolved.types and resolved.choices:
            return text if text in resolved.choices else parse_as("", text)
        kind = _TYPES.get(resolved.types[0], "") if resolved.types else ""
        if kind == "json":
            return exact_json(text.strip())
        return parse_as(kind, text if kind == "str" else text.strip())

    def _parse_union(
        self,
        parts: list[Subschema | Schema],
        text: str,
        read: Callable[[str], bytes],
        depth: int,
    ) -> object:
        """Parses by the first alternative that fits. Files and text, which all fit, are last."""
        for part in sorted(parts, key=self._rank) if depth < _DEPTH_MAX else ():
            try:
                value = self._parse_by(part, text, read, depth + 1)
            except DescriptionError:
                raise
            except (ValueError, RecursionError):
                continue
            if isinstance(value, bytes) or problem_with(self._document, part, value) is None:
                return value
        raise ValueError(text)

    def _rank(self, part: Subschema | Schema) -> int:
        resolved = self._document.resolve(part)
        return 1 if resolved.binary else 2 * ("string" in resolved.types)
