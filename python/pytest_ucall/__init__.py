"""A plugin of pytest with fixtures for tests of a server's functions.

It is no part of the package `ucall`, because pytest imports it in every environment that has ucall:
so tests that do not use a fixture do not import `ucall` either.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ucall import Server
    from ucall.testing import AsyncTestClient, TestClient

__all__ = ["ucall_async_client", "ucall_client"]


@pytest.fixture
def ucall_client() -> Iterator[Callable[..., TestClient]]:
    """Opens a `ucall.testing.TestClient` of a server, which runs until the end of the test::

        def test_sum(ucall_client):
            client = ucall_client(app.server)
            assert client.sum(2, 3).json == 5

    It takes the arguments of `ucall.testing.TestClient`.
    """
    with contextlib.ExitStack() as clients:

        def open_client(server: Server, **options: Any) -> TestClient:
            from ucall.testing import TestClient

            return clients.enter_context(TestClient(server, **options))

        yield open_client


@pytest.fixture
def ucall_async_client() -> Callable[..., AsyncTestClient]:
    """Makes a `ucall.testing.AsyncTestClient` of a server, which runs while a test has entered it::

        async def test_sum(ucall_async_client):
            async with ucall_async_client(app.server) as client:
                assert (await client.sum(2, 3)).json == 5

    It takes the arguments of `ucall.testing.AsyncTestClient`. The fixture needs no event loop, so
    it is the same for pytest-asyncio, anyio's plugin, and tests that call `asyncio.run`: only the
    test itself is sure to run in the loop that its client is to use.
    """

    def make_client(server: Server, **options: Any) -> AsyncTestClient:
        from ucall.testing import AsyncTestClient

        return AsyncTestClient(server, **options)

    return make_client
