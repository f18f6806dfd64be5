"""The client for asyncio: `ucall.client` with awaitable calls.

from ucall.aio import Client

async with Client() as client:
    response = await client.sum(a=2, b=3)
    response.json
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Self

from ucall._client.address import Address
from ucall._client.aio_pool import pool_for
from ucall._client.base import IMAGE_PIXELS_MAX, REPLY_BYTES_MAX, TIMEOUT_S, ClientBase, context_for
from ucall._client.batch import BatchBase
from ucall._client.names import Method, check_public
from ucall._client.response import Response
from ucall._submodules import on_demand

if TYPE_CHECKING:
    from ucall._client.tls import Certificate, Verify
    from ucall.aio import queue as queue
else:  # As in `ucall` itself.
    __getattr__, __dir__ = on_demand(__name__, "queue")

__all__ = ["Batch", "Client", "Response"]


class Client(ClientBase):
    """Calls the functions of a JSON-RPC 2.0 server from asyncio.

    Over HTTP each call under way has a connection of its own, out of a pool. Over raw TCP
    (``"tcp://host"``) all calls share one, and their replies come in any order. A call that is
    cancelled, or late, disturbs no other.

    A client belongs to the event loop that it is used in; in another it connects anew.

    Args:
        max_connections: At the same time, over HTTP. Calls beyond it wait in line, which counts as
            part of their time.

    The other arguments, and what is raised, are those of `ucall.client.Client`.
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
        max_connections: int = 100,
        max_reply_bytes: int = REPLY_BYTES_MAX,
        max_image_pixels: int = IMAGE_PIXELS_MAX,
    ) -> None:
        if max_connections < 1:
            raise ValueError(f"max_connections: expected 1 or more, got {max_connections}")
        address = Address(uri, port)
        super().__init__(address, timeout, headers, max_image_pixels)
        context = context_for(address, verify, cert)
        self._pool = pool_for(address, max_reply_bytes, context, max_connections)

    async def __call__(self, request: dict[str, Any]) -> Response:
        """Sends a request object. ``jsonrpc`` and ``id`` are added if it has none.

        Raises:
            TypeError: It is no dict.
            ValueError: It holds what cannot be sent, or, over raw TCP, has the id of another call
                that is under way.
            ucall.ConnectionError, ucall.TimeoutError: See `call`.
        """
        written, id = self._request_of(request)
        return self._new_response(await self._pool.exchange(written, (id,), self._options.timeout))

    async def call(self, method: str, /, *args: object, **kwargs: object) -> Response:
        """Calls a method of any name. See `ucall.client.Client.call`."""
        return await self._call(method, args, kwargs)

    async def notify(self, method: str, /, *args: object, **kwargs: object) -> None:
        """Sends a notification: the server sends no reply, not even an error."""
        options = self._options
        request = options.writer.call(method, args, kwargs, None)
        await self._pool.exchange(request, (), options.timeout)

    def batch(self) -> Batch:
        """Several calls in one request. See `Batch`."""
        return Batch(self)

    async def close(self) -> None:
        """Closes the connections. The next call opens another."""
        self._pool.close()

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
        options, id = self._options, self._new_id()
        request = options.writer.call(method, args, kwargs, id)
        return self._new_response(await self._pool.exchange(request, (id,), options.timeout))


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
        if not len(self):
            return []
        (calls, request), client = self._take(), self._client
        ids, timeout = tuple(calls.responses), client._options.timeout
        return calls.resolve(await client._pool.exchange(request, ids, timeout))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        """Sends the calls, unless the block raised."""
        if kind is None:
            await self.send()
