"""Functions for ``Server(auth=…)``: bearer tokens and API keys.

What a token stands for is the user of its calls::

    server = Server(auth=ucall.auth.bearer({"s3cret": "alice"}))

    @server
    def whoami(ctx: ucall.Context) -> str:
        return ctx.user
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Mapping
from typing import Any

from ucall._core import Context

__all__ = ["Keys", "api_key", "bearer"]


class Keys:
    """Identifies callers by a key in a header. `bearer` and `api_key` make it.

    It compares digests in constant time, and always all of them, so that its duration reveals
    nothing about the keys.
    """

    def __init__(
        self, keys: Mapping[str, Any] | Iterable[str], header: str, scheme: str, challenge: str
    ) -> None:
        if isinstance(keys, str):
            raise TypeError("expected a collection of keys, got a str")
        users = keys if isinstance(keys, Mapping) else dict.fromkeys(keys, True)
        if not users or not all(isinstance(key, str) and key for key in users):
            raise ValueError("expected at least one key, and no empty ones")
        self._users = [(_digest(key), user) for key, user in users.items()]
        self._header = header.lower()
        self._scheme = scheme.lower()
        self.challenge = challenge

    def __call__(self, ctx: Context) -> Any:
        """The user of the key in the header; `None` for an unknown key."""
        given = ctx.headers.get(self._header, "")
        if self._scheme:
            scheme, _, given = given.partition(" ")
            if scheme.lower() != self._scheme:
                return None
        digest, found = _digest(given.strip()), None
        for expected, user in self._users:
            if hmac.compare_digest(expected, digest):
                found = user
        return found


def bearer(tokens: Mapping[str, Any] | Iterable[str]) -> Keys:
    """Admits callers that send ``Authorization: Bearer`` (RFC 6750) with one of these tokens.

    Args:
        tokens: A mapping of tokens to the values of ``ctx.user``; or the tokens alone, for which
            ``ctx.user`` is ``True``.

    Raises:
        TypeError: The tokens are one str.
        ValueError: There is no token, or an empty one.
    """
    return Keys(tokens, "Authorization", "Bearer", "Bearer")


def api_key(keys: Mapping[str, Any] | Iterable[str], header: str = "X-API-Key") -> Keys:
    """Admits callers that send one of these keys in a header.

    Args:
        keys: As for `bearer`.
        header: The name of the header.

    Raises:
        TypeError, ValueError: As for `bearer`.
    """
    return Keys(keys, header, "", f'ApiKey header="{header}"')


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
