"""Wraps the texts of a description for people."""

from __future__ import annotations

import textwrap

__all__ = ["wrap"]

_INDENT_MAX = 40


def wrap(text: str, columns: int, indent: str = "") -> list[str]:
    """The lines of a text; `indent` precedes those after the first.

    It does not break at hyphens: to find them in a text of hyphens takes time that grows with the
    square of its length.
    """
    indent = indent[:_INDENT_MAX]
    return textwrap.wrap(text, columns, subsequent_indent=indent, break_on_hyphens=False)
