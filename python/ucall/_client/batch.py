"""What the batches of both clients have in common: all but the sending."""

from __future__ import annotations

from typing import Generic, TypeVar

from ucall._client.base import ClientBase
from ucall._client.calls import Calls
from ucall._client.names import Method, check_public
from ucall._client.response import Response
from ucall._core import Request

__all__ = ["BatchBase"]

ClientT = TypeVar("ClientT", bound=ClientBase)


class BatchBase(Generic[ClientT]):
    """Collects calls."""

    def __init__(self, client: ClientT) -> None:
        self._client = client
        self._batched = client._calls()

    def call(self, method: str, /, *args: object, **kwargs: object) -> Response:
        """Adds a call. Its response may be looked at once the batch was sent.

        Raises:
            TypeError: Params are given by position and by name.
        """
        return self._batched.add(method, args, kwargs)

    def notify(self, method: str, /, *args: object, **kwargs: object) -> None:
        """Adds a call that asks for no reply."""
        self._batched.notify(method, args, kwargs)

    def __getattr__(self, name: str) -> Method[Response]:
        check_public(self, name)
        return Method(self._add, name)

    def __len__(self) -> int:
        return len(self._batched)

    def _add(self, method: str, args: tuple[object, ...], kwargs: dict[str, object]) -> Response:
        return self._batched.add(method, args, kwargs)

    def _take(self) -> tuple[Calls, Request]:
        """All that were added, and as one request."""
        calls = self._batched
        request = calls.request(self._client._options.writer)
        self._batched = self._client._calls()
        return calls, request
