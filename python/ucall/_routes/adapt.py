"""Routes: functions that answer HTTP requests other than calls."""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from ucall._functions import signatures
from ucall._routes.response import as_response, parts, parts_later

if TYPE_CHECKING:
    from ucall._core import HttpRequest

__all__ = ["METHODS", "adapt", "checked_methods", "checked_path"]

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")

Responder = Callable[["HttpRequest"], Any]

_PATH = re.compile(r"/[!-~]*")


def adapt(function: Responder, path: str) -> tuple[Responder, bool]:
    """A generator function that yields the parts of a response; and whether it is async.

    Raises:
        TypeError: It cannot be called.
    """
    if not callable(function):
        raise TypeError(f"{path}: expected a function, got {type(function).__name__}")
    if not signatures.is_async(function):

        def respond(request: HttpRequest) -> Iterator[bytes]:
            yield from parts(as_response(function(request), path), request)

        return respond, False

    async def respond_later(request: HttpRequest) -> AsyncIterator[bytes]:
        result = function(request)
        if inspect.isawaitable(result):
            result = await result
        async with contextlib.aclosing(parts_later(as_response(result, path), request)) as later:
            async for part in later:
                yield part

    return respond_later, True


def checked_path(path: str) -> str:
    """The path of a route.

    Raises:
        ValueError: No request has such a path.
    """
    stem = path.removesuffix("*")
    if not _PATH.fullmatch(stem) or any(mark in stem for mark in "?#*"):
        raise ValueError(
            f"path: expected one such as '/health', or '/files/*' for all that begin with "
            f"'/files/', percent-encoded; got {path!r}"
        )
    return path


def checked_methods(methods: Iterable[str]) -> list[str]:
    """The methods of a route, in capitals.

    Raises:
        TypeError: It is a str.
        ValueError: There is none, or an unknown one.
    """
    if isinstance(methods, str):
        raise TypeError(f"methods: expected a list of names, such as [{methods!r}]; got a str")
    names = [method.upper() for method in methods]
    if not names or any(name not in METHODS for name in names):
        raise ValueError(f"methods: expected some of {', '.join(METHODS)}; got {names}")
    return names
