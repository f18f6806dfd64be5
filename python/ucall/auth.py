"""Functions for ``Server(auth=…)``: bearer tokens and API keys.

A server checks them without the interpreter's lock. It compares digests in constant time, and
always all of them, so that the duration reveals nothing about the keys.

What a token stands for is the user of its calls::

    server = Server(auth=ucall.auth.bearer({"s3cret": "alice"}))

    @server
    def whoami(ctx: ucall.Context) -> str:
        return ctx.user
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from ucall._core import Keys

__all__ = ["Keys", "api_key", "bearer"]

_HEADER = re.compile(r"[\w!#$%&'*+.^`|~-]+", re.ASCII)


def bearer(tokens: Mapping[str, Any] | Iterable[str]) -> Keys:
    """Admits callers that send ``Authorization: Bearer`` (RFC 6750) with one of these tokens.

    Args:
        tokens: A mapping of tokens to the values of ``ctx.user``; or the tokens alone, for which
            ``ctx.user`` is ``True``.

    Raises:
        TypeError: The tokens are one str.
        ValueError: There is no token, or an empty one.
    """
    return Keys(_users(tokens), "Authorization", "Bearer", "Bearer")


def api_key(keys: Mapping[str, Any] | Iterable[str], header: str = "X-API-Key") -> Keys:
    """Admits callers that send one of these keys in a header.

    Args:
        keys: As for `bearer`.
        header: The name of the header.

    Raises:
        TypeError, ValueError: As for `bearer`; also if no header can have that name.
    """
    if not _HEADER.fullmatch(header):
        raise ValueError(f"header: expected the name of an HTTP header, got {header!r}")
    return Keys(_users(keys), header, None, f'ApiKey header="{header}"')


def _users(keys: Mapping[str, Any] | Iterable[str]) -> list[tuple[str, Any]]:
    """The users by their keys."""
    if isinstance(keys, str):
        raise TypeError("expected a collection of keys, got a str")
    users = keys if isinstance(keys, Mapping) else dict.fromkeys(keys, True)
    if not users or not all(isinstance(key, str) and key for key in users):
        raise ValueError("expected at least one key, and no empty ones")
    return list(users.items())
