"""What the arguments of a server must be."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["challenge", "listed", "positive"]


def positive(name: str, value: int) -> int:
    if value < 1:
        raise ValueError(f"{name}: expected a positive number, got {value}")
    return value


def challenge(auth: object) -> str:
    """What a request that is refused is asked for, by ``WWW-Authenticate``."""
    import inspect  # here, because it is a third of what importing ucall would cost

    if not callable(auth):
        raise TypeError(f"auth: expected a function, got {type(auth).__name__}")
    if inspect.iscoroutinefunction(auth) or inspect.iscoroutinefunction(type(auth).__call__):
        raise TypeError("auth: expected a plain function: it is asked before anything else runs")
    challenge = str(getattr(auth, "challenge", "Bearer"))
    if not (challenge.isascii() and challenge.isprintable()):
        raise ValueError(f"auth: {challenge!r} is no challenge for WWW-Authenticate")
    return challenge


def listed(names: Iterable[str]) -> list[str]:
    if isinstance(names, str):
        raise TypeError(f"expected several names, got the str {names!r}")
    return list(names)
