"""The connections of an asyncio client: a pool over HTTP, one for all calls otherwise."""

from __future__ import annotations

import asyncio
import builtins
import socket
from collections.abc import Callable, Collection, Iterable
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Self, TypeVar

from ucall import _core
from ucall._client.aio_connection import (
    AsyncConnection,
    EventConnection,
    HttpConnection,
    SharedConnection,
)
from ucall._client.backoff import backoff
from ucall._client.happy_eyeballs import Place, attempts, literal
from ucall._client.inbox import Inbox, Router
from ucall._client.options import Options
from ucall._client.sockets import connect_error, not_sent, timeout_error
from ucall._client.websocket import Upgrade
from ucall.errors import ConnectionError, TimeoutError

if TYPE_CHECKING:
    import ssl

__all__ = ["AsyncPool", "HttpPool", "SharedPool"]

ConnectionT = TypeVar("ConnectionT", bound=AsyncConnection)


class AsyncPool:
    """Connections to one server, of the event loop that used them last.

    Args:
        connect_s: Seconds that one attempt to connect may take; ``None`` for as long as the call.
    """

    def __init__(
        self,
        options: Options,
        reply_bytes_max: int,
        tls: ssl.SSLContext | None,
        connect_s: float | None,
    ) -> None:
        self._connect_s = connect_s
        self._options = options
        self._address = options.address
        self._reply_bytes_max = reply_bytes_max
        self._tls = tls
        self._loop: asyncio.AbstractEventLoop | None = None

    async def exchange(
        self, request: _core.Request, ids: Collection[object], timeout: float | None
    ) -> _core.Reply:
        """Sends a request and returns its reply.

        Raises:
            ucall.ConnectionError: The connection failed, or the reply is not JSON-RPC.
            ucall.TimeoutError: There was no reply within ``timeout`` seconds.
        """
        self.use_running_loop()
        try:
            async with asyncio.timeout(timeout):
                return await self._exchange(request, ids)
        except builtins.TimeoutError as error:
            raise error if isinstance(error, TimeoutError) else timeout_error(timeout) from None

    def use_running_loop(self) -> None:
        """Drops the connections of another event loop."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            with suppress(RuntimeError):  # The other loop may be closed.
                self.close()
            self._loop = loop
            self._reset()

    def for_options(self, options: Options) -> Self:
        """The pool of a client with other options: this one."""
        return self

    def close(self) -> None:
        """Closes the connections."""
        raise NotImplementedError

    def _reset(self) -> None:
        """Drops all state of an earlier event loop."""
        raise NotImplementedError

    async def _exchange(self, request: _core.Request, ids: Collection[object]) -> _core.Reply:
        raise NotImplementedError

    async def _connect(self, make: Callable[[], ConnectionT]) -> ConnectionT:
        """Opens a connection.

        Raises:
            ucall.ConnectionError: No server accepts it, or the server's certificate is not trusted.
            ucall.TimeoutError: The system's own time limit passed.
        """
        try:
            if self._connect_s is None:
                return await self._create(make)
            async with asyncio.timeout(self._connect_s):
                return await self._create(make)
        except (OSError, UnicodeError) as error:
            raise connect_error(self._address, error, self._connect_s) from None

    async def _create(self, make: Callable[[], ConnectionT]) -> ConnectionT:
        address, loop = self._address, asyncio.get_running_loop()
        if address.socket_path is not None:
            _, made = await loop.create_unix_connection(make, address.socket_path)
            return made
        host, port = address.connect_host, address.port
        found = literal(host, port) or await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        _, made = await loop.create_connection(
            make,
            sock=await connect_to_one(found),
            ssl=self._tls,
            server_hostname=address.host if self._tls else None,
        )
        return made


class HttpPool(AsyncPool):
    """A connection for each call in progress. Calls above the limit wait for one."""

    def __init__(
        self,
        options: Options,
        reply_bytes_max: int,
        tls: ssl.SSLContext | None,
        connections_max: int,
        waiting_bytes_max: int,
        connect_s: float | None = None,
    ) -> None:
        super().__init__(options, reply_bytes_max, tls, connect_s)
        self._connections_max = connections_max
        self._waiting_bytes_max = waiting_bytes_max
        self._idle: list[HttpConnection] = []

    def close_idle(self) -> None:
        """Closes the idle connections. Calls under way go on."""
        self.close()

    def close(self) -> None:
        """Closes the idle connections; those in use close after their calls."""
        # A new list makes an exchange close its connection.
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.abort()

    def _reset(self) -> None:
        self._idle = []
        self._slots = asyncio.Semaphore(self._connections_max)

    async def _exchange(self, request: _core.Request, ids: Collection[object]) -> _core.Reply:
        idle = self._idle
        async with self._slots:
            connection = await self._take()
            reply = await connection.exchange(request)
            if connection.is_reusable and idle is self._idle:
                idle.append(connection)
            else:
                connection.abort()
        return reply

    async def _take(self) -> HttpConnection:
        while self._idle:
            connection = self._idle.pop()
            if await connection.is_alive() and connection.is_reusable:
                return connection
            connection.abort()
        return await self._connect(lambda: HttpConnection(self._reply_bytes_max))

    async def event_connection(self) -> EventConnection:
        """Opens a connection for one stream."""
        return await self._connect(
            lambda: EventConnection(self._reply_bytes_max, self._waiting_bytes_max)
        )


class SharedPool(AsyncPool):
    """One connection over WebSocket or raw TCP, which all calls share.

    Args:
        reconnect: Whether failed attempts to connect are repeated.
    """

    _connection: SharedConnection | None = None

    def __init__(
        self,
        options: Options,
        reply_bytes_max: int,
        tls: ssl.SSLContext | None,
        waiting_bytes_max: int,
        reconnect: bool,
        connect_s: float | None = None,
    ) -> None:
        super().__init__(options, reply_bytes_max, tls, connect_s)
        self._waiting_bytes_max = waiting_bytes_max
        self.reconnect = reconnect
        #: Is set when the client is closed. Later calls have another one.
        self._closed = asyncio.Event()
        self.subscriptions: list[Inbox] = []

    def close_idle(self) -> None:
        """Closes the connection, unless calls are in progress."""
        if self._connection is not None and self._connection.is_unused:
            self._drop_connection()

    def close(self) -> None:
        """Closes the connection, or that which is being opened. Calls in progress fail."""
        closed, self._closed = self._closed, asyncio.Event()
        closed.set()
        self._drop_connection()

    async def pause(self, seconds: float) -> None:
        """Waits, unless the client is closed meanwhile."""
        await _wait(self._closed, seconds)

    def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            if not self._address.is_websocket:
                # The server cannot tell the end of the connection from that of its requests.
                self.cancel(connection, connection.ids)
            connection.close()

    async def connection(self) -> SharedConnection:
        """The connection, opened if there is none.

        Raises:
            ucall.ConnectionError: No server accepts it, or the client was closed meanwhile.
        """
        closed = self._closed
        async with self._connecting:
            connection = self._connection
            if connection is not None and connection.is_draining:
                # It stays open for its calls and subscriptions.
                connection.close_if_drained()
                self._connection = connection = None
            if connection is None or not await connection.is_alive():
                self._drop_connection()
                self._connection = connection = await self._open(closed)
            return connection

    async def when_writable(self, connection: SharedConnection) -> SharedConnection:
        """Waits until a slow server has read most of the earlier requests; returns the connection,
        or the next one if the server drains this one meanwhile.

        All requests that waited are then sent, even if the first of them makes others wait again:
        otherwise a loop of notifications would always come first.

        Raises:
            ucall.ConnectionError: It has ended, and the request was not sent.
        """
        await connection.wait_writable()
        return await self.connection()

    def end_subscriptions(self) -> None:
        """Ends all subscriptions, which would open the connection again. Call it after `close`,
        which wakes those that wait."""
        self.subscriptions.clear()

    def cancel(self, connection: SharedConnection, ids: Collection[object]) -> None:
        """Tells the server that the replies to these calls are not needed."""
        for id in ids:
            connection.cancel(self._options.writer.call("$/cancelRequest", (), {"id": id}, None))

    def _reset(self) -> None:
        self._connection, self._connecting = None, asyncio.Lock()

    async def _exchange(self, request: _core.Request, ids: Collection[object]) -> _core.Reply:
        connection = await self.connection()
        if not connection.is_writable:
            connection = await self.when_writable(connection)
        inbox = connection.start(request, ids)
        if not ids:
            return _core.Reply.nothing()
        try:
            while True:
                await connection.wait(inbox)
                if isinstance(message := inbox.take(), _core.Reply):
                    return message
        except asyncio.CancelledError:
            self.cancel(connection, ids)
            raise
        finally:
            connection.forget(ids)

    async def _open(self, closed: asyncio.Event) -> SharedConnection:
        pauses = backoff()
        while not closed.is_set():
            try:
                return await self._open_once(closed)
            except ConnectionError:
                if not self.reconnect:
                    raise
            await _wait(closed, next(pauses))
        raise not_sent(_closed_error())

    async def _open_once(self, closed: asyncio.Event) -> SharedConnection:
        is_websocket = self._address.is_websocket
        upgrade = Upgrade(self._options.upgrade_head()) if is_websocket else None
        router = Router(self.subscriptions, self._waiting_bytes_max)
        made = await self._connect(lambda: SharedConnection(router, self._reply_bytes_max, upgrade))
        try:
            await made.open()
            if closed.is_set():
                raise _closed_error()
        except BaseException as error:
            made.abort()
            if isinstance(error, ConnectionError):
                raise not_sent(error) from None
            raise
        return made


async def connect_to_one(found: Iterable[Place]) -> socket.socket:
    """Connects to one of the addresses of a name.

    Raises:
        OSError: None of them accepts a connection.
    """
    loop = asyncio.get_running_loop()
    connecting = attempts(found, loop.time())
    with closing(connecting):
        try:
            pending, seconds = next(connecting)
            while True:
                await _wait_for_any(loop, pending, seconds)
                pending, seconds = connecting.send(loop.time())
        except StopIteration as ended:
            connected: socket.socket = ended.value
    return connected


async def _wait_for_any(
    loop: asyncio.AbstractEventLoop, pending: list[socket.socket], seconds: float | None
) -> None:
    """Waits until one of the sockets is writable or has failed, within these seconds."""
    event = asyncio.Event()
    for made in pending:
        loop.add_writer(made, event.set)
    try:
        await (event.wait() if seconds is None else _wait(event, seconds))
    finally:
        for made in pending:
            loop.remove_writer(made)


async def _wait(event: asyncio.Event, seconds: float) -> None:
    """Waits for an event, or until the time is over."""
    with suppress(builtins.TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


def _closed_error() -> ConnectionError:
    return ConnectionError("the client was closed")
