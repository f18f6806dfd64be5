"""Closing what another thread or task waits for: a client that connects, a stream, a subscription.

The wait ends, and no connection is left open."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from both_clients import NewClient, clients
from scripted import Peer, result, scripted
from test_client_streams import Transport
from websocket_peer import accept, read_call, upgrade

import ucall
from harness import HOST, eventually, free_port, started
from ucall._client import reconnecting
from ucall._client.backoff import Backoff
from ucall.client import Client

#: Far longer than any wait of these tests.
TIMEOUT_S = 30.0


@pytest.fixture
def paused(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Is set when a client pauses before it connects again. The pause is longer than the tests."""
    event = threading.Event()

    def pauses() -> Iterator[float]:
        while True:
            event.set()
            yield 3600

    monkeypatch.setattr(reconnecting, "backoff", pauses)
    monkeypatch.setattr(Backoff, "next", lambda _: next(pauses()))
    return event


def read(client: Any) -> list[Any]:
    return list(client.subscribe())


def call(client: Any) -> list[Any]:
    with pytest.raises(ucall.ConnectionError, match="the client was closed") as raised:
        client.same(1)
    return [raised.value.may_have_run]


WAITS = pytest.mark.parametrize(("wait", "outcome"), [(read, []), (call, [False])])


@WAITS
def test_closing_ends_what_connects_again(
    new_client: NewClient,
    paused: threading.Event,
    wait: Callable[[Any], list[Any]],
    outcome: list[Any],
) -> None:
    client = new_client(f"ws://{HOST}:{free_port()}", timeout=None, reconnect=True)
    waiting = started(lambda: wait(client))
    assert paused.wait(TIMEOUT_S)
    started(client.close).result(TIMEOUT_S)
    assert waiting.result(TIMEOUT_S) == outcome


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


@WAITS
def test_a_connection_that_opens_after_close_is_closed(
    new_client: NewClient, wait: Callable[[Any], list[Any]], outcome: list[Any]
) -> None:
    late = LateServer()
    with scripted(late.script) as server:
        client = new_client(f"ws://{HOST}:{server.port}", timeout=TIMEOUT_S)
        waiting = started(lambda: wait(client))
        assert late.asked.wait(TIMEOUT_S)
        started(client.close).result(TIMEOUT_S / 2)
        late.may_reply.set()
        assert waiting.result(TIMEOUT_S) == outcome
        assert eventually(lambda: server.ended == 1)
        assert server.accepted == 1


def is_waiting(new_client: NewClient) -> bool:
    """Whether a thread of a client waits for a message; one of asyncio does once it has begun."""
    names = {frame.f_code.co_name for frame in sys._current_frames().values()}
    return new_client is not Client or not names.isdisjoint(["_wait_for", "_receive_messages"])


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


SCHEMES = pytest.mark.parametrize("scheme", ["http", "tcp", "ws"])


@pytest.mark.parametrize("several", [False, True])
@SCHEMES
def test_closing_a_stream_ends_its_loop(new_client: NewClient, scheme: str, several: bool) -> None:
    silent = Silent(Transport(scheme))
    with scripted(silent.script) as server:
        uri = silent.wire.uri(server)
        with new_client([uri] if several else uri, timeout=None) as client:
            stream = client.stream.generate()
            waiting = started(lambda: list(stream))
            assert eventually(lambda: bool(silent.calls) and is_waiting(new_client))
            stream.close()
            assert waiting.result(TIMEOUT_S) == []
            assert eventually(lambda: silent.calls == silent.cancelled)


def test_closing_a_stream_that_connects_ends_its_loop_in_asyncio() -> None:
    late = LateServer()
    with scripted(late.script) as server, clients("aio") as new_client:
        stream = new_client(f"ws://{HOST}:{server.port}", timeout=None).stream.generate()
        waiting = started(lambda: list(stream))
        assert late.asked.wait(TIMEOUT_S)
        stream.close()
        assert waiting.result(TIMEOUT_S) == []
        late.may_reply.set()


@pytest.mark.parametrize("scheme", ["tcp", "ws"])
def test_closing_a_subscription_ends_its_loop(new_client: NewClient, scheme: str) -> None:
    silent = Silent(Transport(scheme))
    with scripted(silent.script) as server, new_client(silent.wire.uri(server)) as client:
        messages = client.subscribe()
        waiting = started(lambda: list(messages))
        assert eventually(lambda: server.accepted == 1 and is_waiting(new_client))
        messages.close()
        assert waiting.result(TIMEOUT_S) == []


@pytest.mark.parametrize("has_connected", [False, True])
def test_closing_a_subscription_that_connects_again_ends_its_loop(
    new_client: NewClient, paused: threading.Event, has_connected: bool
) -> None:
    with scripted(upgrade) as server:
        port = server.port if has_connected else free_port()
        client = new_client(f"ws://{HOST}:{port}", reconnect=True)
        messages = client.subscribe()
        waiting = started(lambda: list(messages))
        assert paused.wait(TIMEOUT_S)
        messages.close()
        assert waiting.result(TIMEOUT_S) == []


def test_closing_a_client_over_raw_tcp_cancels_its_calls(new_client: NewClient) -> None:
    silent = Silent(Transport("tcp"))
    with scripted(silent.script) as server:
        client = new_client(silent.wire.uri(server), timeout=None)
        reading = started(lambda: list(client.stream.generate()))
        assert eventually(lambda: bool(silent.calls) and is_waiting(new_client))
        client.close()
        with pytest.raises(ucall.ConnectionError, match="the client was closed"):
            reading.result(TIMEOUT_S)
        assert eventually(lambda: silent.calls == ["generate", "$/cancelRequest"])


@pytest.mark.parametrize("scheme", ["tcp", "ws"])
def test_closing_a_client_ends_what_waits_on_a_connection_that_drains(
    new_client: NewClient, scheme: str
) -> None:
    wire, calls = Transport(scheme), list[str]()

    def script(peer: Peer) -> None:
        wire.open(peer)
        while True:
            call = wire.call(peer)
            calls.append(call["method"])
            if call["method"] == "drain":
                wire.send(peer, b'{"jsonrpc":"2.0","method":"$/drain"}')
            if call["method"] in ("drain", "another"):
                wire.send(peer, result(1, call["id"]))

    with scripted(script) as server:
        client = new_client(wire.uri(server), timeout=None)
        messages = client.subscribe()
        waiting = started(lambda: list(messages))
        assert eventually(lambda: server.accepted == 1 and is_waiting(new_client))
        reading = started(lambda: list(client.stream.generate()))
        assert eventually(lambda: calls == ["generate"])
        client.drain()
        client.another()
        assert server.accepted == 2
        client.close()
        assert waiting.result(TIMEOUT_S) == []
        with pytest.raises(ucall.ConnectionError, match="the client was closed"):
            reading.result(TIMEOUT_S)
        assert eventually(lambda: server.ended == 2)
