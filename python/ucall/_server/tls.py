"""Converts a server's TLS options for the core."""

from __future__ import annotations

import os
from typing import TypedDict

from ucall._workers import process_role
from ucall.options import TLS, Path

__all__ = ["ClientTls", "TlsSettings", "client_tls", "tls_settings"]


class TlsSettings(TypedDict):
    """The argument ``tls`` of ``_core.Server``."""

    certificates: list[str]
    private_keys: list[str]
    password: bytes | None
    client_authorities: str | None
    client_auth: str
    tickets: bytes | None


def tls_settings(tls: TLS) -> TlsSettings:
    """The settings for the core."""
    password = tls.keyfile_password
    return {
        "certificates": tls.certfiles,
        "private_keys": tls.keyfiles,
        "password": password.encode() if isinstance(password, str) else password,
        "client_authorities": None if tls.ca_certs is None else os.fspath(tls.ca_certs),
        "client_auth": tls.verifies_clients,
        "tickets": process_role.tickets,
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
