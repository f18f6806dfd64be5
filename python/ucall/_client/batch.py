"""The calls of a batch: all that the batches of both clients share except sending."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from ucall._client.base import ClientBase
from ucall._client.blocking import result_of
from ucall._client.names import Method, check_public
from ucall._client.response import Response
from ucall._core import Reply, Request, RequestWriter
from ucall.errors import ConnectionError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ucall._tracing.client import ClientSpan

__all__ = ["BatchBase"]

ClientT = TypeVar("ClientT", bound=ClientBase)


class Calls:
    """The requests of one batch, and the responses to them by id."""

    __slots__ = ("_client", "_requests", "_spans", "responses")

    def __init__(self, client: ClientBase) -> None:
        self._client = client
        self._requests: list[dict[str, Any]] = []
        self._spans: dict[object, ClientSpan] = {}
        self.responses: dict[object, Response] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, method: str, args: tuple[object, ...], kwargs: dict[str, object]) -> Response:
        """Adds a call. Its response is empty until `resolve` fills it in."""
        request = _request_object(method, args, kwargs)
        # Not `ClientBase._new_id`, which may be a fixed one: each call of a batch needs its own.
        id = next(self._client._ids)
        self._requests.append({**request, "id": id})
        response = self.responses[id] = self._client._new_response(None)
        return response

    def notify(self, method: str, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """Adds a notification."""
        self._requests.append(_request_object(method, args, kwargs))

    def begin(self) -> None:
        """Completes the calls before they are sent. The span of each begins."""
        if (spans := self._client._spans) is not None:
            for position, request in enumerate(self._requests):
                span, self._requests[position] = spans.add_to(request)
                # A notification has no id.
                self._spans[request.get("id", f"notification {position}")] = span
        options = self._client._options
        own = {"timeout_ms": options.timeout_ms, "priority": options.priority}
        own = {name: value for name, value in own.items() if value is not None}
        if own:
            for request in self._requests:
                request["_meta"] = {**request.get("_meta", {}), **own}

    def request(self, writer: RequestWriter) -> Request:
        """The batch as one request."""
        return writer.batch(self._requests, bool(self.responses))

    def datagrams(self) -> tuple[list[tuple[object, bytes]], list[bytes]]:
        """The calls as requests of their own, with their ids, and the notifications."""
        writer = self._client._options.writer
        calls = [it for it in self._requests if "id" in it]
        notifications = [it for it in self._requests if "id" not in it]
        return (
            [(it["id"], bytes(writer.document(it, it["id"]).data)) for it in calls],
            [bytes(writer.batch([it], False).data) for it in notifications],
        )

    def resolve_each(self, replies: list[Reply]) -> None:
        """Fills the responses in, in the order of the calls."""
        for response, reply in zip(self.responses.values(), replies, strict=True):
            response._reply = reply

    def repeats(
        self, is_wanted: Callable[[Reply], bool], calls_max: int
    ) -> Iterator[tuple[Request, list[object]]]:
        """Batches of the calls whose replies want it, and their ids, to send them again."""
        replies = {id: response._reply for id, response in self.responses.items()}
        wanted = {id for id, reply in replies.items() if reply is not None and is_wanted(reply)}
        calls = [it for it in self._requests if it.get("id") in wanted]
        for start in range(0, len(calls), calls_max):
            some = calls[start : start + calls_max]
            yield self._client._options.writer.batch(some, True), [it["id"] for it in some]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """Ends the spans of the calls."""
        for id, span in self._spans.items():
            if error is not None:
                span.fail(error)
                continue
            if id in self.responses:
                span.take(self.responses[id]._reply)
            span.end()

    def resolve(self, reply: Reply) -> list[Response]:
        """Fills the responses in by id; returns them in the order of the calls.

        Raises:
            ucall.RPCError: The server refused the whole batch.
            ucall.ConnectionError: The reply to a call is missing.
        """
        if reply.is_error:
            self._client._new_response(reply).raise_for_status()
        for part in reply.split() if reply.is_batch else []:
            # The server's ids are looked up, never stored: they may be of any type, and millions of
            # them may have one hash.
            id = part.id
            if isinstance(id, int | float | str) and id in self.responses:
                self.responses[id]._reply = part
        for id, response in self.responses.items():
            if response._reply is None:
                raise ConnectionError(f"the reply to the call of id {id!r} is missing")
        return list(self.responses.values())


class BatchBase(Generic[ClientT]):
    """Collects calls."""

    def __init__(self, client: ClientT) -> None:
        self._client = client
        self._calls = Calls(client)

    def call(self, method: str, /, *args: object, **kwargs: object) -> Response:
        """Adds a call. Its response can be read after the batch was sent.

        Raises:
            TypeError: Params are given both by position and by name.
        """
        return self._calls.add(method, args, kwargs)

    def notify(self, method: str, /, *args: object, **kwargs: object) -> None:
        """Adds a notification, which has no response.

        Raises:
            TypeError: Params are given both by position and by name.
        """
        self._calls.notify(method, args, kwargs)

    def __getattr__(self, name: str) -> Method[Response]:
        check_public(self, name)
        return Method(self._add, name)

    def __len__(self) -> int:
        return len(self._calls)

    async def _send(self) -> list[Response]:
        if not len(self):
            return []
        client, calls = self._client, self._calls
        calls.begin()
        if client._options.address.is_udp:
            return await self._send_datagrams()
        self._calls = Calls(client)
        with calls:
            try:
                reply = await client._exchange(calls.request, tuple(calls.responses))
            except (TypeError, ValueError):  # They cannot be written.
                self._calls = calls
                raise
            return calls.resolve(reply)

    async def _send_datagrams(self) -> list[Response]:
        client, calls = self._client, self._calls
        calls.request(client._options.writer)  # Raises if they cannot be written.
        self._calls = Calls(client)
        with calls:
            exchanging = client._pool.exchange_all(calls, client._options.timeout)
            found: list[Response] = await result_of(exchanging)
            return found

    def _add(self, method: str, args: tuple[object, ...], kwargs: dict[str, object]) -> Response:
        return self._calls.add(method, args, kwargs)


def _request_object(
    method: str, args: tuple[object, ...], kwargs: dict[str, object]
) -> dict[str, Any]:
    """A JSON-RPC request without an id.

    Raises:
        TypeError: Params are given both by position and by name.
    """
    if args and kwargs:
        raise TypeError("params are given by position or by name, not both (JSON-RPC 2.0, 4.2)")
    request: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
    if args or kwargs:
        request["params"] = kwargs or args
    return request
