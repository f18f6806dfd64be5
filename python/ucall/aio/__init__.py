"""The client for asyncio: `ucall.client` with awaitable calls.

from ucall.aio import Client

async with Client() as client:
    response = await client.sum(a=2, b=3)
    response.json
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from ucall._client.address import Addresses
from ucall._client.aio_pool import HttpPool, SharedPool
from ucall._client.aio_streams import Stream, Subscription
from ucall._client.base import (
    IMAGE_PIXELS_MAX,
    REPLY_BYTES_MAX,
    TIMEOUT_S,
    ClientBase,
    call_of,
    check_channel_options,
    context_for,
    group_of,
    share_memory,
    target_of,
    tcp_options,
)
from ucall._client.batch import BatchBase
from ucall._client.inbox import WAITING_BYTES_MAX
from ucall._client.names import Method, Methods, check_public
from ucall._client.options import Options
from ucall._client.response import Response
from ucall._core import Undecided
from ucall._submodules import on_demand
from ucall.errors import ConnectionError

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

    from ucall._client.aio_balanced import AsyncBalancedPool
    from ucall._client.tls import Certificate, Verify
    from ucall._client.udp import AsyncUdpPool
    from ucall.aio import queue as queue
    from ucall.options import Compression
else:  # As in `ucall` itself.
    __getattr__, __dir__ = on_demand(__name__, "queue")

__all__ = ["Batch", "Client", "Response", "Stream", "Subscription"]


class Client(ClientBase):
    """Calls the functions of a JSON-RPC 2.0 server from asyncio.

    Over HTTP each call in progress has a connection of its own, out of a pool. Over WebSocket
    (``"ws://host"``) and raw TCP (``"tcp://host"``) all calls share one, and their replies come in
    any order. A call that is cancelled or late is cancelled at the server, and affects no other.

    A client belongs to the event loop that it is used in; in another it opens new connections.

    Args:
        max_connections: Over HTTP, at the same time, streams not counted; to each of several
            addresses. Further calls wait, which counts as part of their time.

    The other arguments, and what is raised, are those of `ucall.client.Client`.
    """

    _stream_of = Stream

    def __init__(
        self,
        uri: str | Sequence[str] = "127.0.0.1",
        port: int | None = None,
        *,
        timeout: float | None = TIMEOUT_S,
        headers: Mapping[str, str] | None = None,
        verify: Verify = True,
        cert: Certificate = None,
        max_connections: int = 100,
        max_reply_bytes: int = REPLY_BYTES_MAX,
        max_image_pixels: int = IMAGE_PIXELS_MAX,
        max_waiting_bytes: int = WAITING_BYTES_MAX,
        reconnect: bool = False,
        hedge: bool = False,
        trace: bool = False,
        tcp_fallback: bool = False,
        server_hostname: str | None = None,
        broker_options: Mapping[str, Any] | None = None,
        shared_memory: bool = False,
        trusted: bool = False,
        compression: Compression | None = None,
    ) -> None:
        arguments = dict(locals())
        if max_connections < 1:
            raise ValueError(f"max_connections: expected 1 or more, got {max_connections}")
        target = target_of(uri, port, server_hostname, compression)
        super().__init__(target, timeout, headers, max_image_pixels, trace, arguments)
        address = self._options.address
        if shared_memory or trusted:
            share_memory(target, shared_memory, trusted)
        context = context_for(address, verify, cert)
        group = group_of(target, broker_options, max_reply_bytes)
        check_channel_options(
            target, max_waiting_bytes, reconnect=reconnect, hedge=hedge, tcp_fallback=tcp_fallback
        )

        def make_pool(options: Options, connect_s: float | None = None) -> HttpPool | SharedPool:
            sizes = max_reply_bytes, context
            if options.address.is_http:
                return HttpPool(options, *sizes, max_connections, max_waiting_bytes, connect_s)
            return SharedPool(options, *sizes, max_waiting_bytes, reconnect, connect_s)

        self._pool: HttpPool | SharedPool | AsyncBalancedPool | AsyncUdpPool
        if isinstance(target, Addresses):
            from ucall._client.aio_balanced import AsyncBalancedPool

            self._pool = AsyncBalancedPool.of(
                target, self._options, make_pool, hedges=hedge, group=group
            )
            self._reading.want_frames = self._pool.want_frames
        elif address.is_udp:
            from ucall._client.udp import AsyncUdpPool

            tcp = partial(make_pool, tcp_options(self._options)) if tcp_fallback else None
            self._pool = AsyncUdpPool(self._options, max_reply_bytes, tcp)
        else:
            self._pool = make_pool(self._options)

    async def __call__(self, request: dict[str, Any]) -> Response:
        """Sends a request object, with ``jsonrpc`` and ``id`` unless it has them.

        Raises:
            TypeError: The request is not a dict.
            ValueError: A value in it cannot be encoded, or another call in progress on the
                connection has its id.
            ucall.ConnectionError, ucall.TimeoutError: See `call`.
        """
        return await self._exchange_object(request)

    async def call(self, method: str, /, *args: object, **kwargs: object) -> Response:
        """Calls a method of any name. See `ucall.client.Client.call`."""
        return await self._call(method, args, kwargs)

    async def notify(self, method: str, /, *args: object, **kwargs: object) -> None:
        """Calls a method without a reply. See `ucall.client.Client.notify`."""
        if self._spans is not None:
            await self._exchange_traced(self._spans, method, args, kwargs, None)
            return
        options = self._options
        try:
            request = options.writer.call(method, args, kwargs, None)
            await self._pool.exchange(request, (), options.timeout)
        except (Undecided, ConnectionError) as error:
            await self._exchange_again(error, call_of(method, args, kwargs, None), ())

    def batch(self) -> Batch:
        """Makes a `Batch`: several calls in one request."""
        return Batch(self)

    @property
    def stream(self) -> Methods[Stream]:
        """Calls whose items come one by one: ``client.stream.generate(prompt="hi")``. See `Stream`.

        Over HTTP the items come as server-sent events.
        """
        return Methods(self._stream)

    @property
    def rpc(self) -> Method[Coroutine[Any, Any, Response]]:
        """The methods of the server about itself. See `ucall.client.Client.rpc`."""
        return Method(self._call_rpc, "rpc")

    def with_progress(
        self, callback: Callable[[Any], object]
    ) -> Methods[Coroutine[Any, Any, Response]]:
        """Calls that pass each item to a callback. See `ucall.client.Client.with_progress`."""

        async def call(
            method: str, args: tuple[object, ...], kwargs: dict[str, object]
        ) -> Response:
            stream: Stream = self._stream(method, args, kwargs)
            async with stream:
                while (item := await stream._next_item()) is not None:
                    callback(item.value)
            return stream.response

        return Methods(call)

    def subscribe(self, on_connect: Callable[[], Awaitable[object]] | None = None) -> Subscription:
        """The notifications that the server sends from now on. See `Subscription`.

        Args:
            on_connect: An async function. See `ucall.client.Client.subscribe`.

        Raises:
            ValueError: The address is for HTTP, which has no such messages.
        """
        return Subscription(self._pool.channel(for_calls=True), on_connect)

    async def empty(self, shape: int | Sequence[int], dtype: DTypeLike = float) -> NDArray[Any]:
        """An array without values yet, for params. See `ucall.client.Client.empty`."""
        from ucall._client.shared_memory import empty_in

        pool = self._pool
        memory = await pool.shared_memory() if isinstance(pool, HttpPool | SharedPool) else None
        return empty_in(memory, shape, dtype)

    async def close(self) -> None:
        """Closes the connections, and ends subscriptions. The next call opens a new one."""
        self._pool.close()
        if isinstance(self._pool, SharedPool):
            self._pool.end_subscriptions()

    def __getattr__(self, name: str) -> Method[Coroutine[Any, Any, Response]]:
        check_public(self, name)
        return Method(self._call, name)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: object) -> None:
        """Closes."""
        await self.close()

    async def _call(
        self, method: str, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> Response:
        options = self._options
        id = next(self._ids) if options.id is None else options.id
        if self._spans is not None:
            reply = await self._exchange_traced(self._spans, method, args, kwargs, id)
            return self._new_response(reply)
        try:
            request = options.writer.call(method, args, kwargs, id)
            reply = await self._pool.exchange(request, (id,), options.timeout)
        except (Undecided, ConnectionError) as error:
            reply = await self._exchange_again(error, call_of(method, args, kwargs, id), (id,))
        return Response(reply, self._reading)

    async def _call_rpc(
        self, method: str, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> Response:
        response = await self._call(method, args, kwargs)
        if method == "rpc.discover":
            self._description = response
        return response


class Batch(BatchBase[Client]):
    """Calls that are sent in one request and get one reply.

    As a context manager it is sent at the end of the block::

        async with client.batch() as batch:
            three = batch.sum(1, 2)
            batch.notify("log", "added")
        three.json

    Else by ``await batch.send()``.
    """

    async def send(self) -> list[Response]:
        """Sends the calls that were added since the last `send`.

        See `ucall.client.Batch.send`.
        """
        return await self._send()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        """Sends the calls, unless the block raised."""
        if kind is None:
            await self.send()
