"""The sockets of clients over UDP: synchronous, and in asyncio."""

from __future__ import annotations

import asyncio
import builtins
import os
import socket
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn
from weakref import WeakSet

from ucall import _core
from ucall._client.base import NO_STREAMS_OVER_UDP
from ucall._client.datagrams import (
    WINDOW,
    Call,
    Cookie,
    RoundTrips,
    Window,
    check_length,
    parse_reply,
    wants_tcp,
)
from ucall._client.sockets import Deadline, connect_error, timeout_error
from ucall._client.udp_endpoint import Endpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from ucall._client.aio_pool import AsyncPool
    from ucall._client.batch import Calls
    from ucall._client.options import Options
    from ucall._client.pool import Pool
    from ucall._client.response import Response

__all__ = ["AsyncUdpPool", "UdpPool"]

_IDLE_MAX = 16


class _Base:
    """What the calls of one client share."""

    def __init__(self, options: Options, reply_bytes_max: int) -> None:
        self._address = options.address
        self._reply_bytes_max = reply_bytes_max
        self._round_trips = RoundTrips()
        self._cookie = Cookie()

    def _window(self) -> Window:
        return Window(self._round_trips, self._cookie)

    def source(self, begin: object) -> NoReturn:
        """Raises ValueError: datagrams carry no streams."""
        raise ValueError(NO_STREAMS_OVER_UDP)

    def channel(self, *, for_calls: bool = False) -> NoReturn:
        """Raises ValueError: datagrams have no such messages."""
        raise ValueError(NO_STREAMS_OVER_UDP)


class UdpPool(_Base):
    """The sockets of a synchronous client. A thread takes one for the length of an exchange.

    Args:
        options: Those of the client.
        reply_bytes_max: A reply.
        tcp: Makes the pool that repeats calls whose replies are too long for a datagram; ``None``
            if they fail.
    """

    def __init__(
        self, options: Options, reply_bytes_max: int, tcp: Callable[[], Pool] | None
    ) -> None:
        super().__init__(options, reply_bytes_max)
        self._make_tcp = tcp
        self._tcp: Pool | None = None
        self._idle: list[socket.socket] = []
        _pools.add(self)

    def exchange(
        self, request: _core.Request, ids: Collection[object], timeout: float | None
    ) -> _core.Reply:
        """Sends a call until its reply comes; a notification once.

        Raises:
            ValueError: The request is too long for a datagram.
            ucall.ConnectionError: No server listens there.
            ucall.TimeoutError: There was no reply within ``timeout`` seconds.
        """
        deadline, data = Deadline(timeout), bytes(request.data)
        if not ids:
            self._notify([data], deadline)
            return _core.Reply.nothing()
        [reply] = self._exchange([(id, data) for id in ids], deadline)
        if self._make_tcp is not None and wants_tcp(reply):
            return self._repeat(request, ids, deadline)
        return reply

    def exchange_all(self, batch: Calls, timeout: float | None) -> list[Response]:
        """Sends the calls of a batch, each in a datagram; returns their responses."""
        deadline = Deadline(timeout)
        calls, notifications = batch.datagrams()
        if notifications:
            self._notify(notifications, deadline)
        batch.resolve_each(self._exchange(calls, deadline) if calls else [])
        if self._make_tcp is not None:
            for request, ids in batch.repeats(wants_tcp, WINDOW):
                batch.resolve(self._repeat(request, ids, deadline))
        return list(batch.responses.values())

    def close(self) -> None:
        """Closes the idle sockets."""
        idle, self._idle = self._idle, []
        for made in idle:
            made.close()
        if self._tcp is not None:
            self._tcp.close()

    def abandon(self) -> None:
        """Drops the sockets: they belong to the parent of this process."""
        self._idle = []

    def _repeat(
        self, request: _core.Request, ids: Collection[object], deadline: Deadline
    ) -> _core.Reply:
        """Calls again over TCP."""
        assert self._make_tcp is not None
        self._tcp = self._tcp or self._make_tcp()
        try:
            return self._tcp.exchange(request, ids, deadline.left())
        except builtins.TimeoutError:
            raise timeout_error(deadline.seconds) from None

    def _notify(self, datagrams: list[bytes], deadline: Deadline) -> None:
        for data in datagrams:
            check_length(data)
        made = self._idle.pop() if self._idle else self._open(self._addresses()[0], deadline)
        try:
            _send(made, datagrams, deadline)
        except OSError as error:
            made.close()
            raise connect_error(self._address, error, deadline.seconds) from None
        self._return(made)

    def _exchange(self, calls: Sequence[Call], deadline: Deadline) -> list[_core.Reply]:
        try:
            if self._idle:
                return self._exchange_on(self._idle.pop(), calls, deadline)
            return self._exchange_on_new(calls, deadline)
        except builtins.TimeoutError:
            raise timeout_error(deadline.seconds) from None
        except (OSError, UnicodeError) as error:
            raise connect_error(self._address, error, deadline.seconds) from None

    def _exchange_on_new(self, calls: Sequence[Call], deadline: Deadline) -> list[_core.Reply]:
        """Tries the addresses of the server's name, as long as none listens."""
        *others, last = self._addresses()
        for address in others:
            try:
                return self._exchange_on(self._open(address, deadline), calls, deadline)
            except ConnectionRefusedError:
                pass
        return self._exchange_on(self._open(last, deadline), calls, deadline)

    def _addresses(self) -> list[tuple[int, object]]:
        """The families and places of the server's name."""
        found = socket.getaddrinfo(self._address.host, self._address.port, type=socket.SOCK_DGRAM)
        return [(family, place) for family, _, _, _, place in found]

    def _open(self, address: tuple[int, object], deadline: Deadline) -> socket.socket:
        family, place = address
        made = socket.socket(family, socket.SOCK_DGRAM)
        try:
            # The kernel then drops datagrams from other addresses.
            made.connect(place)  # type: ignore[arg-type]
        except OSError as error:
            made.close()
            raise connect_error(self._address, error, deadline.seconds) from None
        return made

    def _exchange_on(
        self, made: socket.socket, calls: Sequence[Call], deadline: Deadline
    ) -> list[_core.Reply]:
        window = self._window()
        try:
            window.add(calls)
            while not window.is_done:
                now = time.monotonic()
                _send(made, window.take_due(now), deadline)
                for datagram in self._receive(made, window, now, deadline):
                    id, reply = parse_reply(datagram, self._reply_bytes_max)
                    if reply is not None:
                        window.take_reply(id, reply, time.monotonic())
        except BaseException:
            made.close()
            raise
        self._return(made)
        return [window.replies[id] for id, _ in calls]

    def _receive(
        self, made: socket.socket, window: Window, now: float, deadline: Deadline
    ) -> list[bytes]:
        """The datagrams that arrive before the window has one to send again."""
        due_at, left_s = window.due_at, deadline.left()
        assert due_at is not None
        pause_s = max(due_at - now, 0.001)
        pause_s = pause_s if left_s is None else min(pause_s, left_s)
        return _core.receive_datagrams(made.fileno(), window.sent_count, pause_s)

    def _return(self, made: socket.socket) -> None:
        if len(self._idle) < _IDLE_MAX:
            self._idle.append(made)
        else:
            made.close()


def _send(made: socket.socket, datagrams: list[bytes], deadline: Deadline) -> None:
    """Sends datagrams; waits while the system has no room for them."""
    sent = _core.send_datagrams(made.fileno(), datagrams)
    for data in datagrams[sent:]:
        made.settimeout(deadline.left())
        made.send(data)


class AsyncUdpPool(_Base):
    """The socket of a client in asyncio, which all its calls share.

    The arguments are those of `UdpPool`.
    """

    def __init__(
        self, options: Options, reply_bytes_max: int, tcp: Callable[[], AsyncPool] | None
    ) -> None:
        super().__init__(options, reply_bytes_max)
        self._make_tcp = tcp
        self._tcp: AsyncPool | None = None
        self._endpoint: Endpoint | None = None
        #: Belongs to the loop.
        self._opening = asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def exchange(
        self, request: _core.Request, ids: Collection[object], timeout: float | None
    ) -> _core.Reply:
        """See `UdpPool.exchange`."""
        deadline, data = Deadline(timeout), bytes(request.data)
        if not ids:
            check_length(data)
            (await self._open()).send([data])
            return _core.Reply.nothing()
        [reply] = await self._exchange([(id, data) for id in ids], deadline)
        if self._make_tcp is not None and wants_tcp(reply):
            return await self._repeat(request, ids, deadline)
        return reply

    async def exchange_all(self, batch: Calls, timeout: float | None) -> list[Response]:
        """See `UdpPool.exchange_all`."""
        deadline = Deadline(timeout)
        calls, notifications = batch.datagrams()
        if notifications:
            for data in notifications:
                check_length(data)
            (await self._open()).send(notifications)
        batch.resolve_each(await self._exchange(calls, deadline) if calls else [])
        if self._make_tcp is not None:
            for request, ids in batch.repeats(wants_tcp, WINDOW):
                batch.resolve(await self._repeat(request, ids, deadline))
        return list(batch.responses.values())

    def close(self) -> None:
        """Closes the socket. Calls in progress fail."""
        endpoint, self._endpoint = self._endpoint, None
        if endpoint is not None:
            endpoint.close()
        if self._tcp is not None:
            self._tcp.close()

    async def _repeat(
        self, request: _core.Request, ids: Collection[object], deadline: Deadline
    ) -> _core.Reply:
        """Calls again over TCP."""
        assert self._make_tcp is not None
        self._tcp = self._tcp or self._make_tcp()
        try:
            return await self._tcp.exchange(request, ids, deadline.left())
        except builtins.TimeoutError:
            raise timeout_error(deadline.seconds) from None

    async def _exchange(self, calls: Sequence[Call], deadline: Deadline) -> list[_core.Reply]:
        try:
            return await (await self._open()).run(calls, deadline)
        except builtins.TimeoutError:
            raise timeout_error(deadline.seconds) from None
        except (OSError, UnicodeError) as error:
            raise connect_error(self._address, error, deadline.seconds) from None

    async def _open(self) -> Endpoint:
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._opening = loop, asyncio.Lock()
        async with self._opening:
            if self._endpoint is None or not self._endpoint.is_usable(loop):
                if self._endpoint is not None:
                    self._endpoint.close()
                made = await self._connected(loop)
                self._endpoint = Endpoint(loop, made, self._window(), self._reply_bytes_max)
            return self._endpoint

    async def _connected(self, loop: asyncio.AbstractEventLoop) -> socket.socket:
        """A socket with the first address of the server's name that the system can reach."""
        host, port = self._address.host, self._address.port
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
        failed: OSError | None = None
        for family, _, _, _, place in found:
            made = socket.socket(family, socket.SOCK_DGRAM)
            try:
                made.setblocking(False)
                made.connect(place)
                return made
            except OSError as error:
                made.close()
                failed = error
        raise failed or OSError("the name has no address")


_pools: WeakSet[UdpPool] = WeakSet()


def _abandon_all() -> None:
    for pool in _pools:
        pool.abandon()


os.register_at_fork(after_in_child=_abandon_all)
