"""The sockets of clients over UDP: synchronous, and in asyncio."""

from __future__ import annotations

import asyncio
import builtins
import os
import socket
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn, cast
from weakref import WeakSet

from ucall import _core
from ucall._client.base import NO_STREAMS_OVER_UDP
from ucall._client.datagrams import (
    WINDOW,
    Call,
    Cookie,
    RoundTrips,
    Window,
    parse_reply,
    wants_tcp,
)
from ucall._client.sockets import Deadline, connect_error, timeout_error

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from ucall._client.aio_pool import AsyncPool
    from ucall._client.options import Options
    from ucall._client.pool import Pool

__all__ = ["AsyncUdpPool", "UdpPool", "calls_of"]

_IDLE_MAX = 16


def calls_of(request: _core.Request, ids: Collection[object]) -> list[Call]:
    """The request of one call, or no call for a notification."""
    return [(id, bytes(request.data)) for id in ids]


class _Base:
    """What the calls of one client share."""

    def __init__(self, options: Options, reply_bytes_max: int) -> None:
        self._address = options.address
        self._reply_bytes_max = reply_bytes_max
        self._round_trips = RoundTrips()
        self._cookie = Cookie()

    def _window(self, calls: Sequence[Call]) -> Window:
        return Window(calls, self._round_trips, self._cookie)

    def _addresses(self) -> list[tuple[int, object]]:
        """The families and places of the server's name."""
        found = socket.getaddrinfo(self._address.host, self._address.port, type=socket.SOCK_DGRAM)
        return [(family, place) for family, _, _, _, place in found]

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
        deadline = Deadline(timeout)
        if not ids:
            self._notify(bytes(request.data), deadline)
            return _core.Reply.nothing()
        calls = calls_of(request, ids)
        [reply] = self._exchange(calls, deadline)
        if self._make_tcp is not None and wants_tcp(reply):
            self._tcp = self._tcp or self._make_tcp()
            try:
                return self._tcp.exchange(request, ids, deadline.left())
            except builtins.TimeoutError:
                raise timeout_error(timeout) from None
        return reply

    def exchange_all(
        self, calls: Sequence[Call], notifications: Sequence[bytes], timeout: float | None
    ) -> list[_core.Reply]:
        """Sends the calls of a batch, each in a datagram; returns the replies in their order."""
        deadline = Deadline(timeout)
        for data in notifications:
            self._notify(data, deadline)
        return self._exchange(calls, deadline)

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

    def _notify(self, data: bytes, deadline: Deadline) -> None:
        made = self._idle.pop() if self._idle else self._open(self._addresses()[0], deadline)
        try:
            made.send(data)
        except OSError as error:
            made.close()
            raise connect_error(self._address, error, deadline.seconds) from None
        self._return(made)

    def _exchange(self, calls: Sequence[Call], deadline: Deadline) -> list[_core.Reply]:
        window = self._window(calls)
        try:
            if self._idle:
                return self._exchange_on(self._idle.pop(), window, calls, deadline)
            return self._exchange_on_new(window, calls, deadline)
        except builtins.TimeoutError:
            raise timeout_error(deadline.seconds) from None
        except (OSError, UnicodeError) as error:
            raise connect_error(self._address, error, deadline.seconds) from None

    def _exchange_on_new(
        self, window: Window, calls: Sequence[Call], deadline: Deadline
    ) -> list[_core.Reply]:
        """Tries the addresses of the server's name, as long as none listens."""
        *others, last = self._addresses()
        for address in others:
            try:
                made = self._open(address, deadline)
                return self._exchange_on(made, self._window(calls), calls, deadline)
            except ConnectionRefusedError:
                pass
        return self._exchange_on(self._open(last, deadline), window, calls, deadline)

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
        self, made: socket.socket, window: Window, calls: Sequence[Call], deadline: Deadline
    ) -> list[_core.Reply]:
        try:
            while not window.is_done:
                now = time.monotonic()
                for data in window.take_due(now):
                    made.send(data)
                pause_s, left_s = max(window.due_at - now, 0.001), deadline.left()
                made.settimeout(pause_s if left_s is None else min(pause_s, left_s))
                try:
                    datagram = made.recv(65_536)
                except builtins.TimeoutError:
                    continue
                id, reply = parse_reply(datagram, self._reply_bytes_max)
                if reply is not None:
                    window.take_reply(id, reply, time.monotonic())
        except BaseException:
            made.close()
            raise
        self._return(made)
        return [window.replies[id] for id, _ in calls]

    def _return(self, made: socket.socket) -> None:
        if len(self._idle) < _IDLE_MAX:
            self._idle.append(made)
        else:
            made.close()


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
        self._endpoint: _Endpoint | None = None
        #: Belongs to the loop.
        self._opening = asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def exchange(
        self, request: _core.Request, ids: Collection[object], timeout: float | None
    ) -> _core.Reply:
        """See `UdpPool.exchange`."""
        deadline = Deadline(timeout)
        if not ids:
            endpoint = await self._open()
            endpoint.send([bytes(request.data)])
            return _core.Reply.nothing()
        [reply] = await self._exchange(calls_of(request, ids), deadline)
        if self._make_tcp is not None and wants_tcp(reply):
            self._tcp = self._tcp or self._make_tcp()
            try:
                return await self._tcp.exchange(request, ids, deadline.left())
            except builtins.TimeoutError:
                raise timeout_error(timeout) from None
        return reply

    async def exchange_all(
        self, calls: Sequence[Call], notifications: Sequence[bytes], timeout: float | None
    ) -> list[_core.Reply]:
        """See `UdpPool.exchange_all`."""
        if notifications:
            (await self._open()).send(notifications)
        return await self._exchange(calls, Deadline(timeout))

    def close(self) -> None:
        """Closes the socket. Calls in progress fail."""
        endpoint, self._endpoint = self._endpoint, None
        if endpoint is not None:
            endpoint.close()
        if self._tcp is not None:
            self._tcp.close()

    async def _exchange(self, calls: Sequence[Call], deadline: Deadline) -> list[_core.Reply]:
        try:
            endpoint = await self._open()
            window = self._window(calls)
            await endpoint.run(window, [id for id, _ in calls], deadline)
        except builtins.TimeoutError:
            raise timeout_error(deadline.seconds) from None
        except OSError as error:
            raise connect_error(self._address, error, deadline.seconds) from None
        return [window.replies[id] for id, _ in calls]

    async def _open(self) -> _Endpoint:
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._opening = loop, asyncio.Lock()
        async with self._opening:
            if self._endpoint is None or not self._endpoint.is_usable(loop):
                _, self._endpoint = await loop.create_datagram_endpoint(
                    lambda: _Endpoint(loop, self._reply_bytes_max),
                    remote_addr=(self._address.host, self._address.port),
                )
            return self._endpoint


class _Endpoint(asyncio.DatagramProtocol):
    """A connected socket, and the windows of the calls on it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, reply_bytes_max: int) -> None:
        self._loop = loop
        self._reply_bytes_max = reply_bytes_max
        #: Of windows, which are mostly of one call.
        self._limit = asyncio.Semaphore(WINDOW)
        self._process = os.getpid()
        self._transport: asyncio.DatagramTransport | None = None
        self._windows: dict[object, tuple[Window, asyncio.Event]] = {}
        self._error: Exception | None = None

    def is_usable(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Whether it belongs to this loop and process, and is open."""
        is_open = self._transport is not None and not self._transport.is_closing()
        return is_open and loop is self._loop and self._process == os.getpid()

    def send(self, datagrams: Sequence[bytes]) -> None:
        """Sends datagrams."""
        if self._transport is not None:
            for data in datagrams:
                self._transport.sendto(data)

    def close(self) -> None:
        """Closes the socket; calls in progress fail."""
        self._fail(ConnectionError("the client was closed"))
        if self._transport is not None and not self._loop.is_closed():
            self._transport.close()

    async def run(self, window: Window, ids: Sequence[object], deadline: Deadline) -> None:
        """Exchanges the datagrams of a window, after others have ended if there are too many."""
        async with asyncio.timeout(deadline.left()):
            await self._limit.acquire()
        try:
            await self._run(window, ids, deadline)
        finally:
            self._limit.release()

    async def _run(self, window: Window, ids: Sequence[object], deadline: Deadline) -> None:
        arrived = asyncio.Event()
        self._error = None
        if any(id in self._windows for id in ids):
            raise ValueError("another call in progress has the same id")
        self._windows.update(dict.fromkeys(ids, (window, arrived)))
        try:
            while not window.is_done:
                now = time.monotonic()
                self.send(window.take_due(now))
                pause_s, left_s = max(window.due_at - now, 0.001), deadline.left()
                pause_s = pause_s if left_s is None else min(pause_s, left_s)
                timer = self._loop.call_later(pause_s, arrived.set)
                await arrived.wait()
                timer.cancel()
                arrived.clear()
                if self._error is not None:
                    raise self._error
        finally:
            for id in ids:
                del self._windows[id]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Of asyncio."""
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: object) -> None:
        """Of asyncio."""
        id, reply = parse_reply(data, self._reply_bytes_max)
        if reply is not None and id in self._windows:
            window, arrived = self._windows[id]
            window.take_reply(id, reply, time.monotonic())
            arrived.set()

    def error_received(self, exc: Exception) -> None:
        """Of asyncio: no server listens there."""
        self._fail(exc)

    def _fail(self, error: Exception) -> None:
        self._error = error
        for _, arrived in self._windows.values():
            arrived.set()


_pools: WeakSet[UdpPool] = WeakSet()


def _abandon_all() -> None:
    for pool in _pools:
        pool.abandon()


os.register_at_fork(after_in_child=_abandon_all)
