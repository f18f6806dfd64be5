"""Responses of server-sent events whose first one is made before the head is sent.

So an error that comes before it has a status.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

from ucall._openai.errors import ApiError, api_error
from ucall._routes.response import HttpResponse
from ucall.errors import ConnectionError, RPCError

__all__ = ["as_api_error", "event", "event_response"]

#: What a call raises.
FAILURES = (ApiError, RPCError, ConnectionError)


def event(value: object, kind: str | None = None) -> bytes:
    """A server-sent event with a value as JSON."""
    head = "" if kind is None else f"event: {kind}\n"
    return f"{head}data: {json.dumps(value, separators=(',', ':'))}\n\n".encode()


def as_api_error(error: ApiError | RPCError | ConnectionError) -> ApiError:
    """The error for the caller of what a call raises."""
    return error if isinstance(error, ApiError) else api_error(error)


async def event_response(events: AsyncGenerator[bytes]) -> HttpResponse:
    """The response of events.

    Raises what the first one does.
    """
    return HttpResponse(_Begun(await anext(events), events), content_type="text/event-stream")


class _Begun(AsyncIterator[bytes]):
    """Events of which the first was made. They are closed also if no other is asked for."""

    def __init__(self, first: bytes, others: AsyncGenerator[bytes]) -> None:
        self._first: bytes | None = first
        self._others = others

    async def __anext__(self) -> Any:
        first, self._first = self._first, None
        return await anext(self._others) if first is None else first

    async def aclose(self) -> None:
        await self._others.aclose()
