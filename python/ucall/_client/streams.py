"""The streams and subscriptions of a synchronous client."""

from __future__ import annotations

import builtins
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol, Self

from ucall import _core
from ucall._client.backoff import Backoff
from ucall._client.inbox import Inbox
from ucall._client.response import Response
from ucall._client.sockets import Deadline, closed_error, timeout_error
from ucall.errors import ConnectionError

if TYPE_CHECKING:
    from ucall._client.channel import Channel
    from ucall._client.inbox import Message
    from ucall._client.link import Link
    from ucall._client.pool import Pool
    from ucall._client.socket_connection import SocketConnection

__all__ = ["ChannelSource", "HttpSource", "Source", "Stream", "Subscription"]


class Source(Protocol):
    """The messages of one stream."""

    def next(self) -> Message:
        """Waits for the next item, or for the reply.

        Raises:
            ucall.ConnectionError: The connection failed, or a message is invalid.
            ucall.TimeoutError: No message came in time.
        """

    def close(self, *, has_ended: bool) -> None:
        """Cancels the stream, unless it has ended."""


class Stream:
    """The items of one call, as the server sends them.

    ::

        for token in client.stream.generate(prompt="hi"):
            print(token)

    A loop that is left cancels the call, as `close` does. An error of the call is raised as
    `ucall.RPCError` after the items before it. ``timeout`` of the client limits the wait for each
    item, not the whole stream.
    """

    def __init__(self, source: Source, image_pixels_max: int) -> None:
        self._source: Source | None = source
        self._image_pixels_max = image_pixels_max
        self._response: Response | None = None

    @property
    def result(self) -> Any:
        """What the function returned at the end, in JSON's types.

        Raises:
            RuntimeError: The stream has not ended.
            ucall.RPCError: The call failed.
        """
        return self.response.json

    @property
    def response(self) -> Response:
        """The reply at the end, for other forms of the result.

        Raises:
            RuntimeError: The stream has not ended.
        """
        if self._response is None:
            raise RuntimeError("the stream has not ended")
        return self._response

    def __iter__(self) -> Iterator[Any]:
        try:
            while (item := self._next_item()) is not None:
                yield item.value
        finally:
            self.close()

    def close(self) -> None:
        """Cancels the call, unless it has ended. A loop that waits in another thread ends."""
        source, self._source = self._source, None
        if source is not None:
            source.close(has_ended=self._response is not None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        """Cancels the call, unless it has ended."""
        self.close()

    def __del__(self) -> None:
        with suppress(Exception):
            self.close()

    def _next_item(self) -> _core.Notification | None:
        """Waits for the next item; ``None`` at the end."""
        source = self._source
        if source is None:
            return None
        try:
            message = source.next()
        except OSError:
            if self._source is None:  # Another thread has closed it.
                return None
            raise
        if isinstance(message, _core.Notification):
            return message
        self._response = Response(message, self._image_pixels_max)
        self.close()
        self._response.raise_for_status()
        return None


class ChannelSource:
    """A stream over the shared connection."""

    def __init__(
        self, channel: Channel, request: _core.Request, id: object, timeout: float | None
    ) -> None:
        deadline = Deadline(timeout)
        self._channel, self._ids, self._timeout = channel, (id,), timeout
        self._link = channel.link(deadline)
        self._link.make_wakeable()
        self._inbox = channel.start(self._link, request, self._ids, deadline)

    def next(self) -> Message:
        """See `Source.next`."""
        try:
            self._link.wait(self._inbox, Deadline(self._timeout))
        except builtins.TimeoutError:
            raise timeout_error(self._timeout, "no further item") from None
        return self._inbox.take()

    def close(self, *, has_ended: bool) -> None:
        """See `Source.close`."""
        self._link.forget(self._ids)
        if not has_ended:
            self._channel.cancel(self._link, self._ids)
            self._link.end(self._inbox)


class HttpSource:
    """A stream over HTTP, as server-sent events on a connection of its own."""

    def __init__(
        self, pool: Pool, request: _core.Request, id: object, timeout: float | None
    ) -> None:
        self._request, self._id, self._timeout = request, id, timeout
        deadline = Deadline(timeout)
        self._connection: SocketConnection = pool.event_connection(deadline)
        self._connection.begin(request, timeout)
        self._messages: deque[Message] = deque()

    def next(self) -> Message:
        """See `Source.next`."""
        while not self._messages:
            self._messages.extend(self._connection.next_messages(self._timeout))
        message = self._messages.popleft()
        check_event(message, self._request, self._id)
        return message

    def close(self, *, has_ended: bool) -> None:
        """See `Source.close`. The server sees the end of the connection."""
        if not has_ended:
            self._connection.shut_down()
        self._connection.close()


def check_event(message: Message, request: _core.Request, id: object) -> None:
    """Raises ``ucall.ConnectionError`` for an event that belongs to another call."""
    if isinstance(message, _core.Reply):
        message.check_answers(request)
    elif message.token != id:
        raise ConnectionError("the server sent an event that is no item of this stream")


class Subscription:
    """The notifications that the server starts: pairs of method and params.

    ::

        with client.subscribe() as messages:
            client.watch(topic="prices")
            for method, params in messages:
                print(method, params)

    It begins when it is made. If the program reads too slowly, the oldest are dropped.
    """

    def __init__(self, channel: Channel, on_connect: Callable[[], object] | None) -> None:
        self._channel = channel
        self._on_connect = on_connect
        self._backoff = Backoff()
        self._inbox = inbox = Inbox()
        self._ended = ended = threading.Event()
        # It refers to no `self`, which would not be collected when the program drops it.
        inbox.wake = lambda: ended.set() if inbox.error is not None else None
        self._link: Link | None = None
        channel.subscriptions.append(self._inbox)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> tuple[str, Any]:
        """Waits for the next notification, without a time limit.

        Raises:
            StopIteration: The subscription or its client was closed.
            ucall.ConnectionError: The connection has ended, and the client does not reconnect.
        """
        while True:
            if self._inbox not in self._channel.subscriptions:
                raise StopIteration
            if self._inbox.items:
                message = self._inbox.take()
                assert isinstance(message, _core.Notification)
                return message.method, message.params
            try:
                self._wait()
            except ConnectionError:
                if not self._channel.reconnect and not self._ended.is_set():
                    raise
                self._ended.wait(self._backoff.next())

    def close(self) -> None:
        """Ends the subscription, also for a thread that waits. The server may go on sending, to
        other subscriptions."""
        with suppress(ValueError):
            self._channel.subscriptions.remove(self._inbox)
        self._inbox.fail(closed_error())
        if self._link is not None:
            self._link.end(self._inbox)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        """Closes it."""
        self.close()

    def __del__(self) -> None:
        self.close()

    def _wait(self) -> None:
        link = self._link
        if link is None or link.error is not None:
            if link is not None and not self._channel.reconnect:
                raise link.error or closed_error()
            link = self._channel.link(Deadline(None), self._ended)
            if self._on_connect is not None:
                self._on_connect()
            link.make_wakeable()
            self._link = link
            self._backoff.opened()
        link.wait(self._inbox, Deadline(None))
        if link.error is not None and not self._inbox.is_ready:
            raise link.error
