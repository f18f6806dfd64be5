"""The TLS settings of a client."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, TypeAlias

from ucall._client.address import Address

if TYPE_CHECKING:
    import ssl

__all__ = ["Certificate", "Verify", "context_for"]

Verify: TypeAlias = "bool | str | os.PathLike[str] | ssl.SSLContext"
"""``True``: the system's authorities. A path: those in a file or folder. ``False``: no check."""

Certificate: TypeAlias = (
    "str | os.PathLike[str] | tuple[str | os.PathLike[str], str | os.PathLike[str]] | None"
)
"""A file with the client's certificate and key, or a file for each."""


def context_for(address: Address, verify: Verify, cert: Certificate) -> ssl.SSLContext | None:
    """Python's default context with these settings; None if the address is not under TLS.

    Raises:
        OSError: A file cannot be read; ``ssl.SSLError`` if it holds no certificate or key.
        ValueError: The address is for UDP, which is never under TLS.
    """
    if address.is_udp and (verify is not True or cert is not None):
        raise ValueError("verify and cert: UDP has no TLS; use tcps://, https:// or wss://")
    if not address.is_secure:
        return None
    import ssl

    certificates = cert if isinstance(cert, tuple) else (cert,)
    for file in (verify, *certificates):
        if isinstance(file, str | os.PathLike):
            os.stat(file)  # The exceptions of OpenSSL name no file.
    if isinstance(verify, ssl.SSLContext):
        context = verify
    elif isinstance(verify, bool):
        context = ssl.create_default_context()
    elif os.path.isdir(verify):
        context = ssl.create_default_context(capath=verify)
    else:
        context = ssl.create_default_context(cafile=verify)
    if verify is False:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if isinstance(cert, tuple):
        context.load_cert_chain(*cert)
    elif cert is not None:
        context.load_cert_chain(cert)
    return context
