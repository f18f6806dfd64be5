"""Closing a client that connects: what waits for the connection ends, and none is left open."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar

import pytest
from scripted import Peer, scripted
from websocket_peer import accept, read_call

import ucall
from harness import HOST, eventually, free_port
from ucall import aio
from ucall._client import aio_pool, channel
from ucall.client import Client

T = TypeVar("T")

#: Far longer than any wait of these tests.
TIMEOUT_S = 30.0


def started(function: Callable[[], T]) -> Future[T]:
    """Runs a function in a thread that does not delay the end of the tests."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


@pytest.fixture
def paused(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Is set when a client pauses before it connects again. The pause is longer than the tests."""
    event = threading.Event()

    def pauses() -> Iterator[float]:
        while True:
            event.set()
            yield 3600

    monkeypatch.setattr(channel, "backoff", pauses)
    monkeypatch.setattr(aio_pool, "backoff", pauses)
    return event


def read(client: Client) -> list[Any]:
    return list(client.subscribe())


async def read_async(client: aio.Client) -> list[Any]:
    return [message async for message in client.subscribe()]


def call(client: Client) -> list[Any]:
    with pytest.raises(ucall.ConnectionError, match="the client was closed") as raised:
        client.same(1)
    return [raised.value.may_have_run]


async def call_async(client: aio.Client) -> list[Any]:
    with pytest.raises(ucall.ConnectionError, match="the client was closed") as raised:
        await client.same(1)
    return [raised.value.may_have_run]


@pytest.mark.parametrize(("wait", "outcome"), [(read, []), (call, [False])])
def test_closing_ends_what_connects_again(
    paused: threading.Event, wait: Callable[[Client], list[Any]], outcome: list[Any]
) -> None:
    client = Client(f"ws://{HOST}:{free_port()}", timeout=None, reconnect=True)
    waiting = started(lambda: wait(client))
    assert paused.wait(TIMEOUT_S)
    started(client.close).result(TIMEOUT_S)
    assert waiting.result(TIMEOUT_S) == outcome


@pytest.mark.parametrize(("wait", "outcome"), [(read_async, []), (call_async, [False])])
def test_closing_ends_what_connects_again_in_asyncio(
    paused: threading.Event, wait: Callable[[aio.Client], Any], outcome: list[Any]
) -> None:
    async def close() -> list[Any]:
        client = aio.Client(f"ws://{HOST}:{free_port()}", timeout=None, reconnect=True)
        waiting = asyncio.ensure_future(wait(client))
        assert await asyncio.to_thread(paused.wait, TIMEOUT_S)
        await client.close()
        async with asyncio.timeout(TIMEOUT_S):
            ended: list[Any] = await waiting
        return ended

    assert asyncio.run(close()) == outcome


class LateServer:
    """Accepts the upgrade to WebSocket when the test allows it."""

    def __init__(self) -> None:
        self.asked, self.may_reply = threading.Event(), threading.Event()

    def script(self, peer: Peer) -> None:
        reply = accept(peer)
        self.asked.set()
        self.may_reply.wait(TIMEOUT_S)
        peer.send(reply)
        read_call(peer)


@pytest.mark.parametrize(("wait", "outcome"), [(read, []), (call, [False])])
def test_a_connection_that_opens_after_close_is_closed(
    wait: Callable[[Client], list[Any]], outcome: list[Any]
) -> None:
    late = LateServer()
    with scripted(late.script) as server:
        client = Client(f"ws://{HOST}:{server.port}", timeout=TIMEOUT_S)
        waiting = started(lambda: wait(client))
        assert late.asked.wait(TIMEOUT_S)
        started(client.close).result(TIMEOUT_S / 2)
        late.may_reply.set()
        assert waiting.result(TIMEOUT_S) == outcome
        assert eventually(lambda: server.ended == 1)
        assert server.accepted == 1


@pytest.mark.parametrize(("wait", "outcome"), [(read_async, []), (call_async, [False])])
def test_a_connection_that_opens_after_close_is_closed_in_asyncio(
    wait: Callable[[aio.Client], Any], outcome: list[Any]
) -> None:
    late = LateServer()

    async def close() -> list[Any]:
        client = aio.Client(f"ws://{HOST}:{server.port}", timeout=TIMEOUT_S)
        waiting = asyncio.ensure_future(wait(client))
        assert await asyncio.to_thread(late.asked.wait, TIMEOUT_S)
        await client.close()
        late.may_reply.set()
        async with asyncio.timeout(TIMEOUT_S):
            ended: list[Any] = await waiting
        assert await asyncio.to_thread(eventually, lambda: server.ended == 1)
        return ended

    with scripted(late.script) as server:
        assert asyncio.run(close()) == outcome
        assert server.accepted == 1
