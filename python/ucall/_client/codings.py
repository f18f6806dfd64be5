"""Has the requests and replies of a client in a content coding. Imported with that option alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ucall import _core
from ucall._client.address import Address, Addresses

if TYPE_CHECKING:
    from ucall.options import Compression

__all__ = ["compress"]


def compress(target: Address | Addresses, compression: Compression) -> None:
    """Has a client compress requests to these addresses, and accept compressed replies.

    Raises:
        ImportError: The package was built without compression.
        TypeError, ValueError: The option is invalid, or the addresses are not for HTTP.
    """
    try:
        codings = _core.CodingSupport(compression.min_bytes, compression.max_bytes)
    except AttributeError:
        name = type(compression).__name__
        raise TypeError(f"compression: expected ucall.Compression, got {name}") from None
    addresses = [target] if isinstance(target, Address) else target.list
    if not all(it.is_http for it in addresses):
        raise ValueError("compression: expected http://, https:// or unix://")
    if isinstance(target, Addresses):
        target.codings = codings
        if target.group:  # Its one address stands for the broker.
            return
    for address in addresses:
        address.codings = codings.anew()
