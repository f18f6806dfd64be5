"""Checks of a server's arguments."""

from __future__ import annotations

import contextlib
import operator
import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

__all__ = [
    "challenge",
    "flag",
    "instance",
    "json_object",
    "listed",
    "methods",
    "options",
    "own_auth",
    "paths",
    "port",
    "positive",
    "scopes",
    "seconds",
    "text",
    "unbounded",
]

T = TypeVar("T")

#: Segments that need no decoding, without a slash at the end.
_PATH = re.compile(r"(/[A-Za-z0-9._~!$&'()+,;=:@-]+)+")
#: Visible characters without quotes and backslashes.
_SCOPE = re.compile(r"[!#-\[\]-~]+")


def uds_mode(value: int) -> int:
    """The permissions of a socket file. 660 is a number in base ten: 0o660 is meant."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"uds_mode: expected an int, got {type(value).__name__}") from None
    if not 0 <= number <= 0o777:
        raise ValueError(f"uds_mode: expected permissions up to 0o777, got {number}")
    return number


def positive(name: str, value: int) -> int:
    if value < 1:
        raise ValueError(f"{name}: expected a positive number, got {value}")
    return value


def limit(name: str, value: int | None) -> int | None:
    """A limit that has no default."""
    return None if value is None else positive(name, value)


def unbounded(max_cycles: int, max_seconds: float) -> None:
    """Rejects the bounds of a run with workers: one that reached its bound would be restarted."""
    for name, bound in (("max_cycles", max_cycles), ("max_seconds", max_seconds)):
        if bound >= 0:
            raise ValueError(f"{name}: with workers, expected no bound, got {bound}")


def seconds(name: str, value: float) -> float:
    if not isinstance(value, int | float) or not value > 0:
        raise ValueError(f"{name}: expected a number of seconds above 0, got {value!r}")
    return value


def port(value: int, name: str = "port") -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name}: expected an int, got {type(value).__name__}") from None
    if not 0 <= number < 65_536:
        raise ValueError(f"{name}: expected 0 to 65535, got {number}; 0 picks a free one")
    return number


def instance(name: str, value: T, expected: type[T]) -> T:
    if not isinstance(value, expected):
        raise TypeError(f"{name}: expected a ucall.{expected.__name__}, got {type(value).__name__}")
    return value


def flag(name: str, value: bool) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{name}: expected True or False, got {type(value).__name__}")
    return value


def options(**given: tuple[object, type]) -> None:
    """Rejects options of another class, such as ``udp=True``."""
    for name, (value, expected) in given.items():
        if value is not None and not isinstance(value, expected):
            example = f"{name}=ucall.{expected.__name__}(…)"
            raise TypeError(f"{name}: expected {example}, got {type(value).__name__}")


def challenge(auth: object) -> str:
    """The value of ``WWW-Authenticate`` for the requests that ``auth`` refuses."""
    import inspect  # here, because importing it takes a third as long as all of ucall

    if not callable(auth):
        raise TypeError(f"auth: expected a function, got {type(auth).__name__}")
    is_asynchronous = (
        inspect.iscoroutinefunction,
        inspect.isgeneratorfunction,
        inspect.isasyncgenfunction,
    )
    if any(predicate(it) for predicate in is_asynchronous for it in (auth, type(auth).__call__)):
        raise TypeError("auth: expected a plain function, not an async one or a generator")
    with contextlib.suppress(ValueError):  # Some builtins have no signature.
        try:
            inspect.signature(auth).bind(None)
        except TypeError:
            raise TypeError("auth: expected a function of one argument, the context") from None
    challenge = str(getattr(auth, "challenge", "Bearer"))
    if not (challenge.isascii() and challenge.isprintable()):
        raise ValueError(f"auth: {challenge!r} is not a challenge for WWW-Authenticate")
    return challenge


def own_auth(name: str, auth: Any) -> tuple[Any, str] | None:
    """A function's own ``auth``, with its challenge; ``None`` without one."""
    if auth is None or auth is False:
        return None
    if not callable(auth):
        problem = f"expected a function, or False to let anyone call; got {type(auth).__name__}"
        raise TypeError(f"{name}: auth: {problem}")
    if hasattr(auth, "_protected_resource"):
        problem = "tokens of an issuer are for all of a server: Server(auth=ucall.auth.oauth(…))"
        raise TypeError(f"{name}: auth: {problem}, and scopes=[…] of its functions")
    return auth, challenge(auth)


def paths(value: str | Iterable[str]) -> list[str]:
    """The paths of calls."""
    found = list(dict.fromkeys([value] if isinstance(value, str) else value))
    for path in found:
        if not isinstance(path, str):
            raise TypeError(f"path: expected a str, or several; got {type(path).__name__}")
        if path != "/" and not _PATH.fullmatch(path):
            raise ValueError(f"path: expected one such as '/api/rpc', got {path!r}")
        if path in ("/healthz", "/readyz", "/metrics"):
            raise ValueError(f"path: {path} is for those who watch the server")
    if not found:
        raise ValueError("path: expected at least one")
    return found


def listed(name: str, names: Iterable[str]) -> list[str]:
    if isinstance(names, str):
        raise TypeError(f"{name}: expected a list of names, such as [{names!r}]; got a str")
    return list(names)


def scopes(scopes: Iterable[str]) -> list[str]:
    """Scopes of OAuth 2.0 (RFC 6749, section 3.3)."""
    found = list(dict.fromkeys(listed("scopes", scopes)))
    for scope in found:
        if not isinstance(scope, str) or not _SCOPE.fullmatch(scope):
            raise ValueError(f"scopes: expected names such as 'files:write', got {scope!r}")
    return found


def methods(name: str, names: str | Iterable[str]) -> list[str]:
    """Names of methods, each of which may end in ``*``."""
    names = [names] if isinstance(names, str) else list(names)
    for method in names:
        if not text(name, method) or "*" in method[:-1] or method.startswith(("rpc.", "$/")):
            expected = "expected names such as 'math.sum' or 'math.*'"
            raise ValueError(f"{name}: {expected}, got {method!r}")
    return names


def json_object(name: str, value: Mapping[str, Any]) -> str:
    """The text of a JSON object."""
    try:
        import json

        return json.dumps(dict(value), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}: expected values of JSON: {error}") from None


def text(name: str, value: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name}: expected a str, got {type(value).__name__}")
    return value
