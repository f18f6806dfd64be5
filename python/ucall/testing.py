"""Tests of a server's functions in the process of the test, without a port.

With a fixture of pytest::

    import pytest
    from ucall.testing import TestClient

    @pytest.fixture
    def client():
        with TestClient(app.server) as client:
            yield client

    def test_sum(client):
        assert client.sum(2, 3).json == 5
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Self

from ucall import _core, aio, client
from ucall._client.options import TIMEOUT_S, check_header
from ucall._server import in_process
from ucall.server import Server

if TYPE_CHECKING:
    import asyncio

    from ucall import Context, Process

__all__ = ["AsyncTestClient", "TestClient", "context"]

Transport = Literal["http", "ws", "tcp"]


class TestClient(client.Client):
    """A `ucall.client.Client` of a server that serves it alone.

    The server runs while the client is used as a context manager: its startup hooks run at the
    beginning, its shutdown hooks at the end. It binds no port, and has no TLS and no UDP. All else
    is as for other clients: params are checked, results are JSON, ``auth`` gets the headers.

    Functions run on a thread of the server. `Context.peer` is this process, as on a Unix socket.

    Args:
        server: The server. It must not run.
        transport: What the calls come by: ``"http"``, ``"ws"`` for WebSocket, ``"tcp"`` for raw
            TCP. Subscriptions need one of the last two.
        headers: Headers of every request over HTTP, and of the upgrade to WebSocket. Those of
            another user: ``client.with_options(headers=…)``.
        timeout: See `ucall.client.Client`.
        options: See `ucall.client.Client`.

    Raises:
        TypeError: ``server`` is no server.
        ValueError: An option is invalid.
    """

    #: pytest collects classes with such a name as tests.
    __test__ = False

    def __init__(
        self,
        server: Server,
        *,
        transport: Transport = "http",
        headers: Mapping[str, str] | None = None,
        timeout: float | None = TIMEOUT_S,
        **options: Any,
    ) -> None:
        super().__init__(_uri(transport), headers=headers, timeout=timeout, **options)
        self._server = _checked(server)
        in_process.connect_client(self, server)

    def __enter__(self) -> Self:
        """Starts the server.

        Raises what a startup hook raises, and RuntimeError if the server runs already.
        """
        in_process.start(self._server)
        return self

    def __exit__(self, *raised: object) -> None:
        """Closes the client, and stops the server."""
        self.close()
        self._server.stop()

    def __repr__(self) -> str:
        return f"<ucall.testing.TestClient of {self._server!r}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a TestClient cannot be pickled: its server is in this process")


class AsyncTestClient(aio.Client):
    """A `ucall.aio.Client` of a server that serves it alone, within the event loop of the test.

    ``async with AsyncTestClient(server) as client`` starts the server and stops it. Functions run
    on the loop's thread. All else is as for `TestClient`.

    Args:
        server: See `TestClient`.
        transport: See `TestClient`.
        headers: See `TestClient`.
        timeout: See `ucall.aio.Client`.
        options: See `ucall.aio.Client`.

    Raises:
        TypeError, ValueError: See `TestClient`.
    """

    def __init__(
        self,
        server: Server,
        *,
        transport: Transport = "http",
        headers: Mapping[str, str] | None = None,
        timeout: float | None = TIMEOUT_S,
        **options: Any,
    ) -> None:
        super().__init__(_uri(transport), headers=headers, timeout=timeout, **options)
        self._server = _checked(server)
        self._serving: asyncio.Task[None] | None = None
        in_process.connect_client(self, server)

    async def __aenter__(self) -> Self:
        """Starts the server. See `TestClient.__enter__`."""
        self._serving = await in_process.serve(self._server)
        return self

    async def __aexit__(self, *raised: object) -> None:
        """Closes the client, and stops the server. Raises what a shutdown hook raises."""
        await self.close()
        serving, self._serving = self._serving, None
        if serving is not None:
            self._server._core.stop(False)
            await serving

    def __repr__(self) -> str:
        return f"<ucall.testing.AsyncTestClient of {self._server!r}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("an AsyncTestClient cannot be pickled: its server is in this process")


def context(
    *,
    user: object = None,
    headers: Mapping[str, str] | None = None,
    peer: tuple[str, int] | Process | None = None,
) -> Context:
    """A context for calling a function by hand: ``app.greet("hi", context(user="alice"))``.

    It belongs to no call: it has no connection, reports no progress, and runs nothing in the
    background.

    Args:
        user: What ``auth`` would have returned.
        headers: Of the request.
        peer: The client's IP address and port, or a `ucall.Process`.

    Raises:
        TypeError, ValueError: An argument is invalid.
    """
    lines = []
    for name, value in (headers or {}).items():
        check_header(name, value)
        lines.append(f"{name}: {value}\r\n")
    return _core.make_context(user, "".join(lines).encode("latin-1"), peer)


def _uri(transport: str) -> str:
    if transport not in ("http", "ws", "tcp"):
        raise ValueError(f"transport: expected 'http', 'ws' or 'tcp', got {transport!r}")
    return f"{transport}://localhost"


def _checked(server: object) -> Server:
    if not isinstance(server, Server):
        raise TypeError(f"expected a ucall.Server, got {type(server).__name__}")
    return server
