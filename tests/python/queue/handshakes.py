"""The first message of a TLS handshake, and the memory that handshakes take."""

from __future__ import annotations

import os
import ssl

import pytest
from pairs import Pairs


def client_hello(pairs: Pairs) -> bytes:
    """A TLS client's first records."""
    assert pairs.authority is not None
    context = ssl.create_default_context(cafile=pairs.authority.path)
    context.set_alpn_protocols(["ucall-queue"])
    out = ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), out, server_hostname="localhost").do_handshake()
    return out.read()


def resident_bytes() -> int:
    """The physical memory of this process."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
