"""Converts a server's TLS options for the core."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Literal, TypeAlias, TypedDict

from ucall import _process_role

__all__ = [
    "CLIENT_AUTH",
    "ClientAuth",
    "ClientTls",
    "Files",
    "Path",
    "TlsSettings",
    "client_tls",
    "tls_settings",
]

Path: TypeAlias = "str | os.PathLike[str]"
Files: TypeAlias = "Path | Iterable[Path] | None"
ClientAuth: TypeAlias = Literal["none", "optional", "required"]

CLIENT_AUTH = ("none", "optional", "required")


class TlsSettings(TypedDict):
    """The argument ``tls`` of ``_core.Server``."""

    certificates: list[str]
    private_keys: list[str]
    password: bytes | None
    client_authorities: str | None
    client_auth: str
    tickets: bytes | None


def tls_settings(
    certfile: Files,
    keyfile: Files,
    keyfile_password: str | bytes | None,
    ca_certs: Path | None,
    client_auth: ClientAuth | None,
) -> TlsSettings | None:
    """The settings of the options ``ssl_…``, or ``None`` without TLS.

    Raises:
        ValueError: The options contradict each other.
    """
    certificates, keys = _paths("ssl_certfile", certfile), _paths("ssl_keyfile", keyfile)
    if not certificates:
        others = (keyfile, keyfile_password, ca_certs)
        if any(other is not None for other in others) or (client_auth or "none") != "none":
            raise ValueError("ssl_certfile: expected a certificate for the other settings of TLS")
        return None
    if keys and len(keys) != len(certificates):
        raise ValueError(
            f"ssl_keyfile: expected one for each of {len(certificates)} in ssl_certfile"
        )
    if client_auth is None:
        client_auth = "none" if ca_certs is None else "required"
    if client_auth not in CLIENT_AUTH:
        raise ValueError(
            f"ssl_client_auth: expected one of {', '.join(CLIENT_AUTH)}, got {client_auth!r}"
        )
    if client_auth != "none" and ca_certs is None:
        raise ValueError("ssl_ca_certs: needed to verify the certificates of clients")
    if isinstance(keyfile_password, str):
        keyfile_password = keyfile_password.encode()
    return {
        "certificates": certificates,
        "private_keys": keys,
        "password": keyfile_password,
        "client_authorities": None if ca_certs is None else os.fspath(ca_certs),
        "client_auth": client_auth,
        "tickets": _process_role.tickets,
    }


class ClientTls(TypedDict):
    """The files of a client of TLS; by default it has no certificate and trusts the system's."""

    certificate: str | None
    key: str | None
    password: bytes | None
    authority: str | None


def client_tls(
    ca_certs: Path | None,
    certfile: Path | None,
    keyfile: Path | None,
    keyfile_password: str | bytes | None,
) -> ClientTls:
    """The settings of the options ``ssl_…`` of a client.

    Raises:
        ValueError: The options contradict each other.
    """
    if certfile is None and (keyfile is not None or keyfile_password is not None):
        raise ValueError("ssl_certfile: expected a certificate for the private key")
    if isinstance(keyfile_password, str):
        keyfile_password = keyfile_password.encode()
    keyfile = certfile if keyfile is None else keyfile
    return {
        "certificate": None if certfile is None else os.fspath(certfile),
        "key": None if keyfile is None else os.fspath(keyfile),
        "password": keyfile_password,
        "authority": None if ca_certs is None else os.fspath(ca_certs),
    }


def _paths(name: str, files: Files) -> list[str]:
    if files is None:
        return []
    if isinstance(files, str | os.PathLike):
        return [os.fspath(files)]
    paths = [os.fspath(file) for file in files]
    if not paths:  # a glob without matches must not mean plaintext
        raise ValueError(f"{name}: expected at least one file, got an empty list")
    return paths
