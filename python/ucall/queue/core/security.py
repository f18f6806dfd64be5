"""What the core is told of TLS."""

from __future__ import annotations

import os
from typing import TypedDict

from ucall import _tls
from ucall.queue.core.options import SecurityOptions

__all__ = ["ClientDescribed", "described"]


class ClientDescribed(TypedDict):
    """For the core of a client."""

    name: str
    certificate: str | None
    key: str | None
    password: bytes | None
    authority: str | None


def described(
    security: SecurityOptions, is_server: bool, name: str
) -> _tls.Described | ClientDescribed:
    """What `ucall._core.QueueCore` takes. ``name`` is that of the location.

    Raises:
        ValueError: The options make no sense together.
    """
    if (security.key is None) != (security.certificate is None):
        raise ValueError("security: expected a key and a certificate, or neither")
    if is_server:
        if security.certificate is None:
            raise ValueError("security: a server needs a key and a certificate")
        files = _tls.described(
            security.certificate, security.key, security.password, security.authority, None
        )
        assert files is not None  # there is a certificate
        return {**files, "tickets": None}
    if security.password is not None and security.key is None:
        raise ValueError("security: expected a key for the password")
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
