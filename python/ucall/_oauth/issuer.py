"""Reads the metadata and the keys of an issuer of tokens.

The metadata is at one of three addresses, for an issuer ``https://example.com/tenant``:

| address | by |
|---|---|
| ``https://example.com/.well-known/oauth-authorization-server/tenant`` | RFC 8414 |
| ``https://example.com/.well-known/openid-configuration/tenant`` | RFC 8414, section 5 |
| ``https://example.com/tenant/.well-known/openid-configuration`` | OpenID Connect Discovery |
"""

from __future__ import annotations

import json
import time
from typing import Any
from urllib.parse import urlsplit

from ucall._core import VERSION

__all__ = ["Issuer", "check_url"]

Jwk = dict[str, Any]

#: Time for the reply to begin or go on, and for all of it.
_TIMEOUT_S = 10.0
_TOTAL_S = 30.0
#: Keys of the largest issuers take 20 KB.
_MAX_BYTES = 1 << 20
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def check_url(name: str, url: str) -> str:
    """An address that only its owner can answer for.

    Raises:
        TypeError: It is no str.
        ValueError: It is not one of ``https``, or of ``http`` on this machine.
    """
    if not isinstance(url, str):
        raise TypeError(f"{name}: expected a str, got {type(url).__name__}")
    parts = urlsplit(url)
    is_safe = parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOOPBACK)
    is_plain = url.isascii() and url.isprintable() and not any(mark in url for mark in ' "\\')
    if not is_safe or not parts.hostname or parts.fragment or parts.username or not is_plain:
        expected = "expected an https address, or an http one of this machine"
        raise ValueError(f"{name}: {expected}; got {url!r}")
    return url


class Issuer:
    """An issuer of tokens.

    Args:
        issuer: Its identifier, the claim ``iss`` of its tokens.
        jwks_uri: Where its keys are; by default its metadata says that.
    """

    def __init__(self, issuer: str, jwks_uri: str | None) -> None:
        self._issuer = issuer
        self._given = self._jwks_uri = jwks_uri

    def read_keys(self) -> list[Jwk]:
        """Its keys as they are now. Blocks.

        Raises:
            ConnectionError: It does not answer.
            ValueError: Its answer is none of an issuer.
        """
        uri = self._jwks_uri or self._discover()
        try:
            keys = _read(uri).get("keys")
        except (OSError, ValueError):
            self._jwks_uri = self._given  # The keys may have moved.
            raise
        if not isinstance(keys, list):
            raise ValueError(f"issuer: {uri} is no set of keys")
        self._jwks_uri = uri
        return [key for key in keys if isinstance(key, dict)]

    def _discover(self) -> str:
        """The address of the keys, from the metadata."""
        tried: list[str] = []
        for url in _metadata_urls(self._issuer):
            try:
                metadata = _read(url)
            except _StatusError as error:
                tried.append(str(error))
                continue
            # RFC 8414, section 3.3: otherwise one issuer could speak for another.
            if metadata.get("issuer") != self._issuer:
                named = metadata.get("issuer")
                raise ValueError(f"issuer: {url} is of {named!r}; expected {self._issuer!r}")
            return check_url(f"issuer: jwks_uri of {url}", metadata.get("jwks_uri", ""))
        raise ConnectionError(f"issuer: {self._issuer} has no metadata: {'; '.join(tried)}")


class _StatusError(ConnectionError):
    """The status is not 200."""


def _metadata_urls(issuer: str) -> list[str]:
    parts = urlsplit(issuer)
    origin, path = f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")
    urls = [
        f"{origin}/.well-known/oauth-authorization-server{path}",
        f"{origin}/.well-known/openid-configuration{path}",
        f"{origin}{path}/.well-known/openid-configuration",
    ]
    return list(dict.fromkeys(urls))


def _read(url: str) -> dict[str, Any]:
    """The JSON object at an address."""
    try:
        value = json.loads(_read_text(url))
    except ValueError as error:
        raise ValueError(f"issuer: {url} is no JSON: {error}") from None
    except RecursionError:
        value = None
    if not isinstance(value, dict):
        raise ValueError(f"issuer: {url}: expected a JSON object")
    return value


def _read_text(url: str) -> bytes:
    import http.client
    import urllib.error
    import urllib.request

    class NoRedirects(urllib.request.HTTPRedirectHandler):
        """A redirect would leave what TLS has proven."""

        def redirect_request(self, *_: Any) -> None:
            return None

    headers = {"Accept": "application/json", "User-Agent": f"ucall/{VERSION}"}
    request = urllib.request.Request(url, headers=headers)
    end = time.monotonic() + _TOTAL_S
    text = b""
    try:
        with urllib.request.build_opener(NoRedirects).open(request, timeout=_TIMEOUT_S) as response:
            while part := response.read1(65_536):
                text += part
                if len(text) > _MAX_BYTES or time.monotonic() > end:
                    raise ValueError(f"issuer: {url} is longer than {_MAX_BYTES} bytes, or slow")
    except urllib.error.HTTPError as error:
        error.close()
        raise _StatusError(f"{url} has status {error.code}") from None
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise ConnectionError(f"issuer: cannot read {url}: {reason}") from None
    return text
