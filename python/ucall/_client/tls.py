"""How an encrypted connection is trusted."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import ssl

__all__ = ["Certificate", "Verify", "context_for"]

Verify: TypeAlias = "bool | str | os.PathLike[str] | ssl.SSLContext"
"""``True``: the system's authorities. A path: those in that file or folder. ``False``: anybody."""

Certificate: TypeAlias = (
    "str | os.PathLike[str] | tuple[str | os.PathLike[str], str | os.PathLike[str]] | None"
)
"""A file with the client's own certificate and key, or one for each."""


def context_for(verify: Verify, cert: Certificate) -> ssl.SSLContext:
    """Python's own safe defaults, with what was asked for.

    Raises:
        OSError: A file cannot be read; ``ssl.SSLError`` when it holds no certificate or key.
    """
    import ssl

    certificates = cert if isinstance(cert, tuple) else (cert,)
    for file in (verify, *certificates):
        if isinstance(file, str | os.PathLike):
            os.stat(file)  # What OpenSSL raises names no file.
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
