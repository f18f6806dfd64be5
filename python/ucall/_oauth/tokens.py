"""Checks access tokens that are JWTs (RFC 9068), as RFC 8725 asks, by PyJWT.

PyJWT, and not another library, because MCP's own SDK and most others check by it, it depends on
``cryptography`` alone, and its keys are bound to their algorithm. It never reads keys here:
its client for that blocks, and reads them again for each unknown one.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

# PyJWT does without, but then has only symmetric algorithms.
import cryptography  # noqa: F401
import jwt

from ucall._oauth.access_token import AccessToken

if TYPE_CHECKING:
    from ucall._oauth.issuer import Jwk
    from ucall._oauth.key_set import Keys, KeySet

__all__ = ["ALGORITHMS", "RefusedToken", "TokenChecker", "UnknownKey", "check_algorithms"]

#: The algorithms, each with the type of its keys, and their curves. None is symmetric: a server
#: that only checks tokens has no secret, and a public key must not pass for one.
_KEY_TYPES: dict[str, tuple[str, Sequence[str | None]]] = {
    "RS256": ("RSA", [None]),
    "RS384": ("RSA", [None]),
    "RS512": ("RSA", [None]),
    "PS256": ("RSA", [None]),
    "PS384": ("RSA", [None]),
    "PS512": ("RSA", [None]),
    "ES256": ("EC", ["P-256"]),
    "ES384": ("EC", ["P-384"]),
    "ES512": ("EC", ["P-521"]),
    "EdDSA": ("OKP", ["Ed25519", "Ed448"]),
}
ALGORITHMS = tuple(_KEY_TYPES)

#: RFC 9068 asks for ``at+jwt``. Many issuers write ``JWT``, or nothing.
_TYPES = ("at+jwt", "application/at+jwt", "jwt", "")
#: Claims of ID tokens, which are about a user and give no access.
_ID_CLAIMS = ("nonce", "at_hash", "c_hash")
#: What a public key is made of. A key set that has private keys by mistake works, too.
_PUBLIC = ("kty", "n", "e", "crv", "x", "y")
#: How much the clocks of issuer and server may differ.
_LEEWAY_S = 30
#: Tokens whose signature was checked. Only an issuer can add one.
_CACHED_MAX = 1024


class RefusedToken(Exception):
    """The token gives no access. The message is for the log of debugging."""


class UnknownKey(RefusedToken):
    """The issuer's keys are being read, because the token names another one."""


def check_algorithms(algorithms: Iterable[str]) -> tuple[str, ...]:
    """Names of algorithms.

    Raises:
        TypeError: They are one str.
        ValueError: One is unknown, or symmetric.
    """
    if isinstance(algorithms, str):
        raise TypeError(f"algorithms: expected a list of names, got {algorithms!r}")
    names = tuple(algorithms)
    if not names or not set(names) <= set(ALGORITHMS):
        expected = ", ".join(ALGORITHMS)
        raise ValueError(f"algorithms: expected some of {expected}; got {list(names)}")
    return names


class TokenChecker:
    """Checks the tokens of one issuer for one audience."""

    def __init__(
        self, issuer: str, audiences: list[str], algorithms: tuple[str, ...], key_set: KeySet
    ) -> None:
        self._issuer = issuer
        self._audiences = audiences
        self._algorithms = algorithms
        self._key_set = key_set

    def check(self, token: str) -> AccessToken:
        """What a token stands for.

        Raises:
            RefusedToken: It gives no access.
        """
        keys = self._key_set.keys
        known = keys.cache.get(token)
        if known is not None and time.time() < known[1]:
            checked: AccessToken = known[0]
            return checked
        try:
            claims = self._claims(token, keys)
        except jwt.PyJWTError as error:
            raise RefusedToken(str(error)) from None
        checked = AccessToken(claims["sub"], _scopes(claims), MappingProxyType(claims))
        if len(keys.cache) >= _CACHED_MAX:
            keys.cache.clear()
        keys.cache[token] = checked, int(claims["exp"]) + _LEEWAY_S
        return checked

    def _claims(self, token: str, keys: Keys) -> dict[str, Any]:
        header = jwt.get_unverified_header(token)
        algorithm, kind = header.get("alg"), header.get("typ", "")
        if algorithm not in self._algorithms:
            raise RefusedToken(f"the algorithm is {algorithm!r}")
        if not isinstance(kind, str) or kind.lower() not in _TYPES:
            raise RefusedToken(f"the type is {kind!r}")
        claims: dict[str, Any] = jwt.decode(
            token,
            self._key(header.get("kid"), algorithm, keys),
            algorithms=[algorithm],
            audience=self._audiences,
            issuer=self._issuer,
            leeway=_LEEWAY_S,
            options={"require": ["exp", "iss", "aud", "sub"]},
        )
        if "at+jwt" not in kind.lower() and any(name in claims for name in _ID_CLAIMS):
            raise RefusedToken("it is an ID token")
        if "cnf" in claims:
            # RFC 9449, section 7.2: as a bearer token it would serve whoever has stolen it.
            raise RefusedToken("it is bound to a key of its holder")
        return claims

    def _key(self, kid: str | None, algorithm: str, keys: Keys) -> jwt.PyJWK:
        named = [jwk for jwk in keys.jwks if kid is None or jwk.get("kid") == kid]
        found = [jwk for jwk in named if _fits(jwk, algorithm)]
        if not named or (kid is None and not found):
            if self._key_set.refresh():
                raise UnknownKey(f"the key {kid!r} is unknown, and keys are being read")
            raise RefusedToken(f"the key {kid!r} is unknown")
        if len(found) != 1:
            raise RefusedToken(f"{len(found)} keys are {kid!r} of {algorithm}")
        made = found[0], algorithm
        place = id(made[0]), algorithm
        key: jwt.PyJWK | None = keys.cache.get(place)
        if key is None:
            key = keys.cache[place] = _made(*made)
        return key


def _made(jwk: Jwk, algorithm: str) -> jwt.PyJWK:
    try:
        key = jwt.PyJWK({name: jwk[name] for name in _PUBLIC if name in jwk}, algorithm)
        problem = key.Algorithm.check_key_length(key.key)
    except Exception as error:  # The issuer has written it: whatever is wrong, it is no key.
        raise RefusedToken(f"the key {jwk.get('kid')!r} is invalid: {error}") from None
    if problem is not None:
        raise RefusedToken(problem)
    return key


def _fits(jwk: Jwk, algorithm: str) -> bool:
    """Whether a key is for signatures by an algorithm."""
    kind, curves = _KEY_TYPES[algorithm]
    operations = jwk.get("key_ops", ["verify"])
    return (
        jwk.get("kty") == kind
        and jwk.get("crv") in curves
        and jwk.get("alg", algorithm) == algorithm
        and jwk.get("use", "sig") == "sig"
        and isinstance(operations, list)
        and "verify" in operations
    )


def _scopes(claims: dict[str, Any]) -> frozenset[str]:
    """The scopes: text with spaces by RFC 9068, a list of some issuers, ``scp`` of others."""
    given = claims.get("scope", claims.get("scp", ""))
    scopes = given.split(" ") if isinstance(given, str) else given
    if not isinstance(scopes, list):
        raise RefusedToken("its scopes are no text")
    return frozenset(it for it in scopes if isinstance(it, str) and it)
