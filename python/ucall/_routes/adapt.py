"""Routes: functions that answer HTTP requests other than calls."""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from ucall._functions import signatures
from ucall._routes.response import Encode, as_response, parts, parts_later

if TYPE_CHECKING:
    from ucall._core import HttpRequest

__all__ = ["METHODS", "adapt", "check_overlap", "checked_methods", "checked_path"]

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")

Responder = Callable[["HttpRequest"], Any]

_PATH = re.compile(r"/[!-~]*")
_PARAM = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")


def adapt(function: Responder, path: str, encode: Encode) -> tuple[Responder, bool]:
    """A generator function that yields the parts of a response; and whether it is async.

    Args:
        encode: Replaces objects of its results that JSON does not have.

    Raises:
        TypeError: It cannot be called.
    """
    if not callable(function):
        raise TypeError(f"{path}: expected a function, got {type(function).__name__}")
    if not signatures.is_async(function):

        def respond(request: HttpRequest) -> Iterator[bytes]:
            try:
                yield from parts(as_response(function(request), path), request, encode)
            finally:
                _close_form(request)

        return respond, False

    async def respond_later(request: HttpRequest) -> AsyncIterator[bytes]:
        try:
            result = function(request)
            if inspect.isawaitable(result):
                result = await result
            response = as_response(result, path)
            async with contextlib.aclosing(parts_later(response, request, encode)) as later:
                async for part in later:
                    yield part
        finally:
            _close_form(request)

    return respond_later, True


def _close_form(request: HttpRequest) -> None:
    if (form := request._form) is not None:
        form.close()


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
    names = _param_names(path)
    if len(set(names)) < len(names):
        raise ValueError(f"path: expected another name for each param, got {path!r}")
    if names and path != stem:
        raise ValueError(f"path: expected params or a '*' at the end, not both; got {path!r}")
    return path


def check_overlap(path: str, known: Iterable[str]) -> None:
    """Checks that no other path with params means a path that this one means.

    Raises:
        ValueError: One does.
    """
    if "{" not in path:
        return
    for other in known:
        if other != path and "{" in other and _overlap(path.split("/"), other.split("/")):
            raise ValueError(
                f"path: {path!r} and {other!r} mean some of the same paths: use the same names for "
                "their params, or paths that differ in more"
            )


def _overlap(segments: list[str], others: list[str]) -> bool:
    def same(one: str, other: str) -> bool:
        return one == other or (one[:1] == "{" and other != "") or (other[:1] == "{" and one != "")

    return len(segments) == len(others) and all(map(same, segments, others))


def _param_names(path: str) -> list[str]:
    """The names of the params in a path.

    Raises:
        ValueError: One is no whole segment, or no name.
    """
    names = []
    for segment in path.split("/"):
        if "{" in segment or "}" in segment:
            if (param := _PARAM.fullmatch(segment)) is None:
                raise ValueError(
                    f"path: expected a param to be a whole segment, such as '{{name}}', "
                    f"got {segment!r} in {path!r}"
                )
            names.append(param[1])
    return names


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
