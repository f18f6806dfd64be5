"""The connection that all calls of a client share, opened again when it has ended.

Both clients run these coroutines, as they do those of `failover`: the synchronous one by
`blocking.run`. Each has a class of its own with what they wait for.
"""

from __future__ import annotations

import builtins
from collections.abc import Awaitable, Collection
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar
from weakref import ref

from ucall import _core
from ucall._client.backoff import backoff
from ucall._client.inbox import Inbox, Router
from ucall._client.options import Options
from ucall._client.sockets import (
    Deadline,
    check_in_time,
    client_closed_error,
    closed_error,
    connect_error,
    not_sent,
)
from ucall._client.websocket import Upgrade
from ucall.errors import ConnectionError

if TYPE_CHECKING:
    from ucall._client.aio_connection import SharedConnection
    from ucall._client.link import Link

__all__ = ["Reconnecting"]


#: As each client has it, with the same methods.
ConnectionT = TypeVar("ConnectionT", "Link", "SharedConnection")


class Reconnecting(Generic[ConnectionT]):
    """One connection to a server, with all calls, streams and subscriptions of a client.

    Args:
        reconnect: Whether failed attempts to connect are repeated.
    """

    #: An event that threads, or tasks, wait for.
    new_event: ClassVar[Any]
    #: The lock of those who open the connection.
    _opening: Any

    def __init__(self, options: Options, waiting_bytes_max: int, *, reconnect: bool) -> None:
        self._options = options
        self._waiting_bytes_max = waiting_bytes_max
        self.reconnect = reconnect
        self.subscriptions: list[Inbox] = []
        self._connection: ConnectionT | None = None
        #: Those before it whose servers drain, while calls or subscriptions wait for messages.
        self._draining: list[ref[ConnectionT]] = []
        #: Is set when the client is closed. Later calls have another one.
        self.closed = self.new_event()

    async def exchange_until(
        self, request: _core.Request, ids: Collection[object], deadline: Deadline
    ) -> _core.Reply:
        """Sends a request and returns its reply; an empty one if it has no ids.

        Raises:
            ValueError: A call in progress has one of the ids.
            ucall.ConnectionError: The connection failed, or the reply is not JSON-RPC.
            TimeoutError: There was no reply in time, connecting included.
        """
        connection, inbox = await self.begin(request, ids, deadline)
        if not ids:
            return _core.Reply.nothing()
        try:
            await connection.wait(inbox, deadline)
            while not isinstance(message := inbox.take(), _core.Reply):
                # An item that was not requested.
                await connection.wait(inbox, deadline)
        except BaseException:
            self.cancel(connection, ids)
            raise
        finally:
            connection.forget(ids)
        if not message.is_result:
            check_in_time(message, deadline)
        return message

    async def connection(self, deadline: Deadline, closed: Any = None) -> ConnectionT:
        """The connection, opened if there is none.

        Args:
            closed: Is set when the caller needs it no more; by default when the client is closed.

        Raises:
            ucall.ConnectionError: No server accepts it, or the client was closed meanwhile.
            ucall.TimeoutError: No server has accepted it in time.
        """
        acquired = self._acquire(deadline)
        closed = closed or self.closed
        await acquired
        opening = self._opening
        try:
            connection = self._connection
            if connection is not None:
                if await connection.is_alive() and not connection.is_draining:
                    return connection
                connection.close_if_drained()
            opened = await self._open(deadline, closed)
            if connection is not None and connection.error is None:
                kept: list[Any] = [it for it in self._draining if it() is not None]
                self._draining = [*kept, ref(connection)]
            self._connection = opened
            if closed.is_set():  # Before `close` has seen the connection, perhaps.
                self._connection = None
                opened.close()
                raise not_sent(client_closed_error())
            return opened
        finally:
            opening.release()

    async def begin(
        self, request: _core.Request, ids: Collection[object], deadline: Deadline
    ) -> tuple[ConnectionT, Inbox]:
        """Sends a request; returns the connection, and the inbox of its messages."""
        raise NotImplementedError

    async def exchange_alone(
        self, request: _core.Request, ids: Collection[object], deadline: Deadline
    ) -> _core.Reply:
        """Sends a request on a connection of its own, and returns its reply. If the server ends the
        connection because of the request, no other call fails.

        Raises:
            ucall.ConnectionError: The connection failed, or the reply is not JSON-RPC.
            TimeoutError: There was no reply in time, connecting included.
        """
        connection = await self._open_once(deadline, [])
        try:
            inbox = self.start(connection, request, ids, deadline)
            while not inbox.is_ready and connection.error is None:
                await connection.wait(inbox, deadline)
            message = inbox.take() if inbox.is_ready else None
        finally:
            connection.close()
        if not isinstance(message, _core.Reply):
            raise connection.error or closed_error()
        return message

    def start(
        self,
        connection: ConnectionT,
        request: _core.Request,
        ids: Collection[object],
        deadline: Deadline,
    ) -> Inbox:
        """Sends a request on a connection; returns the inbox of its messages."""
        raise NotImplementedError

    async def pause(self, ended: Any, seconds: float) -> None:
        """Waits, unless this event is set meanwhile."""
        raise NotImplementedError

    def cancel(self, connection: ConnectionT, ids: Collection[object]) -> None:
        """Tells the server that the replies to these calls are not needed."""
        call = self._options.writer.without_frames().call
        connection.cancel([call("$/cancelRequest", (), {"id": id}, None) for id in ids])

    def close(self) -> None:
        """Closes the connection, and those that drain. The next call opens another. Calls in
        progress fail.

        It does not wait for one that is being opened: whoever opens it closes it.
        """
        closed, self.closed = self.closed, self.new_event()
        closed.set()
        # The connection first: it drains, if another one is opened meanwhile.
        current, self._connection = self._connection, None
        draining: list[Any] = self._draining
        self._draining = []
        for connection in (current, *(it() for it in draining)):
            if connection is None:
                continue
            if not self._options.address.is_websocket:
                # The server cannot tell the end of the connection from that of its requests.
                self.cancel(connection, connection.fail_calls())
            connection.close()

    def end_subscriptions(self) -> None:
        """Ends all subscriptions, which would open the connection again."""
        ended = self.subscriptions[:]
        self.subscriptions.clear()
        for inbox in ended:
            inbox.fail(client_closed_error())

    def _acquire(self, deadline: Deadline) -> Awaitable[object]:
        """Waits for the lock of those who open the connection."""
        raise NotImplementedError

    async def _connect_with(
        self, router: Router, upgrade: Upgrade | None, deadline: Deadline
    ) -> ConnectionT:
        """Connects, under TLS if the address is."""
        raise NotImplementedError

    async def _open(self, deadline: Deadline, closed: Any) -> ConnectionT:
        pauses = backoff()
        while not closed.is_set():
            try:
                return await self._open_once(deadline, self.subscriptions)
            except ConnectionError as error:
                seconds = next(pauses)
                if not self.reconnect or _passes_within(deadline, seconds):
                    raise error from None
            await self.pause(closed, seconds)
        raise not_sent(client_closed_error())

    async def _open_once(self, deadline: Deadline, subscriptions: list[Inbox]) -> ConnectionT:
        address = self._options.address
        upgrade = Upgrade(self._options.upgrade_head()) if address.is_websocket else None
        router = Router(subscriptions, self._waiting_bytes_max, address.frames)
        connection = await self._connect_with(router, upgrade, deadline)
        try:
            await connection.open(deadline)
        except BaseException as error:
            connection.fail(ConnectionError("the connection was not opened"))
            if isinstance(error, ConnectionError):
                raise not_sent(error) from None
            if not isinstance(error, OSError):
                raise
            raise connect_error(address, error, deadline.seconds) from None
        return connection


def _passes_within(deadline: Deadline, seconds: float) -> bool:
    try:
        left = deadline.left()
    except builtins.TimeoutError:
        return True
    return left is not None and left <= seconds
