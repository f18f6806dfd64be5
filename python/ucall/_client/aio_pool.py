"""The connections of an asyncio client: a pool over HTTP, one for all calls over raw TCP."""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from ucall import _core
from ucall._client.address import Address
from ucall._client.aio_connection import AsyncConnection, HttpConnection, RawConnection
from ucall._client.sockets import connect_error, timeout_error
from ucall.errors import TimeoutError

if TYPE_CHECKING:
    import ssl

__all__ = ["AsyncPool", "pool_for"]

ConnectionT = TypeVar("ConnectionT", bound=AsyncConnection)


def pool_for(
    address: Address, reply_bytes_max: int, tls: ssl.SSLContext | None, connections_max: int
) -> AsyncPool:
    """The pool for the protocol of an address."""
    if address.is_http:
        return HttpPool(address, reply_bytes_max, tls, connections_max)
    return RawPool(address, reply_bytes_max, tls)


class AsyncPool:
    """Connections to one server, of the event loop that used them last."""

    def __init__(self, address: Address, reply_bytes_max: int, tls: ssl.SSLContext | None) -> None:
        self._address = address
        self._reply_bytes_max = reply_bytes_max
        self._tls = tls
        self._loop: asyncio.AbstractEventLoop | None = None

    async def exchange(
        self, request: _core.Request, ids: Collection[object], timeout: float | None
    ) -> _core.Reply:
        """Sends a request and returns its reply.

        Raises:
            ucall.ConnectionError: The connection failed, or the reply is not JSON-RPC.
            ucall.TimeoutError: No reply came within ``timeout`` seconds.
        """
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            with suppress(RuntimeError):  # The other loop may be closed.
                self.close()
            self._loop = loop
            self._reset()
        try:
            async with asyncio.timeout(timeout):
                return await self._exchange(request, ids)
        except builtins.TimeoutError as error:
            raise error if isinstance(error, TimeoutError) else timeout_error(timeout) from None

    def close(self) -> None:
        """Closes the connections."""
        raise NotImplementedError

    def _reset(self) -> None:
        """Drops all state of an earlier event loop."""
        raise NotImplementedError

    async def _exchange(self, request: _core.Request, ids: Collection[object]) -> _core.Reply:
        raise NotImplementedError

    async def _connect(self, kind: Callable[[bool, int], ConnectionT]) -> ConnectionT:
        """Opens a connection of a class.

        Raises:
            ucall.ConnectionError: No server accepts it, or the server's certificate is not trusted.
            ucall.TimeoutError: The system's own time limit passed.
        """
        address, loop = self._address, asyncio.get_running_loop()
        make = lambda: kind(address.is_http, self._reply_bytes_max)  # noqa: E731
        try:
            if address.socket_path is not None:
                _, made = await loop.create_unix_connection(make, address.socket_path)
                return made
            _, made = await loop.create_connection(
                make,
                address.host,
                address.port,
                ssl=self._tls,
                server_hostname=address.host if self._tls else None,
            )
        except (OSError, UnicodeError) as error:
            raise connect_error(address, error, None) from None
        return made


class HttpPool(AsyncPool):
    """A connection for each call in progress. Calls above the limit wait for one."""

    def __init__(
        self,
        address: Address,
        reply_bytes_max: int,
        tls: ssl.SSLContext | None,
        connections_max: int,
    ) -> None:
        super().__init__(address, reply_bytes_max, tls)
        self._connections_max = connections_max
        self._idle: list[HttpConnection] = []

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
        return await self._connect(HttpConnection)


class RawPool(AsyncPool):
    """One connection, which all calls share."""

    _connection: RawConnection | None = None

    def close(self) -> None:
        """Closes the connection. Calls in progress fail."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()

    def _reset(self) -> None:
        self._connection, self._connecting = None, asyncio.Lock()

    async def _exchange(self, request: _core.Request, ids: Collection[object]) -> _core.Reply:
        async with self._connecting:
            if self._connection is None or not await self._connection.is_alive():
                self.close()
                self._connection = await self._connect(RawConnection)
            connection = self._connection
        return await connection.exchange(request, ids)
