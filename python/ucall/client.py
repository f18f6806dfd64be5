"""The synchronous client: calls a server's functions as its own methods.

from ucall.client import Client

client = Client()
response = client.sum(a=2, b=3)
response.json
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

from ucall._client.address import Address, secure_uri
from ucall._client.base import IMAGE_PIXELS_MAX, REPLY_BYTES_MAX, TIMEOUT_S, ClientBase, context_for
from ucall._client.batch import BatchBase
from ucall._client.names import Method, check_public
from ucall._client.pool import Pool
from ucall._client.response import Response

if TYPE_CHECKING:
    from ucall._client.stream import Observer
    from ucall._client.tls import Certificate, Verify

__all__ = ["Batch", "Client", "ClientTLS", "Response"]


class Client(ClientBase):
    """Calls the functions of a JSON-RPC 2.0 server, over HTTP/1.1 or raw TCP.

    ``client.vectorize(description=d, image=image)`` passes params by name, and
    ``client.math.sum(2, 3)`` calls the method ``math.sum`` by position. ``client.call(name, ...)``
    calls methods of any name. All return a `Response`.

    Threads may share a client, which keeps a connection for each concurrent call. A forked child
    opens its own connections.

    Args:
        uri: ``"host"``, ``"host:port"``, ``"http://…"``, ``"https://…"``; ``"tcp://…"`` or
            ``"tcps://…"`` for raw TCP; ``"unix:///path"`` or ``"tcp+unix:///path"`` for a Unix
            socket.
        port: The port if the URI has none. By default that of its scheme; without a scheme, and
            for ``tcp``, 8545.
        timeout: Seconds that a call may take, connecting included; ``None`` for no limit.
        headers: Headers of every request (HTTP only).
        verify: Authorities for the server's certificate (TLS only): ``True`` for the system's, a
            path for those in a file or folder, ``False`` for no check; or an ``ssl.SSLContext``.
        cert: The client's certificate (TLS only): a file with certificate and key, or a file each.
        max_reply_bytes: A reply, of a batch as a whole. Past it, `ucall.ConnectionError`.
        max_image_pixels: Width times height of ``response.image``. Past it, ``ValueError``.

    Raises:
        OSError: A file of ``verify`` or ``cert`` cannot be read.
        ValueError: An argument is invalid; the message names it.
    """

    def __init__(
        self,
        uri: str = "127.0.0.1",
        port: int | None = None,
        *,
        timeout: float | None = TIMEOUT_S,
        headers: Mapping[str, str] | None = None,
        verify: Verify = True,
        cert: Certificate = None,
        max_reply_bytes: int = REPLY_BYTES_MAX,
        max_image_pixels: int = IMAGE_PIXELS_MAX,
        _observer: Observer | None = None,
    ) -> None:
        address = Address(uri, port)
        super().__init__(address, timeout, headers, max_image_pixels)
        context = context_for(address, verify, cert)
        self._pool = Pool(address, max_reply_bytes, context, _observer)

    def __call__(self, request: dict[str, Any]) -> Response:
        """Sends a request object, with ``jsonrpc`` and ``id`` unless it has them.

        Raises:
            TypeError: The request is not a dict.
            ValueError: A value in it cannot be encoded.
            ucall.ConnectionError, ucall.TimeoutError: See `call`.
        """
        written, _ = self._request_of(request)
        return self._new_response(self._pool.exchange(written, self._options.timeout))

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
            ucall.TimeoutError: No reply came in time. The call may have run.
        """
        return self._call(method, args, kwargs)

    def notify(self, method: str, /, *args: object, **kwargs: object) -> None:
        """Calls a method without a reply (JSON-RPC 2.0, 4.1): errors of the call are not reported.

        Raises:
            TypeError, ValueError, ucall.ConnectionError, ucall.TimeoutError: See `call`.
        """
        options = self._options
        self._pool.exchange(options.writer.call(method, args, kwargs, None), options.timeout)

    def batch(self) -> Batch:
        """Makes a `Batch`: several calls in one request."""
        return Batch(self)

    def close(self) -> None:
        """Closes the idle connections. The next call opens a new one."""
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
        request = options.writer.call(method, args, kwargs, id)
        return Response(self._pool.exchange(request, options.timeout), self._image_pixels_max)


class ClientTLS(Client):
    """A `Client` that always uses TLS: ``"host"`` is ``"https://host:8545"``.

    Args:
        uri: See `Client`. ``http`` becomes ``https``, and ``tcp`` becomes ``tcps``.
        port: See `Client`.
        allow_self_signed: Accepts any certificate, for tests: the server is not authenticated.
            ``verify="certificate.pem"`` is safer.
        options: See `Client`.

    Raises:
        OSError, ValueError: See `Client`.
    """

    def __init__(
        self,
        uri: str = "127.0.0.1",
        port: int | None = None,
        *,
        allow_self_signed: bool = False,
        **options: Any,
    ) -> None:
        if allow_self_signed:
            if options.get("verify", True) is not True:
                raise ValueError("verify: has no effect with allow_self_signed")
            options["verify"] = False
        super().__init__(*secure_uri(uri, port), **options)


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
        if not len(self):
            return []
        (calls, request), client = self._take(), self._client
        return calls.resolve(client._pool.exchange(request, client._options.timeout))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        """Sends the batch, unless the block raised."""
        if kind is None:
            self.send()
