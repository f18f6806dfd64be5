"""The synchronous client: calls a server's functions as its own methods.

from ucall.client import Client

client = Client()
response = client.sum(a=2, b=3)
response.json
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from ucall._client.address import Addresses, secure_uri
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
from ucall._client.blocking import run
from ucall._client.inbox import WAITING_BYTES_MAX
from ucall._client.names import Method, Methods, check_public
from ucall._client.options import Options
from ucall._client.pool import Pool
from ucall._client.response import Response
from ucall._client.streams import Stream, Subscription
from ucall._core import Undecided
from ucall.errors import ConnectionError

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

    from ucall._client.balanced import BalancedPool
    from ucall._client.socket_connection import Observer
    from ucall._client.tls import Certificate, Verify
    from ucall._client.udp import UdpPool
    from ucall.options import Compression

__all__ = ["Batch", "Client", "ClientTLS", "Response", "Stream", "Subscription"]


class Client(ClientBase):
    """Calls the functions of a JSON-RPC 2.0 server, over HTTP/1.1, WebSocket, raw TCP or UDP.

    ``client.vectorize(description=d, image=image)`` passes params by name, and
    ``client.math.sum(2, 3)`` calls the method ``math.sum`` by position. ``client.call(name, ...)``
    calls methods of any name. All return a `Response`.

    Threads may share a client, which keeps a connection for each concurrent call; over WebSocket,
    one for all. A forked child opens its own connections.

    Args:
        uri: ``"host"``, ``"host:port"``, ``"http://…"``, ``"https://…"``; ``"ws://…"`` or
            ``"wss://…"`` for WebSocket; ``"tcp://…"`` or ``"tcps://…"`` for raw TCP;
            ``"udp://…"`` for datagrams (docs/udp.md); ``"unix:///path"``, ``"ws+unix:///path"`` or
            ``"tcp+unix:///path"`` for a Unix socket. A list of URIs, or ``"dns://host:port"`` for
            all addresses of a host, or ``"nats://broker:4222/group"`` for all servers that have
            registered with a broker, spreads the calls over several servers: see docs/scale.md.
        port: The port if the URI has none. By default that of its scheme; without a scheme, and
            for ``tcp``, 8545.
        timeout: Seconds that a call may take, connecting included; ``None`` for no limit.
        headers: Headers of every request over HTTP, and of the upgrade to WebSocket.
        verify: Authorities for the server's certificate (TLS only): ``True`` for the system's, a
            path for those in a file or folder, ``False`` for no check; or an ``ssl.SSLContext``.
        cert: The client's certificate (TLS only): a file with certificate and key, or a file each.
        max_reply_bytes: A reply, of a batch as a whole. Past it, `ucall.ConnectionError`.
        max_image_pixels: Width times height of ``response.image``. Past it, ``ValueError``.
        max_waiting_bytes: Items of one stream, or notifications of one subscription, that were
            received and not read; at least 524,288. Past it, a stream fails with
            `ucall.ConnectionError`, and a subscription loses its oldest.
        reconnect: Over WebSocket, and for subscriptions over raw TCP: repeats failed attempts to
            connect, with growing pauses. No call is repeated.
        hedge: With several addresses: sends an idempotent call to a second server when the first
            is slower than 95% of calls.
        shared_memory: Asks the server, at ``unix://`` or ``tcp+unix://``, to pass arrays and bytes
            through memory that both sides share: see docs/shared-memory.md.
        trusted: Whether the server is trusted not to write to a result that the program has. Such
            results are not copied then.
        compression: Over HTTP: accepts compressed replies, and compresses requests of the given
            lengths, as ``ucall.Compression()`` has them: see docs/compression.md#clients.
        trace: Makes an OpenTelemetry span for each call, and sends its context to the server. See
            docs/observability.md.
        tcp_fallback: Over UDP: repeats a call over raw TCP, on the same port, if its reply is too
            long for a datagram. It then runs twice.
        server_hostname: With ``nats+https://`` and the like: the name in the servers' certificates.
            Without one, ``headers`` are refused: any user of the broker could collect them.
        broker_options: With ``nats://``: options of nats-py's ``connect``, such as
            ``user_credentials``.

    Raises:
        ImportError: ``trace`` without ``opentelemetry-api``, or ``nats://`` without ``nats-py``.
        OSError: A file of ``verify`` or ``cert`` cannot be read.
        ValueError: An argument is invalid; the message names it.
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
        _observer: Observer | None = None,
    ) -> None:
        arguments = dict(locals())
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

        def make_pool(options: Options, connect_s: float | None = None) -> Pool:
            return Pool(
                options,
                max_reply_bytes,
                context,
                _observer,
                waiting_bytes_max=max_waiting_bytes,
                reconnect=reconnect,
                connect_s=connect_s,
            )

        self._pool: Pool | BalancedPool | UdpPool
        if isinstance(target, Addresses):
            from ucall._client.balanced import BalancedPool

            self._pool = BalancedPool.of(
                target, self._options, make_pool, hedges=hedge, group=group
            )
            self._reading.want_frames = self._pool.want_frames
        elif address.is_udp:
            from ucall._client.udp import UdpPool

            tcp = partial(make_pool, tcp_options(self._options)) if tcp_fallback else None
            self._pool = UdpPool(self._options, max_reply_bytes, tcp)
        else:
            self._pool = make_pool(self._options)

    def __call__(self, request: dict[str, Any]) -> Response:
        """Sends a request object, with ``jsonrpc`` and ``id`` unless it has them.

        Raises:
            TypeError: The request is not a dict.
            ValueError: A value in it cannot be encoded.
            ucall.ConnectionError, ucall.TimeoutError: See `call`.
        """
        return run(self._exchange_object(request))

    def call(self, method: str, /, *args: object, **kwargs: object) -> Response:
        """Calls a method of any name.

        Args:
            method: The name, such as ``"rpc.discover"``, or a name that this class itself has.
            args: Params by position.
            kwargs: Params by name, if there are none by position.

        Raises:
            TypeError: Params are given both by position and by name.
            ValueError: An argument cannot be encoded; the message names it.
            ucall.ConnectionError: The connection failed, or the reply is not JSON-RPC. Unless the
                client could not connect, the call may have run.
            ucall.TimeoutError: There was no reply in time. The call may have run.
        """
        return self._call(method, args, kwargs)

    def notify(self, method: str, /, *args: object, **kwargs: object) -> None:
        """Calls a method without a reply (JSON-RPC 2.0, 4.1): errors of the call are not reported.

        Raises:
            TypeError, ValueError, ucall.ConnectionError, ucall.TimeoutError: See `call`.
        """
        if self._spans is not None:
            run(self._exchange_traced(self._spans, method, args, kwargs, None))
            return
        options = self._options
        try:
            request = options.writer.call(method, args, kwargs, None)
            self._pool.exchange(request, (), options.timeout)
        except (Undecided, ConnectionError) as error:
            run(self._exchange_again(error, call_of(method, args, kwargs, None), ()))

    def batch(self) -> Batch:
        """Makes a `Batch`: several calls in one request."""
        return Batch(self)

    @property
    def stream(self) -> Methods[Stream]:
        """Calls whose items come one by one: ``client.stream.generate(prompt="hi")``. See `Stream`.

        A call is sent at once. Over HTTP its items come as server-sent events.
        """
        return Methods(self._stream)

    @property
    def rpc(self) -> Method[Response]:
        """The methods of the server about itself: ``client.rpc.discover()`` describes the others.

        From then on `dir` of this client has their names, for the completion of interactive shells.
        It never asks the server itself.
        """
        return Method(self._call_rpc, "rpc")

    def with_progress(self, callback: Callable[[Any], object]) -> Methods[Response]:
        """Calls that pass each item to a callback: ``client.with_progress(print).train()``.

        They return the response at the end. An exception of the callback cancels the call.
        """

        def call(method: str, args: tuple[object, ...], kwargs: dict[str, object]) -> Response:
            stream: Stream = self._stream(method, args, kwargs)
            with stream:
                while (item := stream._next_item()) is not None:
                    callback(item.value)
            return stream.response

        return Methods(call)

    def subscribe(self, on_connect: Callable[[], object] | None = None) -> Subscription:
        """The notifications that the server sends from now on. See `Subscription`.

        Args:
            on_connect: Is called when the subscription has a connection, and again for each new
                one, which the server does not know yet: it calls the functions that subscribe.

        Raises:
            ValueError: The address is for HTTP, which has no such messages.
        """
        return Subscription(self._pool.channel(for_calls=True), on_connect)

    def empty(self, shape: int | Sequence[int], dtype: DTypeLike = float) -> NDArray[Any]:
        """An array without values yet, for params.

        With ``shared_memory`` it lies in memory that the server has, too, unless there is no room:
        a call copies nothing of it. Fill it, send it, and fill it again after the call.

        Raises:
            TypeError, ValueError: There is no such dtype or shape, or arrays of it are not sent.
            ucall.ConnectionError, ucall.TimeoutError: The client cannot connect.
        """
        from ucall._client.shared_memory import empty_in

        pool = self._pool
        return empty_in(pool.shared_memory() if isinstance(pool, Pool) else None, shape, dtype)

    def close(self) -> None:
        """Closes the idle connections, and ends subscriptions. The next call opens a new one."""
        self._pool.close()

    def __getattr__(self, name: str) -> Method[Response]:
        check_public(self, name)
        return Method(self._call, name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        """Closes the client."""
        self.close()

    def _call(self, method: str, args: tuple[object, ...], kwargs: dict[str, object]) -> Response:
        options = self._options
        id = next(self._ids) if options.id is None else options.id
        if self._spans is not None:
            reply = run(self._exchange_traced(self._spans, method, args, kwargs, id))
            return Response(reply, self._reading)
        try:
            request = options.writer.call(method, args, kwargs, id)
            reply = self._pool.exchange(request, (id,), options.timeout)
        except (Undecided, ConnectionError) as error:
            reply = run(self._exchange_again(error, call_of(method, args, kwargs, id), (id,)))
        return Response(reply, self._reading)

    def _call_rpc(
        self, method: str, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> Response:
        response = self._call(method, args, kwargs)
        if method == "rpc.discover":
            self._description = response
        return response


class ClientTLS(Client):
    """A `Client` that always uses TLS: ``"host"`` is ``"https://host:8545"``.

    Args:
        uri: See `Client`. ``http`` becomes ``https``, ``tcp`` becomes ``tcps`` and ``ws`` becomes
            ``wss``, also after ``dns+`` and ``nats+`` and in a list. ``udp`` and Unix sockets are
            refused, because they have no TLS.
        port: See `Client`.
        allow_self_signed: Accepts any certificate, for tests: the server is not authenticated.
            ``verify="certificate.pem"`` is safer.
        options: See `Client`.

    Raises:
        OSError, ValueError: See `Client`.
    """

    def __init__(
        self,
        uri: str | Sequence[str] = "127.0.0.1",
        port: int | None = None,
        *,
        allow_self_signed: bool = False,
        **options: Any,
    ) -> None:
        if allow_self_signed:
            if options.get("verify", True) is not True:
                raise ValueError("verify: has no effect with allow_self_signed")
            options["verify"] = False
        if isinstance(uri, str):
            uri = secure_uri(uri, port)
        else:
            uri = [secure_uri(one, port) for one in uri]
        super().__init__(uri, port, **options)


class Batch(BatchBase[Client]):
    """Calls in one request, with one reply.

    As a context manager it is sent at the end of the block::

        with client.batch() as batch:
            three = batch.sum(1, 2)
            batch.notify("log", "added")
        three.json

    Otherwise `send` sends it. The server may run the calls in any order.
    """

    def send(self) -> list[Response]:
        """Sends the calls that were added since the last `send`.

        Returns:
            The responses, in the order of the calls. Notifications have none.

        Raises:
            ValueError: An argument cannot be encoded.
            ucall.RPCError: The server refused the whole batch. The error of a single call is in its
                response.
            ucall.ConnectionError, ucall.TimeoutError: See `Client.call`.
        """
        return run(self._send())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        """Sends the batch, unless the block raised."""
        if kind is None:
            self.send()
