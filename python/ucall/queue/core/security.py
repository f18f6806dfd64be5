"""What the core is told of TLS."""

from __future__ import annotations

import os
from typing import TypedDict

from ucall import _tls
from ucall.queue.core.options import SecurityOptions

__all__ = ["ClientTlsSettings", "check", "tls_settings"]


class ClientTlsSettings(TypedDict):
    """For the core of a client."""

    name: str
    certificate: str | None
    key: str | None
    password: bytes | None
    authority: str | None


def check(security: SecurityOptions, is_server: bool, takes_password: bool) -> None:
    """Sees that each option means what it says, or is refused.

    Raises:
        ValueError: The options make no sense together, or not here.
    """
    if (security.key is None) != (security.certificate is None):
        raise ValueError("security: expected a key and a certificate, or neither")
    if is_server and security.certificate is None:
        raise ValueError("security: a server needs a key and a certificate")
    if is_server and security.name is not None:
        raise ValueError("security: name is for clients, which verify their server's")
    if security.password is not None and security.key is None:
        raise ValueError("security: expected a key for the password")
    if security.password is not None and not takes_password:
        raise ValueError("security: over gRPC no key may be encrypted, and password means nothing")


def tls_settings(
    security: SecurityOptions, is_server: bool, name: str
) -> _tls.TlsSettings | ClientTlsSettings:
    """What `ucall._core.QueueCore` takes, after `check`. ``name`` is that of the location."""
    if is_server:
        files = _tls.tls_settings(
            security.certificate, security.key, security.password, security.authority, None
        )
        assert files is not None  # there is a certificate
        return {**files, "tickets": None}
    password = security.password
    return {
        "name": security.name or name,
        "certificate": _path(security.certificate),
        "key": _path(security.key),
        "password": password.encode() if isinstance(password, str) else password,
        "authority": _path(security.authority),
    }


def _path(path: str | os.PathLike[str] | None) -> str | None:
    return None if path is None else os.fspath(path)
