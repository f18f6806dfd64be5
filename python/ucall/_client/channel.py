"""The shared connection of a synchronous client."""

from __future__ import annotations

import builtins
import threading
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from ucall import _core, _forks
from ucall._client.blocking import run
from ucall._client.inbox import Inbox, Router
from ucall._client.link import Link
from ucall._client.reconnecting import Reconnecting
from ucall._client.sockets import Deadline, left_to_send, not_sent, timeout_error
from ucall._client.websocket import Upgrade
from ucall.errors import TimeoutError

if TYPE_CHECKING:
    import socket

    from ucall._client.options import Options
    from ucall._client.socket_connection import Observer
    from ucall._client.tls_socket import TlsSocket

__all__ = ["Channel"]


class Channel(Reconnecting[Link]):
    """The shared connection, which threads use.

    Args:
        connect: Connects a socket, under TLS if the address is.
    """

    new_event = threading.Event

    def __init__(
        self,
        connect: Callable[[Deadline], socket.socket | TlsSocket],
        options: Options,
        *,
        reply_bytes_max: int,
        waiting_bytes_max: int,
        reconnect: bool,
        observer: Observer | None,
    ) -> None:
        super().__init__(options, waiting_bytes_max, reconnect=reconnect)
        self._connect = connect
        self._reply_bytes_max = reply_bytes_max
        self._observer = observer
        self._opening = threading.Lock()
        _forks.register(self)

    def exchange(
        self, request: _core.Request, ids: Collection[object], timeout: float | None
    ) -> _core.Reply:
        """See `Reconnecting.exchange_until`."""
        try:
            return run(self.exchange_until(request, ids, Deadline(timeout)))
        except builtins.TimeoutError as error:
            raise error if isinstance(error, TimeoutError) else timeout_error(timeout) from None

    def exchange_once(
        self, request: _core.Request, ids: Collection[object], deadline: Deadline
    ) -> _core.Reply:
        """See `Reconnecting.exchange_alone`."""
        return run(self.exchange_alone(request, ids, deadline))

    async def begin(
        self, request: _core.Request, ids: Collection[object], deadline: Deadline
    ) -> tuple[Link, Inbox]:
        """See `Reconnecting.begin`."""
        link = await self.connection(deadline)
        return link, link.start(request, ids, deadline)

    def start(
        self,
        connection: Link,
        request: _core.Request,
        ids: Collection[object],
        deadline: Deadline,
    ) -> Inbox:
        """See `Reconnecting.start`."""
        return connection.start(request, ids, deadline)

    async def pause(self, ended: threading.Event, seconds: float) -> None:
        """See `Reconnecting.pause`."""
        ended.wait(seconds)

    def close(self) -> None:
        """Closes the connection, and ends the subscriptions."""
        self.end_subscriptions()
        super().close()

    def abandon(self) -> None:
        """Drops the connection without closing it: it belongs to the parent of this process."""
        self._connection = None
        self.closed, self._opening = threading.Event(), threading.Lock()

    async def _acquire(self, deadline: Deadline) -> None:
        if not self._opening.acquire(timeout=left_to_send(deadline) or -1):
            event = f"cannot connect to {self._options.address.name}"
            raise not_sent(timeout_error(deadline.seconds, event))

    async def _connect_with(
        self, router: Router, upgrade: Upgrade | None, deadline: Deadline
    ) -> Link:
        connected = self._connect(deadline)
        return Link(connected, router, self._reply_bytes_max, upgrade, self._observer)
