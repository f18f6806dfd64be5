"""Completes commands in shells: ``ucall --completion bash``.

The script of a shell runs ``ucall __complete SHELL WORD...`` with the words up to the cursor, which
prints a candidate a line, in zsh and fish with a tab and its description. Options come from the
parser. Methods and params come from the server, which has `_TIMEOUT_S` to reply; its answer is kept
in a file for `_KEPT_S`, so that a shell asks once. Nothing here fails or prints an error, because
that would be printed into the line that the user types.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib.resources
import io
import json
import os
import shlex
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from ucall._cli import shell
from ucall._cli.arguments import new_parser

if TYPE_CHECKING:
    from ucall._openrpc import Document
    from ucall.client import Client

__all__ = ["complete", "kept_of", "script"]

_TIMEOUT_S = 1.0
_KEPT_S = 60.0
#: A server that did not reply gets no request for this time.
_FAILURE_KEPT_S = 5.0
_VALUE_OPTIONS_MAX = 50

Candidate: TypeAlias = tuple[str, str]
"""A word and its description."""

NewClient: TypeAlias = "Callable[[argparse.Namespace], Client]"


def script(name: str) -> str:
    """The script that completes commands in a shell."""
    files = importlib.resources.files("ucall._cli")
    return files.joinpath("shells", f"ucall.{name}").read_text(encoding="utf-8")


def complete(arguments: Sequence[str], new_client: NewClient) -> str:
    """The candidates for the last word, in the form that the shell's script expects."""
    name, *words = arguments or [""]
    with contextlib.suppress(Exception), contextlib.redirect_stderr(io.StringIO()):
        if name == "bash":
            return "".join(f"{word}\n" for word in _bash(words, new_client))
        found = _candidates(words or [""], new_client)
        return "".join(f"{word}\t{_one_line(about)}\n" for word, about in found)
    return ""


def _bash(arguments: Sequence[str], new_client: NewClient) -> Iterator[str]:
    """bash replaces only a part of a word: what follows the quote that is still open, or else the
    last of its word breaks. It keeps an @ as a part of the word."""
    line, breaks = arguments
    words = _split(line)[1:] or [""]
    quote, before = _open_quote(line)
    if quote:
        kept = len(_split(before)[-1])
    else:
        kept = max((words[-1].rfind(it) + (it != "@") for it in breaks if it in "=:@"), default=0)
    for word, _ in _candidates(words, new_client):
        yield shell.completed(word[max(kept, 0) :], quote)


def _open_quote(line: str) -> tuple[str, str]:
    """The quote that is open at the end of a line, or nothing, and the line before it."""
    quote, start, position = "", 0, 0
    while position < len(line):
        letter = line[position]
        if letter == "\\" and quote != "'":
            position += 1
        elif letter == quote:
            quote = ""
        elif letter in "'\"" and not quote:
            quote, start = letter, position
        position += 1
    return quote, line[:start]


def _split(line: str) -> list[str]:
    """The words of a line that may end within quotes; the last one may be empty."""
    for ending in ("", "'", '"'):
        with contextlib.suppress(ValueError):
            words = shlex.split(line + ending)
            is_within = bool(ending) or not line[-1:].isspace()
            return words if line and is_within else [*words, ""]
    return line.split(" ")


def _candidates(words: Sequence[str], new_client: NewClient) -> list[Candidate]:
    *before, word = words
    parser = new_parser()
    option = _option_with_value(parser, before)
    if option is not None:
        found = [(str(choice), "") for choice in option.choices or ()]
    elif word.startswith("-"):
        found = [(name, it.help or "") for it in parser._actions for name in it.option_strings]
    else:
        found = _of_server(parser, before, word, new_client)
    return [(name, about) for name, about in found if name.startswith(word)]


def _option_with_value(
    parser: argparse.ArgumentParser, before: Sequence[str]
) -> argparse.Action | None:
    """The option whose value is the next word, if the last word needs one."""
    option = parser._option_string_actions.get(before[-1]) if before else None
    return None if option is None or option.nargs == 0 else option


def _of_server(
    parser: argparse.ArgumentParser, before: Sequence[str], word: str, new_client: NewClient
) -> list[Candidate]:
    try:
        options = parser.parse_intermixed_args(before)
    except SystemExit:  # The words so far are wrong.
        return []
    methods = _methods(options, new_client)
    if options.method is None:
        found = ((name, method["summary"]) for name, method in methods.items())
        return [(name, about) for name, about in found if shell.is_method(name)]
    params = methods.get(options.method, {}).get("params", {})
    name, has_value, _ = word.partition("=")
    if has_value:
        texts = map(shell.choice_text, params.get(name, {}).get("choices", ()))
        return [(f"{name}={text}", "") for text in texts if text is not None]
    given = {text.partition("=")[0].partition(":")[0] for text in options.kwargs}
    found = ((it, about["type"]) for it, about in params.items() if it not in given)
    return [(f"{it}=", about) for it, about in found if shell.is_param(it)]


def _methods(options: argparse.Namespace, new_client: NewClient) -> dict[str, Any]:
    """What completion needs of each method, from the file or from the server."""
    path = _kept_path(options)
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        kept = json.loads(path.read_text())
        if time.time() < kept["expires"]:
            return dict(kept["methods"])
    try:
        methods, seconds = _ask(options, new_client), _KEPT_S
    except Exception:  # No server, no description, a refusal.
        methods, seconds = {}, _FAILURE_KEPT_S
    with contextlib.suppress(OSError):
        _keep(path, {"expires": time.time() + seconds, "methods": methods})
    return methods


def _ask(options: argparse.Namespace, new_client: NewClient) -> dict[str, Any]:
    from ucall._cli import description

    options.timeout = min(options.timeout, _TIMEOUT_S)
    with new_client(options) as client:
        return kept_of(description.ask(client))


def kept_of(document: Document) -> dict[str, Any]:
    """What completion keeps of a description: the methods, their params and the params' values."""
    from ucall._cli.type_names import type_name

    def describe(schema: Any) -> Any:
        resolved = document.resolve(schema)
        choices = (True, False) if resolved.types == ("boolean",) else resolved.choices
        return {"type": type_name(document, schema), "choices": choices[:_VALUE_OPTIONS_MAX]}

    return {
        method.name: {
            "summary": method.summary,
            "params": {param.name: describe(param.schema) for param in method.params},
        }
        for method in document.methods.values()
    }


def _kept_path(options: argparse.Namespace) -> Path:
    """A file for each server and each caller, as a server may show callers different methods."""
    key = [options.uri, options.port, options.tcp, options.udp, options.header, options.cert]
    name = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:32]
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "ucall" / f"{name}.json"


def _keep(path: Path, value: object) -> None:
    """Replaces the file at once, readable by its owner alone."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent)
    with open(descriptor, "w", encoding="utf-8") as file:
        json.dump(value, file)
    os.replace(temporary, path)


def _one_line(text: str) -> str:
    """A text without the tabs and control characters that would end the candidate."""
    return " ".join("".join(it if it.isprintable() else " " for it in text).split())
