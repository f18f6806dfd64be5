"""The base of both clients: makes requests, and responses of replies. It does no I/O."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Self

from ucall._client.address import Address
from ucall._client.inbox import check_waiting_bytes
from ucall._client.options import UNCHANGED, Options, Unchanged
from ucall._client.response import Response
from ucall._client.tls import context_for
from ucall._core import Reply, Request

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from ucall._tracing.client import ClientSpan, ClientSpans

__all__ = [
    "IMAGE_PIXELS_MAX",
    "REPLY_BYTES_MAX",
    "TIMEOUT_S",
    "ClientBase",
    "check_channel_options",
    "context_for",
]

TIMEOUT_S = 60.0
REPLY_BYTES_MAX = 67_108_864
IMAGE_PIXELS_MAX = 67_108_864


def check_channel_options(address: Address, waiting_bytes_max: int, reconnect: bool) -> None:
    """Raises ``ValueError`` for invalid options of a shared connection."""
    check_waiting_bytes(waiting_bytes_max)
    if reconnect and address.is_http:
        raise ValueError("reconnect: HTTP has no connection to keep; use ws:// or tcp://")


class ClientBase:
    """A client without its connections."""

    def __init__(
        self,
        address: Address,
        timeout: float | None,
        headers: Mapping[str, str] | None,
        max_image_pixels: int,
        trace: bool,
    ) -> None:
        self._spans: ClientSpans | None = None
        if trace:
            from ucall._tracing.client import ClientSpans

            self._spans = ClientSpans(address)
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
        """Returns a client with other options that shares this one's connections.

        ``client.with_options(timeout=2).sum(2, 3)`` sets them for one call.

        Args:
            timeout: Seconds that a call may take; ``None`` for no limit.
            headers: Added to this client's headers; a header of the same name is replaced.
            id: The id of every call; ``None`` to number them.

        Raises:
            TypeError, ValueError: An option is invalid; the message names it.
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

    def _request_of(
        self, request: dict[str, Any]
    ) -> tuple[Request, object, AbstractContextManager[ClientSpan | None]]:
        """The request that an object describes, its id and its span."""
        if not isinstance(request, dict):
            raise TypeError(f"expected a request as a dict, got {type(request).__name__}")
        request = {"jsonrpc": "2.0", **request}
        if "id" not in request:
            request["id"] = self._new_id()
        span: ClientSpan | None = None
        if self._spans is not None:
            span, request = self._spans.add_to(request)
        written = self._options.writer.document(request, request["id"])
        return written, request["id"], nullcontext() if span is None else span
