"""What the clients of both kinds have in common: an address, options, and a count of ids."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

from ucall._client.address import Address
from ucall._client.calls import Calls
from ucall._client.options import UNCHANGED, Options, Unchanged
from ucall._client.response import Response
from ucall._core import Reply, Request

if TYPE_CHECKING:
    import ssl

    from ucall._client.tls import Certificate, Verify

__all__ = ["IMAGE_PIXELS_MAX", "REPLY_BYTES_MAX", "TIMEOUT_S", "ClientBase", "context_for"]

TIMEOUT_S = 60.0
REPLY_BYTES_MAX = 67_108_864
IMAGE_PIXELS_MAX = 67_108_864


class ClientBase:
    """Makes requests, and responses of replies. Does not send."""

    def __init__(
        self,
        address: Address,
        timeout: float | None,
        headers: Mapping[str, str] | None,
        max_image_pixels: int,
    ) -> None:
        self._options = Options(address, timeout, headers or {})
        self._image_pixels_max = max_image_pixels
        self._ids = itertools.count(1)

    def with_options(
        self,
        *,
        timeout: float | Unchanged | None = UNCHANGED,
        headers: Mapping[str, str] | Unchanged = UNCHANGED,
        id: int | str | Unchanged | None = UNCHANGED,
    ) -> Self:
        """The same client, on the same connections, with other options for its calls.

        ``client.with_options(timeout=2).sum(2, 3)`` is for one call; kept in a variable, it is for
        many.

        Args:
            timeout: Seconds that a call may take; ``None`` for ever.
            headers: Added to those there are; one of the same name is replaced.
            id: Of every call, in place of a count.

        Raises:
            TypeError, ValueError: One of them makes no sense.
        """
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other._options = self._options.changed(timeout, headers, id)
        return other

    def __repr__(self) -> str:
        return f"<{type(self).__module__}.Client of {self._options.address}>"

    def _new_id(self) -> int | str:
        return next(self._ids) if self._options.id is None else self._options.id

    def _new_response(self, reply: Reply | None) -> Response:
        return Response(reply, self._image_pixels_max)

    def _calls(self) -> Calls:
        """Of a batch. They are counted even where calls have an id of their own: no two of a batch
        may have the same."""
        return Calls(lambda: next(self._ids), self._new_response)

    def _request_of(self, request: dict[str, Any]) -> tuple[Request, object]:
        """A request that was given as an object, and its id."""
        if not isinstance(request, dict):
            raise TypeError(f"expected a request as a dict, got {type(request).__name__}")
        request = {"jsonrpc": "2.0", **request}
        if "id" not in request:
            request["id"] = self._new_id()
        return self._options.writer.document(request, request["id"]), request["id"]


def context_for(address: Address, verify: Verify, cert: Certificate) -> ssl.SSLContext | None:
    """How to encrypt, if that address asks for it."""
    if not address.is_secure:
        return None
    from ucall._client import tls

    return tls.context_for(verify, cert)
