"""Resolves the name of several servers."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from typing import Any

from ucall._client.address import Address

__all__ = ["addresses_of", "resolve"]


def resolve(address: Address) -> list[Address]:
    """All IP addresses of a host, by its records A and AAAA.

    Raises:
        OSError, UnicodeError: The host is not known, or the resolver does not answer.
    """
    return addresses_of(
        address, socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    )


def addresses_of(address: Address, found: Iterable[tuple[Any, ...]]) -> list[Address]:
    """The addresses in an answer of ``getaddrinfo``."""
    return [address.at(str(place[0])) for *_, place in found]
