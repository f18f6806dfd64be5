"""Ready-made functions for ``Server(auth=…)``: bearer tokens and API keys.

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
    """Knows callers by a key in a header. Made by `bearer` and `api_key`.

    What is compared are digests, of the same length each, and always all of them: how long that
    takes tells nothing of the keys.
    """

    def __init__(
        self, keys: Mapping[str, Any] | Iterable[str], header: str, scheme: str, challenge: str
    ) -> None:
        if isinstance(keys, str):
            raise TypeError("expected several keys, got a str")
        users = keys if isinstance(keys, Mapping) else dict.fromkeys(keys, True)
        if not users or not all(isinstance(key, str) and key for key in users):
            raise ValueError("expected at least one key, and none of them empty")
        self._users = [(_digest(key), user) for key, user in users.items()]
        self._header = header.lower()
        self._scheme = scheme.lower()
        self.challenge = challenge

    def __call__(self, ctx: Context) -> Any:
        """Who calls; `None` if nobody is known by what the header says."""
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
    """Lets in who sends ``Authorization: Bearer`` with one of these tokens.

    Args:
        tokens: By each token who it belongs to, for ``ctx.user``; or the tokens alone, whose user
            is ``True``.

    Raises:
        TypeError, ValueError: It is one str, or there is no token, or an empty one.
    """
    return Keys(tokens, "Authorization", "Bearer", "Bearer")


def api_key(keys: Mapping[str, Any] | Iterable[str], header: str = "X-API-Key") -> Keys:
    """Lets in who sends one of these keys in a header of its own.

    Args:
        keys: As for `bearer`.
        header: The name of the header.

    Raises:
        TypeError, ValueError: As for `bearer`.
    """
    return Keys(keys, header, "", f'ApiKey header="{header}"')


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
