"""The ``auth`` of a server that takes tokens of OAuth 2.0."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ucall._oauth.issuer import Issuer, check_url
from ucall._oauth.key_set import KeySet
from ucall._oauth.tokens import (
    ALGORITHMS,
    RefusedToken,
    TokenChecker,
    UnknownKey,
    check_algorithms,
)
from ucall._server import checked

if TYPE_CHECKING:
    from ucall import _core
    from ucall._oauth.access_token import AccessToken

__all__ = ["ResourceServer"]

log = logging.getLogger("ucall")


class ResourceServer:
    """What `ucall.auth.oauth` returns; its arguments are that function's."""

    def __init__(
        self,
        issuer: str,
        audience: str | Iterable[str],
        scopes: Iterable[str],
        algorithms: Iterable[str] | None,
        resource: str | None,
        jwks: str | Mapping[str, Any] | None,
    ) -> None:
        audiences = [audience] if isinstance(audience, str) else list(audience)
        if not audiences or not all(isinstance(it, str) and it for it in audiences):
            raise ValueError("audience: expected at least one text, and no empty one")
        self._scopes = frozenset(checked.scopes(scopes))
        source = Issuer(check_url("issuer", issuer), jwks if isinstance(jwks, str) else None)
        if isinstance(jwks, str):
            check_url("jwks", jwks)
        given = _listed(jwks) if isinstance(jwks, Mapping) else None
        self._key_set = KeySet(None if given is not None else source.read_keys, given or [])
        self._checker = TokenChecker(
            issuer,
            audiences,
            check_algorithms(ALGORITHMS if algorithms is None else algorithms),
            self._key_set,
        )
        address = None if resource is None else check_url("resource", resource)
        #: For the core, which answers clients that have no token.
        self._protected_resource = (address, [issuer], sorted(self._scopes))
        #: Before the first connection of a server, and after its last one.
        self.startup, self.shutdown = self._key_set.start, self._key_set.stop

    def __call__(self, ctx: _core.Context) -> AccessToken | None:
        """The token of a request; ``None`` if it has no valid one.

        Raises:
            PermissionError: It lacks a scope that all requests need, or its key is being read.
        """
        scheme, _, token = ctx.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            return None
        try:
            found = self._checker.check(token.strip(" "))
        except UnknownKey as refused:
            log.debug("auth: a token was refused: %r", str(refused))
            raise _Unavailable from None
        except RefusedToken as refused:
            log.debug("auth: a token was refused: %r", str(refused))
            return None
        if not self._scopes <= found.scopes:
            raise _InsufficientScope
        return found


class _InsufficientScope(PermissionError):
    ucall_refusal = "insufficient_scope"


class _Unavailable(PermissionError):
    ucall_refusal = "unavailable"


def _listed(jwks: Mapping[str, Any]) -> list[dict[str, Any]]:
    keys = jwks.get("keys")
    if not isinstance(keys, list) or not keys or not all(isinstance(key, dict) for key in keys):
        raise ValueError("jwks: expected a set of keys, such as {'keys': [{'kty': 'EC', …}]}")
    return keys
