"""The connections of a synchronous client."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, TypeAlias
from weakref import WeakSet

from ucall import _core
from ucall._client.address import Address
from ucall._client.sockets import Deadline, connect, encrypt, timeout_error

if TYPE_CHECKING:
    import ssl

    from ucall._client.stream import Observer, StreamConnection

__all__ = ["Pool"]

Connection: TypeAlias = "_core.ClientConnection | StreamConnection"

_IDLE_MAX = 16


class Pool:
    """Connections to one server.

    A thread takes a connection for the length of an exchange. If the server has closed an idle one,
    nothing was sent on it, and the exchange uses another. Nothing else is retried.
    """

    def __init__(
        self,
        address: Address,
        reply_bytes_max: int,
        tls: ssl.SSLContext | None,
        observer: Observer | None = None,
    ) -> None:
        self._address = address
        self._reply_bytes_max = reply_bytes_max
        self._tls = tls
        self._observer = observer
        # `pop` and `append` are atomic. A new list tells an exchange that the client was closed, so
        # that its connection must not be kept.
        self._idle: list[Connection] = []
        _pools.add(self)

    def exchange(self, request: _core.Request, timeout: float | None) -> _core.Reply:
        """Sends a request and returns its reply.

        Raises:
            ucall.ConnectionError: The connection failed, or the reply is not JSON-RPC.
            ucall.TimeoutError: No reply came within ``timeout`` seconds, connecting included.
        """
        idle, began, left = self._idle, time.monotonic(), timeout
        while idle:
            try:
                connection = idle.pop()
            except IndexError:  # Another thread took the last one.
                break
            try:
                reply = connection.exchange(request, left)
                if reply is not None:
                    self._return_connection(connection, idle)
                    return reply
                left = Deadline(timeout, began).left()
            except TimeoutError:
                raise timeout_error(timeout) from None
        return self._exchange_on_new(request, Deadline(timeout, began), idle)

    def close(self) -> None:
        """Closes the idle connections; those in use close after their exchange."""
        idle, self._idle = self._idle, []
        while idle:
            idle.pop().close()

    def abandon(self) -> None:
        """Drops the connections without closing them: they belong to the parent of this process."""
        self._idle = []

    def _exchange_on_new(
        self, request: _core.Request, deadline: Deadline, idle: list[Connection]
    ) -> _core.Reply:
        connection = self._connect(deadline)
        try:
            reply = connection.exchange(request, deadline.left())
        except TimeoutError:
            connection.close()
            raise timeout_error(deadline.seconds) from None
        assert reply is not None, "a new connection was never idle"
        self._return_connection(connection, idle)
        return reply

    def _return_connection(self, connection: Connection, idle: list[Connection]) -> None:
        """Keeps a connection as idle, unless the client was closed meanwhile."""
        if connection.is_reusable and idle is self._idle and len(idle) < _IDLE_MAX:
            idle.append(connection)
        else:
            connection.close()

    def _connect(self, deadline: Deadline) -> Connection:
        connected = connect(self._address, deadline)
        if self._tls is None and self._observer is None:
            connected.settimeout(None)
            return _core.ClientConnection(
                connected.detach(),
                http=self._address.is_http,
                reply_bytes_max=self._reply_bytes_max,
            )
        from ucall._client.stream import StreamConnection

        return StreamConnection(
            encrypt(connected, self._tls, self._address, deadline) if self._tls else connected,
            is_http=self._address.is_http,
            reply_bytes_max=self._reply_bytes_max,
            observer=self._observer,
        )


_pools: WeakSet[Pool] = WeakSet()


def _abandon_all() -> None:
    for pool in _pools:
        pool.abandon()


os.register_at_fork(after_in_child=_abandon_all)
