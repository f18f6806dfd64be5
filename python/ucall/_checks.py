"""Checks of a server's arguments."""

from __future__ import annotations

import operator
from collections.abc import Iterable

__all__ = ["challenge", "listed", "port", "positive", "seconds", "text"]


def positive(name: str, value: int) -> int:
    if value < 1:
        raise ValueError(f"{name}: expected a positive number, got {value}")
    return value


def seconds(name: str, value: float) -> float:
    if not isinstance(value, int | float) or not value > 0:
        raise ValueError(f"{name}: expected a number of seconds above 0, got {value!r}")
    return value


def port(value: int) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"port: expected an int, got {type(value).__name__}") from None
    if not 0 <= number < 65_536:
        raise ValueError(f"port: expected 0 to 65535, got {number}; 0 picks a free one")
    return number


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
    challenge = str(getattr(auth, "challenge", "Bearer"))
    if not (challenge.isascii() and challenge.isprintable()):
        raise ValueError(f"auth: {challenge!r} is not a challenge for WWW-Authenticate")
    return challenge


def listed(name: str, names: Iterable[str]) -> list[str]:
    if isinstance(names, str):
        raise TypeError(f"{name}: expected a list of names, such as [{names!r}]; got a str")
    return list(names)


def text(name: str, value: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name}: expected a str, got {type(value).__name__}")
    return value
