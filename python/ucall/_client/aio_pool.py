"""The connections of an asyncio client: a pool over HTTP, one for all calls otherwise."""

from __future__ import annotations

import asyncio
import builtins
import socket
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeVar

from ucall import _core
from ucall._client.aio_connection import (
    AsyncConnection,
    EventConnection,
    HttpConnection,
    SharedConnection,
)
from ucall._client.base import NO_CHANNEL_OVER_HTTP
from ucall._client.happy_eyeballs import Place, attempts, literal
from ucall._client.inbox import Inbox, Router
from ucall._client.options import Options
from ucall._client.reconnecting import Reconnecting
from ucall._client.sockets import (
    Deadline,
    check_in_time,
    connect_error,
    late_error,
    not_sent,
)
from ucall._client.websocket import Upgrade
from ucall.errors import TimeoutError

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
        try:
            async with asyncio.timeout(timeout):
                return await self._exchange(request, ids, timeout)
        except TimeoutError:
            raise
        except builtins.TimeoutError as error:
            raise _late(error, timeout) from None

    async def exchange_once(
        self, request: _core.Request, ids: Collection[object], timeout: float | None
    ) -> _core.Reply:
        """As `exchange`, on a connection of its own, which is closed then."""
        try:
            async with asyncio.timeout(timeout):
                return await self._exchange_once(request, ids)
        except TimeoutError:
            raise
        except builtins.TimeoutError as error:
            raise _late(error, timeout) from None

    async def shared_memory(self) -> _core.SharedMemory | None:
        """What the connection of the next call shares with the server.

        Raises:
            ucall.ConnectionError, ucall.TimeoutError: The client cannot connect.
        """
        if self._address.trusts_shared_memory is None:
            return None
        if self._loop is not asyncio.get_running_loop():
            self._use_running_loop()
        return (await self._next_connection()).memory

    async def _next_connection(self) -> AsyncConnection:
        raise NotImplementedError

    def _use_running_loop(self) -> None:
        """Drops the connections of another event loop."""
        with suppress(RuntimeError):  # The other loop may be closed.
            self.close()
        self._loop = asyncio.get_running_loop()
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

    async def _exchange(
        self, request: _core.Request, ids: Collection[object], timeout: float | None
    ) -> _core.Reply:
        raise NotImplementedError

    async def _exchange_once(self, request: _core.Request, ids: Collection[object]) -> _core.Reply:
        raise NotImplementedError

    async def _connect(self, make: Callable[[], ConnectionT]) -> ConnectionT:
        """Opens a connection.

        Raises:
            ucall.ConnectionError: No server accepts it, or the server's certificate is not trusted.
            ucall.TimeoutError: ``connect_s`` passed.
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
        if address.trusts_shared_memory is not None:
            return await self._create_sharing(make)
        if address.connector is not None:
            _, made = await loop.create_unix_connection(
                make,
                sock=address.connector(),
                ssl=self._tls,
                server_hostname=address.host if self._tls else None,
            )
            return made
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

    async def _create_sharing(self, make: Callable[[], ConnectionT]) -> ConnectionT:
        from ucall._client.shared_memory import connect_sharing_async

        connected, memory = await connect_sharing_async(self._address)
        loop = asyncio.get_running_loop()
        _, made = await loop.create_unix_connection(make, sock=connected)
        if memory is not None:
            made.share(memory)
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
        """Closes the idle connections. Calls in flight go on."""
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

    async def _exchange(
        self, request: _core.Request, ids: Collection[object], timeout: float | None
    ) -> _core.Reply:
        if self._loop is not asyncio.get_running_loop():
            self._use_running_loop()
        idle, began, connection = self._idle, time.monotonic(), None
        try:
            async with self._slots:
                connection = await self._take()
                reply = await connection.exchange(request)
                if connection.is_reusable and idle is self._idle:
                    idle.append(connection)
                else:
                    connection.abort()
        except asyncio.CancelledError as error:
            if connection is None:
                not_sent(error)
            raise
        if not reply.is_result:
            check_in_time(reply, Deadline(timeout, began))
        return reply

    async def _exchange_once(self, request: _core.Request, ids: Collection[object]) -> _core.Reply:
        connection = await self._connect(self._new_connection)
        try:
            return await connection.exchange(request)
        finally:
            connection.abort()

    async def _next_connection(self) -> HttpConnection:
        if not self._idle:
            idle = self._idle
            idle.append(await self._connect(self._new_connection))
            return idle[-1]
        return self._idle[-1]

    def _new_connection(self) -> HttpConnection:
        return HttpConnection(self._reply_bytes_max, self._address.codings is not None)

    async def _take(self) -> HttpConnection:
        while self._idle:
            connection = self._idle.pop()
            if await connection.is_alive() and connection.is_reusable:
                return connection
            connection.abort()
        return await self._connect(self._new_connection)

    def channel(self, *, for_calls: bool = False) -> NoReturn:
        """Raises ``ValueError``: there is no shared connection."""
        raise ValueError(NO_CHANNEL_OVER_HTTP)

    async def event_connection(self, deadline: Deadline) -> EventConnection:
        """Opens a connection for one stream."""
        return await self._connect(
            lambda: EventConnection(
                self._reply_bytes_max, self._waiting_bytes_max, self._address.codings is not None
            )
        )


class SharedPool(AsyncPool, Reconnecting[SharedConnection]):
    """One connection over WebSocket or raw TCP, which all calls share."""

    new_event = asyncio.Event

    def __init__(
        self,
        options: Options,
        reply_bytes_max: int,
        tls: ssl.SSLContext | None,
        waiting_bytes_max: int,
        reconnect: bool,
        connect_s: float | None = None,
    ) -> None:
        AsyncPool.__init__(self, options, reply_bytes_max, tls, connect_s)
        Reconnecting.__init__(self, options, waiting_bytes_max, reconnect=reconnect)

    def close_idle(self) -> None:
        """Closes the connection, unless calls are in progress."""
        if self._connection is not None and self._connection.is_unused:
            self._connection.close()

    def close(self) -> None:
        """See `Reconnecting.close`."""
        Reconnecting.close(self)

    def channel(self, *, for_calls: bool = False) -> Self:
        """The shared connection: that of this pool."""
        return self

    async def begin(
        self, request: _core.Request, ids: Collection[object], deadline: Deadline
    ) -> tuple[SharedConnection, Inbox]:
        """See `Reconnecting.begin`. A slow server has to read most of the earlier requests first.

        All requests that waited are then sent, even if the first of them makes others wait again:
        otherwise a loop of notifications would always come first.
        """
        try:
            connection = await self.connection(deadline)
            if not connection.is_writable:
                await connection.wait_writable()
                # Another one, if the server drains this one meanwhile.
                connection = await self.connection(deadline)
        except asyncio.CancelledError as error:
            not_sent(error)
            raise
        return connection, connection.start(request, ids)

    def start(
        self,
        connection: SharedConnection,
        request: _core.Request,
        ids: Collection[object],
        deadline: Deadline,
    ) -> Inbox:
        """See `Reconnecting.start`."""
        return connection.start(request, ids)

    async def pause(self, ended: asyncio.Event | None, seconds: float) -> None:
        """See `Reconnecting.pause`."""
        await _wait(ended or self.closed, seconds)

    def _reset(self) -> None:
        self._connection, self._draining, self._opening = None, [], asyncio.Lock()

    def _exchange(
        self, request: _core.Request, ids: Collection[object], timeout: float | None
    ) -> Coroutine[Any, Any, _core.Reply]:
        return self.exchange_until(request, ids, Deadline(timeout))

    def _exchange_once(
        self, request: _core.Request, ids: Collection[object]
    ) -> Coroutine[Any, Any, _core.Reply]:
        return self.exchange_alone(request, ids, Deadline(None))

    def _acquire(self, deadline: Deadline) -> Awaitable[bool]:
        if self._loop is not asyncio.get_running_loop():
            self._use_running_loop()
        acquired: Awaitable[bool] = self._opening.acquire()
        return acquired

    async def _next_connection(self) -> SharedConnection:
        return await self.connection(Deadline(self._options.timeout))

    async def _connect_with(
        self, router: Router, upgrade: Upgrade | None, deadline: Deadline
    ) -> SharedConnection:
        return await self._connect(lambda: SharedConnection(router, self._reply_bytes_max, upgrade))


def _late(error: builtins.TimeoutError, timeout: float | None) -> TimeoutError:
    """The exception for the end of `asyncio.timeout`, whose context is marked: the cancellation."""
    return late_error(error.__context__, timeout)


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
