"""The params of the command line."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ucall._cli.values import (
    NAME,
    TYPES,
    InexactNumberError,
    UsageError,
    infer,
    parse_as,
    shortened,
)
from ucall.types.images import FORMATS, sniff_format

if TYPE_CHECKING:
    from ucall._cli.typed import TypedParams

__all__ = ["Params"]

_STANDARD_INPUT = "@-"


class Params:
    """Params by position or by name.

    Args:
        words: Params as ``name=value``, or values by position.
        others: Pairs of ``"file"``, ``"image"``, ``"named"`` or ``"positional"`` and a text.
        typed: The types that the server describes, for values without a type.

    Raises:
        UsageError: A value is not of its type, a file cannot be read, params are given both by
            position and by name, or the order of those by position is not known.
    """

    def __init__(
        self,
        words: Iterable[str],
        others: Iterable[tuple[str, str]],
        typed: TypedParams | None = None,
    ) -> None:
        self.positional: list[object] = []
        self.named: dict[str, object] = {}
        self._typed = typed
        self._has_read_input = False
        for text in words:
            self._add(*self._parse_word(text))
        word_count = len(self.positional)
        for kind, text in others:
            self._add(*self._parse_other(kind, text))
        if 0 < word_count < len(self.positional):
            raise UsageError(
                "words and options give params by position, in an order that is not known: "
                "put the words after --positional"
            )
        if self.positional and self.named:
            raise UsageError(
                f"params go by position or by name, not both: {next(iter(self.named))} has a name"
            )
        if typed is not None:
            typed.check(len(self.positional), self.named)

    def _add(self, name: str | None, value: object) -> None:
        if name is None:
            self.positional.append(value)
        elif name in self.named:
            raise UsageError(f"{name} is given twice")
        else:
            self.named[name] = value

    def _parse_word(self, text: str) -> tuple[str | None, object]:
        """Parses ``name=value``, or a value by position: JSON, text, or the file of ``@path``."""
        if "=" in text and text[0] not in "[{":
            return self._parse_named(text)
        if self._typed is not None or text == _STANDARD_INPUT or not text.startswith("@"):
            return None, self._positional(text)
        try:
            return None, self._read_file(text.removeprefix("@"))
        except UsageError as error:
            raise UsageError(f"{error}; --positional {text} sends the text itself") from None

    def _parse_named(self, text: str) -> tuple[str, object]:
        """Parses ``name=value``, ``name=@path`` or ``name:type=value``.

        The value may contain ``=`` and ``:``.
        """
        head, found, value = text.partition("=")
        name, typed, kind = head.partition(":")
        if not found or not name:
            raise UsageError(f"expected name=value, got {text!r}; use --positional {text!r}?")
        if typed and kind not in TYPES:
            raise UsageError(f"{name}: expected a type of {', '.join(TYPES)}, got {kind!r}")
        if self._typed is not None and not typed:
            if value == _STANDARD_INPUT and not self._typed.is_binary(name):
                value = self._standard_input().decode(errors="replace")
            return name, self._typed.parse_named(name, value, self._read_file)
        if value == _STANDARD_INPUT:
            data = self._standard_input()
            if kind == "text":
                return name, data
            if not typed or kind == "str":
                return name, _text_or_bytes(data)
            value = data.decode(errors="replace").strip()
        if not typed and value.startswith("@"):
            return name, self._named_file(name, value)
        try:
            return name, parse_as(kind, value)
        except InexactNumberError as error:
            raise UsageError(f"{name}: {error}") from None
        except ValueError:
            raise UsageError(f"{name}: {shortened(value)} is not of type {kind}") from None

    def _named_file(self, name: str, value: str) -> bytes:
        try:
            return self._read_file(value.removeprefix("@"))
        except UsageError as error:
            raise UsageError(f"{error}; {name}:str={value} sends the text itself") from None

    def _parse_other(self, kind: str, text: str) -> tuple[str | None, object]:
        if kind == "positional":
            return None, self._positional(text)
        if kind == "named":
            return self._parse_named(text)
        name, found, path = text.partition("=")
        if not found or not NAME.fullmatch(name):
            name, path = "", text
        try:
            data = self._read_file(path)
        except UsageError as error:
            hint = f"; {name}:str={path} sends the text itself" if name else ""
            raise UsageError(f"{error}{hint}") from None
        if kind == "image" and sniff_format(data) is None:
            raise UsageError(f"{path}: no image in any of the formats {', '.join(FORMATS)}")
        return name or None, data

    def _read_file(self, path: str) -> bytes:
        data = self._read(path)
        if path.endswith(".npy") and not data.startswith(b"\x93NUMPY"):
            raise UsageError(f"{path}: not a .npy file")
        return data

    def _positional(self, text: str) -> object:
        if self._typed is not None:
            position = len(self.positional)
            if text == _STANDARD_INPUT and not self._typed.is_binary(position):
                text = self._standard_input().decode(errors="replace")
            return self._typed.parse_positional(position, text, self._read_file)
        if text == _STANDARD_INPUT:
            return _text_or_bytes(self._standard_input())
        return infer(text)

    def _read(self, path: str) -> bytes:
        if path == "-":
            return self._standard_input()
        try:
            with open(path, "rb") as file:
                return file.read()
        except OSError as error:
            raise UsageError(f"{path}: {error.strerror}") from None
        except ValueError as error:
            raise UsageError(f"{path!r}: {error}") from None

    def _standard_input(self) -> bytes:
        if self._has_read_input:
            raise UsageError("standard input can be read only once")
        if sys.stdin is None:
            raise UsageError("standard input is closed")
        self._has_read_input = True
        return sys.stdin.buffer.read()


def _text_or_bytes(data: bytes) -> str | bytes:
    """Text if the data is valid UTF-8, with its last newline; else the bytes."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data
