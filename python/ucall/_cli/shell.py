"""Words of a command line that come from a server's description.

A server may name its methods, params and values as it likes. A user inserts such a word with a TAB
or copies it from an example, so a word is written here alone, and only if the command takes it for
what it is: a method whose name begins with - would be an option, and a value that begins with @ the
name of a file, whose bytes the server would get. A word with a line break or another control
character is none: it could be no single candidate, and no one could see what it is.
"""

from __future__ import annotations

import json
import re
import shlex

from ucall._cli.values import InexactNumberError, infer

__all__ = [
    "choice_text",
    "completed",
    "file_word",
    "is_method",
    "is_param",
    "method_word",
    "param_word",
    "positional_word",
]


def is_method(name: str) -> bool:
    """Whether a word of the command line can be this method."""
    return bool(name) and name.isprintable() and not name.startswith("-")


def is_param(name: str) -> bool:
    """Whether ``name=value`` can give this param: the name ends at the first ``=`` or ``:``."""
    return is_method(name) and not set("=:") & set(name)


def choice_text(value: object) -> str | None:
    """A value as the text after ``name=``; None if the command would take it for another one."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if text.isprintable() and not text.startswith("@") else None


def method_word(name: str) -> str | None:
    """The word for a method, quoted; None if no word can be it."""
    return shlex.quote(name) if is_method(name) else None


def param_word(name: str, value: object) -> str | None:
    """The word ``name=value``, quoted, with a type if the value needs one; or None."""
    text = _written(value)
    if not is_param(name) or not text.isprintable():
        return None
    needs_type = isinstance(value, str) and not _is_sent_as_text(value)
    if needs_type and value == "@-":  # It is standard input, whatever the type.
        return None
    return f"{shlex.quote(f'{name}:str' if needs_type else name)}={shlex.quote(text)}"


def file_word(name: str, path: str) -> str | None:
    """The word for a param whose value is a file's; or None."""
    return f"{shlex.quote(name)}=@{path}" if is_param(name) else None


def positional_word(value: object) -> str | None:
    """The word of a positional param, quoted; None if it would be an option or a file."""
    text = _written(value)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    is_option = text.startswith("-") and not is_number
    return None if is_option or text == "@-" or not text.isprintable() else shlex.quote(text)


def completed(text: str, quote: str) -> str:
    """A part of a word for bash, which is inserted after the quote that is open, or none."""
    if not quote:
        return shlex.quote(text) if text else ""
    if quote == "'":
        inner = text.replace("'", "'\\''")
    else:
        # A ! in double quotes is one of the history.
        inner = re.sub(r'([\\"$`])', r"\\\1", text).replace("!", "\"'!'\"")
    # The quote stays open if a value is to follow.
    return f"{quote}{inner}{'' if text.endswith('=') else quote}"


def _written(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _is_sent_as_text(value: str) -> bool:
    try:
        return infer(value) == value and not value.startswith("@")
    except InexactNumberError:
        return False
