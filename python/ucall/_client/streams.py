"""The streams and subscriptions of both clients, and those of the synchronous one.

The coroutines are run as those of `reconnecting`.
"""

from __future__ import annotations

import builtins
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar

from ucall import _core
from ucall._client.backoff import Backoff
from ucall._client.blocking import result_of, run
from ucall._client.inbox import Inbox
from ucall._client.response import Reading, Response
from ucall._client.sockets import Deadline, closed_error, not_sent, note_coding, timeout_error
from ucall.errors import ConnectionError, TimeoutError

if TYPE_CHECKING:
    from ucall._client.channel import Channel
    from ucall._client.inbox import Message
    from ucall._client.options import Options
    from ucall._client.reconnecting import Reconnecting

__all__ = [
    "ChannelSource",
    "HttpSource",
    "Source",
    "Stream",
    "StreamBase",
    "Subscription",
    "SubscriptionBase",
]

ChannelT = TypeVar("ChannelT", bound="Reconnecting[Any]")


class Source(Protocol):
    """The messages of one stream."""

    async def begin(self, deadline: Deadline) -> None:
        """Sends the request, once.

        Raises:
            ucall.ConnectionError: The connection failed.
            ucall.TimeoutError: The request was not sent in time.
        """

    async def next(self, deadline: Deadline) -> Message:
        """Waits for the next item, or for the reply.

        Raises:
            ucall.ConnectionError: The connection failed, or a message is invalid.
            TimeoutError: No message came in time.
        """

    def poll(self) -> _core.Notification | None:
        """The next item, if it was received already."""

    def close(self, *, has_ended: bool) -> None:
        """Cancels the stream, unless it has ended or was not begun."""


class StreamBase:
    """The items of one call, without the waits of a client's kind."""

    def __init__(self, source: Source, timeout: float | None, reading: Reading) -> None:
        self._source: Source | None = source
        self._has_begun = False
        self._timeout = timeout
        self._reading = reading
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

    def _close(self) -> None:
        source, self._source = self._source, None
        if source is not None:
            source.close(has_ended=self._response is not None)

    def _poll(self) -> _core.Notification | None:
        """The next item, if it was received already."""
        source = self._source
        return source.poll() if source is not None and self._has_begun else None

    async def _next(self) -> _core.Notification | None:
        """Waits for the next item; ``None`` at the end."""
        source = self._source
        if source is None:
            return None
        try:
            message = await self._next_message(source)
        except OSError as error:
            if self._source is None:  # Another thread or task has closed it.
                return None
            if isinstance(error, builtins.TimeoutError) and not isinstance(error, TimeoutError):
                late = timeout_error(self._timeout, "no further item")
                raise (late if self._has_begun else not_sent(late)) from None
            raise
        if isinstance(message, _core.Notification):
            return message
        self._response = Response(message, self._reading)
        self._close()
        self._response.raise_for_status()
        return None

    async def _next_message(self, source: Source) -> Message:
        deadline = Deadline(self._timeout)
        if not self._has_begun:
            await source.begin(deadline)
            self._has_begun = True
        return await source.next(deadline)


class Stream(StreamBase):
    """The items of one call, as the server sends them.

    ::

        for token in client.stream.generate(prompt="hi"):
            print(token)

    A loop that is left cancels the call, as `close` does. An error of the call is raised as
    `ucall.RPCError` after the items before it. ``timeout`` of the client limits the wait for each
    item, not the whole stream.
    """

    def __init__(self, source: Source, timeout: float | None, reading: Reading) -> None:
        super().__init__(source, timeout, reading)
        run(source.begin(Deadline(timeout)))
        self._has_begun = True

    def __iter__(self) -> Iterator[Any]:
        try:
            while (item := self._next_item()) is not None:
                yield item.value
        finally:
            self.close()

    def close(self) -> None:
        """Cancels the call, unless it has ended. A loop that waits in another thread ends."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        """Cancels the call, unless it has ended."""
        self.close()

    def __del__(self) -> None:
        with suppress(Exception):
            self.close()

    def _next_item(self) -> _core.Notification | None:
        return self._poll() or run(self._next())


class ChannelSource:
    """A stream over the shared connection."""

    def __init__(self, channel: Reconnecting[Any], request: _core.Request, id: object) -> None:
        self._channel, self._request, self._ids = channel, request, (id,)
        self._connection: Any = None

    async def begin(self, deadline: Deadline) -> None:
        """See `Source.begin`."""
        connection, self._inbox = await self._channel.begin(self._request, self._ids, deadline)
        connection.make_wakeable()
        self._connection = connection

    async def next(self, deadline: Deadline) -> Message:
        """See `Source.next`."""
        await self._connection.wait(self._inbox, deadline)
        return self._inbox.take()

    def poll(self) -> _core.Notification | None:
        """See `Source.poll`."""
        return self._inbox.take_item() if self._inbox.items else None

    def close(self, *, has_ended: bool) -> None:
        """See `Source.close`."""
        if self._connection is not None:
            self._connection.forget(self._ids)
            if not has_ended:
                self._channel.cancel(self._connection, self._ids)
                self._connection.end(self._inbox)


class HttpSource:
    """A stream over HTTP, as server-sent events on a connection of its own."""

    def __init__(
        self,
        pool: Any,
        options: Options,
        write: Callable[[_core.RequestWriter], _core.Request],
        id: object,
    ) -> None:
        self._pool, self._options, self._write, self._id = pool, options, write, id
        self._request = write(options.stream_writer())
        self._connection: Any = None

    async def begin(self, deadline: Deadline) -> None:
        """See `Source.begin`."""
        self._connection = await result_of(self._pool.event_connection(deadline))
        self._connection.begin(self._request, deadline)

    async def next(self, deadline: Deadline) -> Message:
        """See `Source.next`."""
        try:
            message: Message = await self._connection.next(deadline)
        except ConnectionError as error:
            note_coding(error, self._request)
            if not self._options.address.refuses_coding(error):
                raise
            message = await self._next_without_coding(deadline)
        if isinstance(message, _core.Reply):
            message.check_answers(self._request)
            return message
        return self._checked(message)

    async def _next_without_coding(self, deadline: Deadline) -> Message:
        self._connection.abort()
        self._request = self._write(self._options.stream_writer().plain())
        await self.begin(deadline)
        message: Message = await self._connection.next(deadline)
        return message

    def poll(self) -> _core.Notification | None:
        """See `Source.poll`."""
        item = self._connection.poll()
        return None if item is None else self._checked(item)

    def close(self, *, has_ended: bool) -> None:
        """See `Source.close`. The server sees the end of the connection."""
        if self._connection is not None:
            self._connection.abort()

    def _checked(self, item: _core.Notification) -> _core.Notification:
        """Raises ``ucall.ConnectionError`` for an event that belongs to another call."""
        if item.token != self._id:
            raise ConnectionError("the server sent an event that is no item of this stream")
        return item


class SubscriptionBase(Generic[ChannelT]):
    """A subscription without the waits of a client's kind."""

    #: The event that it was closed, if its channel's own does not do.
    _ended: Any = None

    def __init__(self, channel: ChannelT, on_connect: Callable[[], Any] | None) -> None:
        self._channel = channel
        self._on_connect = on_connect
        self._backoff = Backoff()
        self._inbox = Inbox()
        self._connection: Any = None
        channel.subscriptions.append(self._inbox)

    async def _next(self) -> tuple[str, Any] | None:
        """Waits for the next notification; ``None`` when the subscription or its client was
        closed.

        Raises:
            ucall.ConnectionError: The connection has ended, and the client does not reconnect.
        """
        while self._inbox in self._channel.subscriptions:
            if self._inbox.items:
                return self._take()
            try:
                await self._wait()
            except ConnectionError:
                if self._inbox not in self._channel.subscriptions:
                    break
                if not self._channel.reconnect:
                    raise
                await self._channel.pause(self._ended, self._backoff.next())
        return None

    def _take(self) -> tuple[str, Any]:
        notification = self._inbox.take_item()
        return notification.method, notification.params

    async def _wait(self) -> None:
        connection, no_deadline = self._connection, Deadline(None)
        if connection is None or connection.error is not None:
            if connection is not None and not self._channel.reconnect:
                raise connection.error or closed_error()
            connection = await self._channel.connection(no_deadline, self._ended)
            await self._greet()
            connection.make_wakeable()
            self._connection = connection
            self._backoff.opened()
        await connection.wait(self._inbox, no_deadline)
        if connection.error is not None and not self._inbox.is_ready:
            raise connection.error

    async def _greet(self) -> None:
        """Calls ``on_connect`` for a new connection."""
        raise NotImplementedError


class Subscription(SubscriptionBase["Channel"]):
    """The notifications that the server starts: pairs of method and params.

    ::

        with client.subscribe() as messages:
            client.watch(topic="prices")
            for method, params in messages:
                print(method, params)

    It begins when it is made. If the program reads too slowly, the oldest are dropped.
    """

    def __init__(self, channel: Channel, on_connect: Callable[[], object] | None) -> None:
        super().__init__(channel, on_connect)
        inbox = self._inbox
        self._ended = ended = threading.Event()
        # It refers to no `self`, which would not be collected when the program drops it.
        inbox.wake = lambda: ended.set() if inbox.error is not None else None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> tuple[str, Any]:
        """Waits for the next notification, without a time limit.

        Raises:
            StopIteration: The subscription or its client was closed.
            ucall.ConnectionError: The connection has ended, and the client does not reconnect.
        """
        found = run(self._next())
        if found is None:
            raise StopIteration
        return found

    def close(self) -> None:
        """Ends the subscription, also for a thread that waits. The server may go on sending, to
        other subscriptions."""
        with suppress(ValueError):
            self._channel.subscriptions.remove(self._inbox)
        self._inbox.fail(closed_error())
        if self._connection is not None:
            self._connection.end(self._inbox)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        """Closes it."""
        self.close()

    def __del__(self) -> None:
        self.close()

    async def _greet(self) -> None:
        if self._on_connect is not None:
            self._on_connect()
