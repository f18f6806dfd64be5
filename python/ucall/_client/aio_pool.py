"""The connections of an asyncio client: a pool over HTTP, one for all calls over raw TCP."""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol, TypeVar

from ucall import _core
from ucall._client.address import Address
from ucall._client.aio_connection import AsyncConnection, HttpConnection, RawConnection
from ucall._client.sockets import connect_error, timeout_error
from ucall.errors import TimeoutError

if TYPE_CHECKING:
    import ssl

__all__ = ["AsyncPool", "pool_for"]

ConnectionT = TypeVar("ConnectionT", bound=AsyncConnection)


class AsyncPool(Protocol):
    """Connections to one server."""

    async def exchange(
        self, request: _core.Request, ids: Collection[object], timeout: float | None
    ) -> _core.Reply:
        """Sends a request and returns the reply to it.

        Raises:
            ucall.ConnectionError: No server, or no reply that is one.
            ucall.TimeoutError: No reply within ``timeout`` seconds.
        """

    def close(self) -> None:
        """Closes all connections."""


def pool_for(
    address: Address, reply_bytes_max: int, tls: ssl.SSLContext | None, connections_max: int
) -> AsyncPool:
    """What suits the address."""
    connector = Connector(address, reply_bytes_max, tls)
    return HttpPool(connector, connections_max) if address.is_http else RawPool(connector)


class Connector:
    """Makes connections."""

    def __init__(self, address: Address, reply_bytes_max: int, tls: ssl.SSLContext | None) -> None:
        self.address = address
        self._reply_bytes_max = reply_bytes_max
        self._tls = tls

    async def connect(self, kind: Callable[[bool, int], ConnectionT]) -> ConnectionT:
        """A connection of that kind.

        Raises:
            ucall.ConnectionError: Nobody is there, or nobody to be trusted.
            ucall.TimeoutError: The system gave up waiting.
        """
        address, loop = self.address, asyncio.get_running_loop()
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


class HttpPool:
    """One connection for each call under way. Those beyond the limit wait in line."""

    def __init__(self, connector: Connector, connections_max: int) -> None:
        self._connector = connector
        self._connections_max = connections_max
        self._loop: asyncio.AbstractEventLoop | None = None
        self._idle: list[HttpConnection] = []
        self._slots = asyncio.Semaphore(connections_max)

    async def exchange(
        self, request: _core.Request, ids: Collection[object], timeout: float | None
    ) -> _core.Reply:
        """See `AsyncPool`."""
        self._move_to(asyncio.get_running_loop())
        idle = self._idle
        try:
            async with asyncio.timeout(timeout), self._slots:
                connection = await self._take()
                reply = await connection.exchange(request)
        except builtins.TimeoutError as error:
            raise _timeout_error(error, timeout) from None
        if connection.is_reusable and idle is self._idle:
            idle.append(connection)
        else:
            connection.abort()
        return reply

    def close(self) -> None:
        """Closes those that are idle; the others close after their calls."""
        # Another list, by which those in use tell that they were closed.
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.abort()

    async def _take(self) -> HttpConnection:
        while self._idle:
            connection = self._idle.pop()
            if await connection.is_alive() and connection.is_reusable:
                return connection
            connection.abort()
        return await self._connector.connect(HttpConnection)

    def _move_to(self, loop: asyncio.AbstractEventLoop) -> None:
        """Connections belong to the loop that they were made in."""
        if self._loop is not loop:
            with suppress(RuntimeError):  # The other loop may be closed.
                self.close()
            self._loop, self._idle = loop, []
            self._slots = asyncio.Semaphore(self._connections_max)


class RawPool:
    """One connection, which all calls share."""

    def __init__(self, connector: Connector) -> None:
        self._connector = connector
        self._loop: asyncio.AbstractEventLoop | None = None
        self._connection: RawConnection | None = None
        self._connecting = asyncio.Lock()

    async def exchange(
        self, request: _core.Request, ids: Collection[object], timeout: float | None
    ) -> _core.Reply:
        """See `AsyncPool`."""
        self._move_to(asyncio.get_running_loop())
        try:
            async with asyncio.timeout(timeout):
                connection = await self._take()
                return await connection.exchange(request, ids)
        except builtins.TimeoutError as error:
            raise _timeout_error(error, timeout) from None

    def close(self) -> None:
        """Closes it; calls under way fail."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()

    async def _take(self) -> RawConnection:
        async with self._connecting:
            if self._connection is None or not await self._connection.is_alive():
                self.close()
                self._connection = await self._connector.connect(RawConnection)
            return self._connection

    def _move_to(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._loop is not loop:
            with suppress(RuntimeError):
                self.close()
            self._loop, self._connection, self._connecting = loop, None, asyncio.Lock()


def _timeout_error(error: builtins.TimeoutError, timeout: float | None) -> Exception:
    return error if isinstance(error, TimeoutError) else timeout_error(timeout)
