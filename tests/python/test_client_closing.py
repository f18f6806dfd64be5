"""Closing what another thread or task waits for: a client that connects, a stream, a subscription.

The wait ends, and no connection is left open."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar

import pytest
from scripted import Peer, scripted
from test_client_streams import Transport
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


def is_waiting() -> bool:
    """Whether a thread of a client waits for a message."""
    names = {frame.f_code.co_name for frame in sys._current_frames().values()}
    return not names.isdisjoint(["_wait_for", "_receive_messages"])


class Silent:
    """A server that answers nothing, over any transport."""

    def __init__(self, wire: Transport) -> None:
        self.wire = wire
        self.calls: list[str] = []
        #: The calls of a stream that is cancelled; over HTTP its connection ends.
        self.cancelled = ["generate", "$/cancelRequest"][: 1 if wire.scheme == "http" else 2]

    def script(self, peer: Peer) -> None:
        self.wire.open(peer)
        while True:
            self.calls.append(self.wire.call(peer)["method"])


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("scheme", ["http", "tcp", "ws"])
def test_closing_a_stream_ends_its_loop(scheme: str, several: bool) -> None:
    silent = Silent(Transport(scheme))
    with scripted(silent.script) as server:
        uri = silent.wire.uri(server)
        with Client([uri] if several else uri, timeout=None) as client:
            stream = client.stream.generate()
            waiting = started(lambda: list(stream))
            assert eventually(is_waiting)
            stream.close()
            assert waiting.result(TIMEOUT_S) == []
            assert eventually(lambda: silent.calls == silent.cancelled)


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("scheme", ["http", "tcp", "ws"])
def test_closing_a_stream_ends_its_loop_in_asyncio(scheme: str, several: bool) -> None:
    silent = Silent(Transport(scheme))

    async def close() -> list[Any]:
        uri = silent.wire.uri(server)
        async with aio.Client([uri] if several else uri, timeout=None) as client:
            stream = client.stream.generate()

            async def read_all() -> list[Any]:
                return [item async for item in stream]

            waiting = asyncio.ensure_future(read_all())
            assert await asyncio.to_thread(eventually, lambda: bool(silent.calls))
            await stream.aclose()
            async with asyncio.timeout(TIMEOUT_S):
                return await waiting

    with scripted(silent.script) as server:
        assert asyncio.run(close()) == []
        assert eventually(lambda: silent.calls == silent.cancelled)


@pytest.mark.parametrize("scheme", ["tcp", "ws"])
def test_closing_a_subscription_ends_its_loop(scheme: str) -> None:
    silent = Silent(Transport(scheme))
    with scripted(silent.script) as server, Client(silent.wire.uri(server)) as client:
        messages = client.subscribe()
        waiting = started(lambda: list(messages))
        assert eventually(is_waiting)
        messages.close()
        assert waiting.result(TIMEOUT_S) == []


def test_closing_a_subscription_that_connects_again_ends_its_loop(paused: threading.Event) -> None:
    with Client(f"ws://{HOST}:{free_port()}", reconnect=True) as client:
        messages = client.subscribe()
        waiting = started(lambda: list(messages))
        assert paused.wait(TIMEOUT_S)
        messages.close()
        assert waiting.result(TIMEOUT_S) == []


@pytest.mark.parametrize("is_up", [False, True])
def test_closing_a_subscription_ends_its_loop_in_asyncio(
    paused: threading.Event, is_up: bool
) -> None:
    silent = Silent(Transport("ws"))

    async def close() -> list[Any]:
        uri = silent.wire.uri(server) if is_up else f"ws://{HOST}:{free_port()}"
        async with aio.Client(uri, reconnect=True) as client:
            messages = client.subscribe()

            async def read_all() -> list[Any]:
                return [message async for message in messages]

            waiting = asyncio.ensure_future(read_all())
            if is_up:
                await client.notify("begun")
                assert await asyncio.to_thread(eventually, lambda: bool(silent.calls))
            else:
                assert await asyncio.to_thread(paused.wait, TIMEOUT_S)
            await messages.aclose()
            async with asyncio.timeout(TIMEOUT_S):
                return await waiting

    with scripted(silent.script) as server:
        assert asyncio.run(close()) == []


def test_closing_a_client_over_raw_tcp_cancels_its_calls() -> None:
    silent = Silent(Transport("tcp"))

    async def close() -> None:
        client = aio.Client(silent.wire.uri(server), timeout=None)
        reading = asyncio.ensure_future(anext(aiter(client.stream.generate())))
        assert await asyncio.to_thread(eventually, lambda: len(silent.calls) == 3)
        await client.close()
        with pytest.raises(ucall.ConnectionError, match="the client was closed"):
            await reading

    with scripted(silent.script) as server:
        client = Client(silent.wire.uri(server), timeout=None)
        reading = started(lambda: list(client.stream.generate()))
        assert eventually(lambda: bool(silent.calls) and is_waiting())
        client.close()
        with pytest.raises(ucall.ConnectionError, match="the client was closed"):
            reading.result(TIMEOUT_S)
        assert eventually(lambda: silent.calls == ["generate", "$/cancelRequest"])
        asyncio.run(close())
        assert eventually(lambda: silent.calls == ["generate", "$/cancelRequest"] * 2)
