"""The pools of clients over UDP: their sockets, and the exchanges of calls over them."""

from __future__ import annotations

import asyncio
import builtins
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn, Self

from ucall import _core, _forks
from ucall._client.aio_udp_endpoint import Endpoint
from ucall._client.base import NO_STREAMS_OVER_UDP
from ucall._client.blocking import result_of, run
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
from ucall._client.resend import probe_request
from ucall._client.sockets import Deadline, connect_error, is_deadline, late_error, timeout_error
from ucall.errors import ConnectionError, TimeoutError

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
    """What the calls of one client share.

    Args:
        options: Those of the client.
        reply_bytes_max: A reply.
        tcp: Makes the pool that repeats calls whose replies are too long for a datagram; ``None``
            if they fail.
    """

    def __init__(
        self, options: Options, reply_bytes_max: int, tcp: Callable[[], Any] | None
    ) -> None:
        self._make_tcp = tcp
        self._tcp: Any = None
        self._options = options
        self._address = options.address
        self._reply_bytes_max = reply_bytes_max
        self._round_trips = RoundTrips()
        self._cookie = Cookie()

    def _window(self, calls: Sequence[Call] = ()) -> Window:
        window = Window(self._round_trips, self._cookie)
        window.add(calls)
        return window

    def _probe(self) -> Call:
        """A call that runs nothing, and shows whether a server listens."""
        request, id = probe_request(self._options)
        return id, bytes(request.data)

    def _failure(self, error: OSError, deadline: Deadline) -> ConnectionError | TimeoutError:
        """The exception of calls that were sent. A refusal does not say which datagram it is for:
        the server may have read another, or the network may have repeated it."""
        if is_deadline(error):
            return late_error(error, deadline.seconds)
        reason = error.strerror or error
        return ConnectionError(
            f"no reply from {self._address.name}: {reason}; the call may have run"
        )

    async def _repeat(
        self, request: _core.Request, ids: Collection[object], deadline: Deadline
    ) -> _core.Reply:
        """Calls again over TCP."""
        assert self._make_tcp is not None
        self._tcp = self._tcp or self._make_tcp()
        try:
            reply: _core.Reply = await result_of(self._tcp.exchange(request, ids, deadline.left()))
            return reply
        except ConnectionError as error:
            error.may_have_run = True  # It has, over UDP.
            raise
        except builtins.TimeoutError:
            raise timeout_error(deadline.seconds) from None

    def for_options(self, options: Options) -> Self:
        """The pool of a client with other options: this one."""
        return self

    def source(self, begin: object) -> NoReturn:
        """Raises ValueError: datagrams carry no streams."""
        raise ValueError(NO_STREAMS_OVER_UDP)

    def channel(self, *, for_calls: bool = False) -> NoReturn:
        """Raises ValueError: datagrams have no such messages."""
        raise ValueError(NO_STREAMS_OVER_UDP)


class UdpPool(_Base):
    """The sockets of a synchronous client. A thread takes one for the length of an exchange."""

    def __init__(
        self, options: Options, reply_bytes_max: int, tcp: Callable[[], Pool] | None
    ) -> None:
        super().__init__(options, reply_bytes_max, tcp)
        self._idle: list[socket.socket] = []
        _forks.register(self)

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
            self._exchange([], [data], deadline)
            return _core.Reply.nothing()
        [reply] = self._exchange([(id, data) for id in ids], [], deadline)
        if self._make_tcp is not None and wants_tcp(reply):
            return run(self._repeat(request, ids, deadline))
        return reply

    def exchange_all(self, batch: Calls, timeout: float | None) -> list[Response]:
        """Sends the calls of a batch, each in a datagram; returns their responses."""
        deadline = Deadline(timeout)
        batch.resolve_each(self._exchange(*batch.datagrams(), deadline))
        if self._make_tcp is not None:
            for request, ids in batch.repeats(wants_tcp, WINDOW):
                batch.resolve(run(self._repeat(request, ids, deadline)))
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

    def _exchange(
        self, calls: Sequence[Call], notifications: list[bytes], deadline: Deadline
    ) -> list[_core.Reply]:
        for data in notifications:
            check_length(data)
        window = self._window(calls)
        made = self._take(deadline)
        try:
            self._run(made, window, notifications, deadline)
        except OSError as error:
            raise self._failure(error, deadline) from None
        self._return(made)
        return [window.replies[id] for id, _ in calls]

    def _take(self, deadline: Deadline) -> socket.socket:
        """An idle socket, or a new one."""
        with suppress(IndexError):
            return self._idle.pop()
        try:
            return self._open(deadline)
        except (OSError, UnicodeError) as error:
            raise connect_error(self._address, error, deadline.seconds) from None

    def _open(self, deadline: Deadline) -> socket.socket:
        """A socket to the first address of the server's name at which a server listens.

        No call is sent to a second address, because it may have run at the first. So each address
        but the last has to answer a probe.
        """
        failed = OSError("the name has no address")
        found = socket.getaddrinfo(self._address.host, self._address.port, type=socket.SOCK_DGRAM)
        for number, (family, _, _, _, place) in enumerate(found):
            try:
                made = _connected(family, place)
                if (left := len(found) - number) > 1:
                    self._run(made, self._window([self._probe()]), [], deadline.share(left))
                return made
            except OSError as error:
                failed = error
        raise failed

    def _run(
        self, made: socket.socket, window: Window, notifications: list[bytes], deadline: Deadline
    ) -> None:
        """Sends notifications once, and the calls of a window until their replies come."""
        try:
            _send(made, notifications, deadline)
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


def _connected(family: int, place: Any) -> socket.socket:
    """A socket that takes datagrams from one address: the system drops others."""
    made = socket.socket(family, socket.SOCK_DGRAM)
    try:
        made.connect(place)
        return made
    except OSError:
        made.close()
        raise


def _send(made: socket.socket, datagrams: list[bytes], deadline: Deadline) -> None:
    """Sends datagrams; waits while the system has no room for them."""
    sent = _core.send_datagrams(made.fileno(), datagrams)
    for data in datagrams[sent:]:
        made.settimeout(deadline.left())
        made.send(data)


class AsyncUdpPool(_Base):
    """The socket of a client in asyncio, which all its calls share."""

    def __init__(
        self, options: Options, reply_bytes_max: int, tcp: Callable[[], AsyncPool] | None
    ) -> None:
        super().__init__(options, reply_bytes_max, tcp)
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
            await self._exchange([], [data], deadline)
            return _core.Reply.nothing()
        [reply] = await self._exchange([(id, data) for id in ids], [], deadline)
        if self._make_tcp is not None and wants_tcp(reply):
            return await self._repeat(request, ids, deadline)
        return reply

    async def exchange_all(self, batch: Calls, timeout: float | None) -> list[Response]:
        """See `UdpPool.exchange_all`."""
        deadline = Deadline(timeout)
        batch.resolve_each(await self._exchange(*batch.datagrams(), deadline))
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

    async def _exchange(
        self, calls: Sequence[Call], notifications: list[bytes], deadline: Deadline
    ) -> list[_core.Reply]:
        for data in notifications:
            check_length(data)
        endpoint = await self._take(deadline)
        try:
            return await endpoint.run(calls, deadline, notifications)
        except OSError as error:
            raise self._failure(error, deadline) from None

    async def _take(self, deadline: Deadline) -> Endpoint:
        """The socket, or a new one."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._opening = loop, asyncio.Lock()
        try:
            async with asyncio.timeout(deadline.left()), self._opening:
                if self._endpoint is None or not self._endpoint.is_usable(loop):
                    if self._endpoint is not None:
                        self._endpoint.close()
                    self._endpoint = await self._open(loop, deadline)
                return self._endpoint
        except (OSError, UnicodeError) as error:
            raise connect_error(self._address, error, deadline.seconds) from None

    async def _open(self, loop: asyncio.AbstractEventLoop, deadline: Deadline) -> Endpoint:
        """See `UdpPool._open`."""
        failed = OSError("the name has no address")
        host, port = self._address.host, self._address.port
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
        for number, (family, _, _, _, place) in enumerate(found):
            try:
                made = _connected(family, place)
                endpoint = Endpoint(loop, made, self._window(), self._reply_bytes_max)
                if (left := len(found) - number) > 1:
                    await self._wait_for_server(endpoint, deadline.share(left))
                return endpoint
            except OSError as error:
                failed = error
        raise failed

    async def _wait_for_server(self, endpoint: Endpoint, deadline: Deadline) -> None:
        try:
            await endpoint.run([self._probe()], deadline)
        except BaseException:
            endpoint.close()
            raise
