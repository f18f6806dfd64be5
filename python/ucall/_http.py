"""Routes: functions that answer HTTP requests other than calls."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from ucall import _signature
from ucall._response import as_response, collected, whole

if TYPE_CHECKING:
    from ucall._core import HttpRequest

__all__ = ["METHODS", "adapt", "checked_methods", "checked_path"]

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")

Responder = Callable[["HttpRequest"], Any]

_PATH = re.compile(r"/[!-~]*")


def adapt(function: Responder, path: str) -> tuple[Responder, bool]:
    """A function that returns the bytes of a response; and whether it is async.

    Raises:
        TypeError: It cannot be called.
    """
    if not callable(function):
        raise TypeError(f"{path}: expected a function, got {type(function).__name__}")
    if _signature.is_async(function):

        @functools.wraps(function)
        async def respond_later(request: HttpRequest) -> bytes:
            return await collected(as_response(await function(request), path))

        return respond_later, True
    if inspect.isasyncgenfunction(function):

        @functools.wraps(function)
        async def collect_later(request: HttpRequest) -> bytes:
            return await collected(as_response(function(request), path))

        return collect_later, True

    @functools.wraps(function)
    def respond(request: HttpRequest) -> bytes:
        return whole(as_response(function(request), path))

    return respond, False


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
