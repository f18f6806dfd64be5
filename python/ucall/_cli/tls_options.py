"""Whom a call over TLS trusts, and who it says it is: cURL's options, as the client takes them."""

from __future__ import annotations

import argparse
from typing import Any

from ucall._cli.params import UsageError
from ucall._client.address import Address

__all__ = ["tls_arguments"]


def tls_arguments(options: argparse.Namespace, uri: str) -> dict[str, Any]:
    """The arguments of `ucall.client.Client` that say so; none without such options.

    Raises:
        UsageError: The call is not encrypted, a file cannot be read, or a key has no certificate.
        ValueError: The URI makes no sense.
    """
    given = {
        "--cacert": options.cacert,
        "--cert": options.cert,
        "--key": options.key,
        "--insecure": options.insecure or None,
    }
    used = [option for option, value in given.items() if value is not None]
    if not used:
        return {}
    if not Address(uri, options.port).is_secure:
        raise UsageError(f"{used[0]}: expected a URI with https:// or tcps://")
    if options.key is not None and options.cert is None:
        raise UsageError("--key: expected --cert too")
    for option in ("--cacert", "--cert", "--key"):
        if given[option] is not None:
            _check_readable(option, given[option])
    verify = False if options.insecure else options.cacert or True
    cert = options.cert if options.key is None else (options.cert, options.key)
    return {"verify": verify, "cert": cert}


def _check_readable(option: str, path: str) -> None:
    """The errors of OpenSSL name no file."""
    try:
        with open(path, "rb") as file:
            file.read(1)
    except OSError as error:
        raise UsageError(f"{option}: {path}: {error.strerror}") from None
