"""The calls of one batch, and the replies to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ucall._client.response import Response
from ucall._core import Reply, Request, RequestWriter
from ucall.errors import ConnectionError

__all__ = ["Calls", "request_object"]


def request_object(
    method: str, args: tuple[object, ...], kwargs: dict[str, object]
) -> dict[str, Any]:
    """A JSON-RPC request without an id.

    Raises:
        TypeError: Params are given by position and by name.
    """
    if args and kwargs:
        raise TypeError("params are given by position or by name, not both (JSON-RPC 2.0, 4.2)")
    request: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
    if args or kwargs:
        request["params"] = kwargs or args
    return request


class Calls:
    """Collects calls, and deals the replies out to them."""

    __slots__ = ("_new_id", "_new_response", "_requests", "responses")

    def __init__(
        self, new_id: Callable[[], object], new_response: Callable[[Reply | None], Response]
    ) -> None:
        self._new_id = new_id
        self._new_response = new_response
        self._requests: list[dict[str, Any]] = []
        self.responses: dict[object, Response] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, method: str, args: tuple[object, ...], kwargs: dict[str, object]) -> Response:
        """Adds a call, whose response is filled in later."""
        request = request_object(method, args, kwargs)
        id = self._new_id()
        self._requests.append({**request, "id": id})
        response = self._new_response(None)
        self.responses[id] = response
        return response

    def notify(self, method: str, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """Adds a notification."""
        self._requests.append(request_object(method, args, kwargs))

    def request(self, writer: RequestWriter) -> Request:
        """All of them."""
        return writer.batch(self._requests, bool(self.responses))

    def resolve(self, reply: Reply) -> list[Response]:
        """Fills the responses in, by id; returns them in the order of the calls.

        Raises:
            ucall.RPCError: The batch was refused as a whole.
            ucall.ConnectionError: A call was not replied to.
        """
        if reply.is_error:
            self._new_response(reply).raise_for_status()
        replies = reply.split() if reply.is_batch else []
        for part in replies:
            # Looked up among ours: its own ids may be of any type and hash alike by the million.
            id = part.id
            if isinstance(id, int | float | str) and id in self.responses:
                self.responses[id]._reply = part
        for id, response in self.responses.items():
            if response._reply is None:
                raise ConnectionError(f"the server left out its reply to the call of id {id!r}")
        return list(self.responses.values())
