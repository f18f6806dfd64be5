"""The client: calls to a server as if its functions were here.

from ucall.client import Client

client = Client()
response = client.sum(a=2, b=3)
response.json
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

from ucall._client.address import Address, secure_uri
from ucall._client.base import (
    IMAGE_PIXELS_MAX,
    REPLY_BYTES_MAX,
    TIMEOUT_S,
    ClientBase,
    context_for,
)
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

    ``client.vectorize(description=d, image=image)`` calls by name, ``client.math.sum(2, 3)`` calls
    the method ``math.sum`` by position, ``client.call(name, ...)`` any other. All return a
    `Response`.

    One connection is kept, and one more for each thread that calls at the same time. Threads may
    share a client. A forked child opens connections of its own.

    Args:
        uri: ``"host"``, ``"host:port"``, ``"http://…"``, ``"https://…"``; ``"tcp://…"`` or
            ``"tcps://…"`` for raw TCP, ``"unix:///path"`` or ``"tcp+unix:///path"`` for a socket.
        port: When the URI has none. By default that of its scheme; without a scheme, and for
            ``tcp``, 8545.
        timeout: Seconds that a call may take in all, connecting included; ``None`` for ever.
        headers: Sent with every request (HTTP only).
        verify: Whom to trust (TLS only): ``True`` the system's authorities, a path those in that
            file or folder, ``False`` anybody; or an ``ssl.SSLContext``.
        cert: The client's own certificate (TLS only): a file with certificate and key, or a pair.
        max_reply_bytes: A reply, a whole batch's together. Past it, `ucall.ConnectionError`.
        max_image_pixels: Of ``response.image``. Past it, ``ValueError``.

    Raises:
        OSError: A file of ``verify`` or ``cert`` cannot be read.
        ValueError: An argument makes no sense.
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
        """Sends a request object as it is. ``jsonrpc`` and ``id`` are added when it has none.

        Raises:
            TypeError: It is no dict.
            ValueError: It holds what cannot be sent.
            ucall.ConnectionError, ucall.TimeoutError: See `call`.
        """
        written, _ = self._request_of(request)
        return self._new_response(self._pool.exchange(written, self._options.timeout))

    def call(self, method: str, /, *args: object, **kwargs: object) -> Response:
        """Calls a method of any name.

        Args:
            method: Such as ``"rpc.discover"``, or a name that this class itself has.
            args: Params by position.
            kwargs: Params by name, if there are none by position.

        Raises:
            TypeError: Params are given by position and by name.
            ValueError: An argument cannot be sent; the message says which, and why.
            ucall.ConnectionError: No server, or no reply that is one. Unless the message says that
                it could not connect, the call may have run.
            ucall.TimeoutError: No reply in time. The call may have run.
        """
        return self._call(method, args, kwargs)

    def notify(self, method: str, /, *args: object, **kwargs: object) -> None:
        """Calls a method and asks for no reply, so that its outcome is not known.

        Raises:
            TypeError, ValueError, ucall.ConnectionError, ucall.TimeoutError: See `call`.
        """
        options = self._options
        self._pool.exchange(options.writer.call(method, args, kwargs, None), options.timeout)

    def batch(self) -> Batch:
        """Several calls in one request. See `Batch`."""
        return Batch(self)

    def close(self) -> None:
        """Closes the connections that no thread is using. The next call opens another."""
        self._pool.close()

    def __getattr__(self, name: str) -> Method[Response]:
        check_public(self, name)
        return Method(self._call, name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        """Closes."""
        self.close()

    def _call(self, method: str, args: tuple[object, ...], kwargs: dict[str, object]) -> Response:
        options = self._options
        id = next(self._ids) if options.id is None else options.id
        request = options.writer.call(method, args, kwargs, id)
        return Response(self._pool.exchange(request, options.timeout), self._image_pixels_max)


class ClientTLS(Client):
    """A `Client` over TLS, whatever its URI says: ``"host"`` is ``"https://host:8545"``.

    Args:
        uri: As of `Client`; ``http`` becomes ``https``, and ``tcp`` ``tcps``.
        port: As of `Client`.
        allow_self_signed: Trusts anybody, which is for tests: what is sent is encrypted, but nobody
            knows for whom. Better name the certificate with ``verify="certificate.pem"``.
        options: As of `Client`.

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
                raise ValueError("verify: with allow_self_signed anybody is trusted")
            options["verify"] = False
        super().__init__(*secure_uri(uri, port), **options)


class Batch(BatchBase[Client]):
    """Calls that are sent together, in one request, and replied to together.

    As a context manager it is sent at the end of the block::

        with client.batch() as batch:
            three = batch.sum(1, 2)
            batch.notify("log", "added")
        three.json

    Else by `send`. The server runs the calls in any order it likes.
    """

    def send(self) -> list[Response]:
        """Sends all calls that were added since it was last sent.

        Returns:
            The responses in the order of the calls; notifications have none.

        Raises:
            ValueError: An argument cannot be sent.
            ucall.RPCError: The server refused the batch as a whole; a call that fails has its
                error in its own response.
            ucall.ConnectionError, ucall.TimeoutError: See `Client.call`.
        """
        if not len(self):
            return []
        (calls, request), client = self._take(), self._client
        return calls.resolve(client._pool.exchange(request, client._options.timeout))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        """Sends, unless the block raised."""
        if kind is None:
            self.send()
