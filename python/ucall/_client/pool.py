"""The connections of a synchronous client."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, TypeAlias

from ucall import _core, _forks
from ucall._client import sockets
from ucall._client.base import NO_CHANNEL_OVER_HTTP
from ucall._client.inbox import WAITING_BYTES_MAX
from ucall._client.sockets import Deadline, connect, encrypt, late_error, left_to_send

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Collection

    from ucall._client.channel import Channel
    from ucall._client.options import Options
    from ucall._client.socket_connection import EventConnection, Observer, SocketConnection
    from ucall._client.tls_socket import TlsSocket

__all__ = ["Pool"]

Connection: TypeAlias = "_core.ClientConnection | SocketConnection"

_IDLE_MAX = 16


class Pool:
    """Connections to one server.

    A thread takes a connection for the length of an exchange. If the server has closed an idle one,
    nothing was sent on it, and the exchange uses another. Nothing else is retried. Over WebSocket,
    and over raw TCP from the first subscription on, all calls share the connection of the channel.

    Args:
        connect_s: Seconds that one attempt to connect may take; ``None`` for as long as the call.
    """

    def __init__(
        self,
        options: Options,
        reply_bytes_max: int,
        tls: ssl.SSLContext | None,
        observer: Observer | None = None,
        *,
        waiting_bytes_max: int = WAITING_BYTES_MAX,
        reconnect: bool = False,
        connect_s: float | None = None,
    ) -> None:
        self._connect_s = connect_s
        self._options = options
        self._address = options.address
        self._reply_bytes_max = reply_bytes_max
        self._tls = tls
        self._observer = observer
        self._waiting_bytes_max = waiting_bytes_max
        self._reconnect = reconnect
        self._channel: Channel | None = None
        self._calls_share_channel = self._address.is_websocket
        # `pop` and `append` are atomic. An exchange that finds a new list knows that the client was
        # closed, and does not keep its connection.
        self._idle: list[Connection] = []
        self._making = threading.Lock()
        _forks.register(self)

    def exchange(
        self, request: _core.Request, ids: Collection[object], timeout: float | None
    ) -> _core.Reply:
        """Sends a request with these ids and returns its reply.

        Raises:
            ucall.ConnectionError: The connection failed, or the reply is not JSON-RPC.
            ucall.TimeoutError: There was no reply within ``timeout`` seconds, connecting included.
        """
        if self._calls_share_channel:
            channel = self._channel or self.channel()
            return channel.exchange(request, ids, timeout)
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
                left = left_to_send(Deadline(timeout, began))
            except TimeoutError as error:
                raise late_error(error, timeout) from None
        return self._exchange_on_new(request, Deadline(timeout, began), idle)

    def exchange_once(
        self, request: _core.Request, ids: Collection[object], timeout: float | None
    ) -> _core.Reply:
        """As `exchange`, on a connection of its own, which is closed then."""
        deadline = Deadline(timeout)
        if self._address.is_websocket:
            return self.channel().exchange_once(request, ids, deadline)
        # An observer is that of calls.
        return self._exchange_on(self._observed(deadline, None), request, deadline, [])

    def for_options(self, options: Options) -> Pool:
        """The pool of a client with other options: this one."""
        return self

    def close(self) -> None:
        """Closes the idle connections; those in use close after their exchange."""
        self.close_idle()
        if self._channel is not None:
            self._channel.close()

    def close_idle(self) -> None:
        """Closes the idle connections. Calls in flight go on."""
        idle, self._idle = self._idle, []
        while idle:
            idle.pop().close()

    def shared_memory(self) -> _core.SharedMemory | None:
        """What the connection of the next call shares with the server.

        Raises:
            ucall.ConnectionError, ucall.TimeoutError: The client cannot connect.
        """
        if self._address.trusts_shared_memory is None or self._calls_share_channel:
            return None
        idle = self._idle
        try:
            connection = idle[-1]
        except IndexError:
            connection = self._connect(Deadline(self._options.timeout))
            self._return_connection(connection, idle)
        return connection.memory if isinstance(connection, _core.ClientConnection) else None

    def channel(self, *, for_calls: bool = False) -> Channel:
        """The shared connection; with ``for_calls`` all later calls use it, too.

        Raises:
            ValueError: HTTP has none.
        """
        from ucall._client.channel import Channel

        if self._address.is_http:
            raise ValueError(NO_CHANNEL_OVER_HTTP)
        with self._making:
            self._calls_share_channel |= for_calls
            if self._channel is None:
                self._channel = Channel(
                    self._socket,
                    self._options,
                    reply_bytes_max=self._reply_bytes_max,
                    waiting_bytes_max=self._waiting_bytes_max,
                    reconnect=self._reconnect,
                    observer=self._observer,
                )
            return self._channel

    def event_connection(self, deadline: Deadline) -> EventConnection:
        """A new connection over HTTP for one stream."""
        from ucall._client.socket_connection import EventConnection

        return EventConnection(
            self._socket(deadline),
            reply_bytes_max=self._reply_bytes_max,
            observer=self._observer,
            codings=self._address.codings is not None,
        )

    def abandon(self) -> None:
        """Drops the connections without closing them: they belong to the parent of this process."""
        self._idle, self._making = [], threading.Lock()

    def _exchange_on_new(
        self, request: _core.Request, deadline: Deadline, idle: list[Connection]
    ) -> _core.Reply:
        connection = self._connect(deadline)
        return self._exchange_on(connection, request, deadline, idle)

    def _exchange_on(
        self,
        connection: Connection,
        request: _core.Request,
        deadline: Deadline,
        idle: list[Connection],
    ) -> _core.Reply:
        try:
            reply = connection.exchange(request, left_to_send(deadline))
        except TimeoutError as error:
            connection.close()
            raise late_error(error, deadline.seconds) from None
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
        return self._observed(deadline, self._observer)

    def _observed(self, deadline: Deadline, observer: Observer | None) -> Connection:
        """A new connection with this observer of its bytes."""
        if self._tls is None and observer is None:
            memory = None
            if self._address.trusts_shared_memory is None:
                connected = connect(self._address, deadline.at_most(self._connect_s))
            else:
                from ucall._client.shared_memory import connect_sharing

                connected, memory = connect_sharing(
                    self._address, deadline.at_most(self._connect_s)
                )
            return _core.ClientConnection(
                connected.detach(),
                http=self._address.is_http,
                reply_bytes_max=self._reply_bytes_max,
                idle_max_s=sockets.IDLE_MAX_S,
                memory=memory,
                codings=self._address.codings is not None,
            )
        from ucall._client.socket_connection import SocketConnection

        return SocketConnection(
            self._socket(deadline),
            is_http=self._address.is_http,
            reply_bytes_max=self._reply_bytes_max,
            observer=observer,
            codings=self._address.codings is not None,
        )

    def _socket(self, deadline: Deadline) -> socket.socket | TlsSocket:
        deadline = deadline.at_most(self._connect_s)
        connected = connect(self._address, deadline)
        if self._tls is None:
            return connected
        return encrypt(connected, self._tls, self._address, deadline)
