"""Where an application may be mounted."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

__all__ = ["Application", "checked_prefix"]

Message = MutableMapping[str, Any]
#: ASGI 3: ``await app(scope, receive, send)``.
Application = Callable[
    [
        MutableMapping[str, Any],
        Callable[[], Awaitable[Message]],
        Callable[[Message], Awaitable[None]],
    ],
    Awaitable[None],
]

_PATH = re.compile(r"/[!-~]*")


def checked_prefix(path: str, app: object) -> str:
    """The path of an application without the ``/`` at its end: empty for ``/``.

    Raises:
        TypeError: The application cannot be called.
        ValueError: No request has such a path.
    """
    if not callable(app):
        raise TypeError(f"app: expected an ASGI application, got {type(app).__name__}")
    if not _PATH.fullmatch(path) or any(mark in path for mark in "?#*") or "//" in path:
        raise ValueError(
            f"path: expected '/', or one such as '/app', percent-encoded; got {path!r}"
        )
    return path.rstrip("/")
