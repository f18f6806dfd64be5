"""Functions for ``Server(auth=…)``: bearer tokens, API keys and OAuth 2.0.

A server checks them without the interpreter's lock, but for OAuth. It compares digests in constant
time, and always all of them, so that the duration reveals nothing about the keys.

What a token stands for is the user of its calls::

    server = Server(auth=ucall.auth.bearer({"s3cret": "alice"}))

    @server
    def whoami(ctx: ucall.Context) -> str:
        return ctx.user
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ucall._core import Keys
from ucall._oauth.access_token import AccessToken

if TYPE_CHECKING:
    from ucall._oauth.resource_server import ResourceServer

__all__ = ["AccessToken", "Keys", "api_key", "bearer", "oauth"]

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


def oauth(
    issuer: str,
    audience: str | Iterable[str],
    *,
    scopes: Iterable[str] = (),
    algorithms: Iterable[str] | None = None,
    resource: str | None = None,
    jwks: str | Mapping[str, Any] | None = None,
) -> ResourceServer:
    """Admits callers with an access token of OAuth 2.0, a JWT (RFC 9068), of one issuer::

        auth = ucall.auth.oauth("https://login.example.com", "https://api.example.com/mcp")
        server = Server(auth=auth)

        @server(scopes=["files:write"])
        def remove(path: str, ctx: ucall.Context) -> None:
            print(ctx.user.subject)

    The issuer's keys are read when the server starts, and again in a thread: see docs/security.md.
    The server tells clients without a token where to get one (RFC 9728).

    Args:
        issuer: The claim ``iss`` of its tokens, an https address.
        audience: The claim ``aud``, which names this server; or several of them.
        scopes: Scopes that each request needs.
        algorithms: Those of signatures; by default RS, PS and ES with SHA-256, 384 and 512, and
            EdDSA. A key is used for algorithms of its own type alone.
        resource: The address of the server, as clients know it; by default what they send as
            ``Host``, or what ``trusted_proxies`` say.
        jwks: The address of the issuer's keys, or the keys (RFC 7517); by default the issuer's
            metadata says where they are.

    Raises:
        ImportError: PyJWT is not installed.
        TypeError, ValueError: An argument is invalid. A server whose issuer cannot be read does
            not start: `ConnectionError`, or ValueError.
    """
    try:
        from ucall._oauth.resource_server import ResourceServer
    except ModuleNotFoundError as error:
        if error.name not in ("jwt", "cryptography"):
            raise
        problem = "oauth needs PyJWT, which is not installed: pip install 'pyjwt[crypto]'"
        raise ImportError(problem, name=error.name) from None
    return ResourceServer(issuer, audience, scopes, algorithms, resource, jwks)


def _users(keys: Mapping[str, Any] | Iterable[str]) -> list[tuple[str, Any]]:
    """The users by their keys."""
    if isinstance(keys, str):
        raise TypeError("expected a collection of keys, got a str")
    users = keys if isinstance(keys, Mapping) else dict.fromkeys(keys, True)
    if not users or not all(isinstance(key, str) and key for key in users):
        raise ValueError("expected at least one key, and no empty ones")
    return list(users.items())
