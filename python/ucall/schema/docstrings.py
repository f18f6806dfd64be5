"""Reads docstrings: by ``docstring-parser`` if it is installed, else as a summary and the rest."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field

from ucall._functions.signatures import underlying_function

__all__ = ["Docs", "read_docs"]


@dataclass(frozen=True)
class Docs:
    """What a docstring says. Texts that it lacks are empty."""

    summary: str = ""
    description: str = ""
    params: dict[str, str] = field(default_factory=dict)
    result: str = ""
    #: The names of exceptions, and when they are raised.
    raises: list[tuple[str, str]] = field(default_factory=list)
    is_deprecated: bool = False


def read_docs(function: Callable[..., object]) -> Docs:
    """Reads the docstring of a function, in the style of Google, NumPy or Sphinx."""
    text = inspect.getdoc(underlying_function(function)) or ""
    if not text:
        return Docs()
    if importlib.util.find_spec("docstring_parser") is None:
        return _split(text)
    return _parsed(text)


def _split(text: str) -> Docs:
    summary, _, rest = text.partition("\n\n")
    return Docs(_in_one_line(summary), rest.strip())


def _parsed(text: str) -> Docs:
    import docstring_parser

    try:
        parsed = docstring_parser.parse(text)
    except Exception:  # Some texts cause others than its ParseError.
        return _split(text)
    summary, rest = parsed.short_description or "", parsed.long_description or ""
    if rest and not parsed.blank_after_short_description:
        first, _, rest = rest.partition("\n\n")
        summary = f"{summary} {first}"
    return Docs(
        summary=_in_one_line(summary),
        description=rest.strip(),
        params={param.arg_name: _text(param.description) for param in parsed.params},
        result=_text(parsed.returns.description) if parsed.returns else "",
        raises=[(it.type_name or "", _text(it.description)) for it in parsed.raises],
        is_deprecated=parsed.deprecation is not None,
    )


def _text(description: str | None) -> str:
    return (description or "").strip()


def _in_one_line(text: str) -> str:
    return " ".join(text.split())
