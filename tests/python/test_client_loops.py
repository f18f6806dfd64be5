"""Clients of a server that drains, redirects, refuses or closes each connection: they make few."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator

import pytest
from scripted import Peer, Scripted, http_reply, scripted
from websocket_peer import CLOSE, PING, frame, read_frame, upgrade

import ucall
import ucall._client.backoff as backoff
from ucall import aio
from ucall._client import resend
from ucall.client import Client

#: Pauses whose random part is whole.
PAUSES = [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0, 10.0]
DRAIN = b'{"jsonrpc":"2.0","method":"$/drain"}'
NEWS = b'{"jsonrpc":"2.0","method":"news","params":[]}'
#: With the code 1008.
CLOSING = frame(b"\x03\xf0", CLOSE)
CLIENTS = pytest.mark.parametrize("client_class", [Client, aio.Client])


def raw(*messages: bytes) -> Callable[[Peer], None]:
    def script(peer: Peer) -> None:
        for message in messages:
            peer.send(message + b"\n")

    return script


def over_websocket(*frames: bytes) -> Callable[[Peer], None]:
    def script(peer: Peer) -> None:
        upgrade(peer)
        peer.send(frame(b"", PING))
        read_frame(peer)  # The client reads, so it has taken the connection for open.
        peer.send(*frames)
        if frames == (CLOSING,):
            read_frame(peer)

    return script


def refuse(status: str) -> Callable[[Peer], None]:
    def script(peer: Peer) -> None:
        peer.http_request()
        peer.send(http_reply(b"", "Location: /other", status=status))

    return script


LOOPS = {
    "tcp closes": ("tcp", raw()),
    "tcp drains": ("tcp", raw(DRAIN)),
    "tcp drains after news": ("tcp", raw(NEWS, DRAIN)),
    "tcp resets": ("tcp", lambda peer: peer.reset()),
    "ws closes": ("ws", over_websocket()),
    "ws drains": ("ws", over_websocket(frame(DRAIN))),
    "ws closes with 1008": ("ws", over_websocket(CLOSING)),
    "ws drains after news": ("ws", over_websocket(frame(NEWS), frame(DRAIN))),
    "ws redirects": ("ws", refuse("302 Found")),
    "ws is unavailable": ("ws", refuse("503 Service Unavailable")),
}


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """The pauses of all subscriptions, which take no time, on a clock that stands still."""
    found: list[float] = []
    next_pause = backoff.Backoff.next

    def recorded(self: backoff.Backoff) -> float:
        found.append(next_pause(self))
        return 0.0

    monkeypatch.setattr(backoff, "uniform", lambda least, most: most)
    monkeypatch.setattr(backoff, "monotonic", lambda: 0.0)
    monkeypatch.setattr(backoff.Backoff, "next", recorded)
    yield found


class EnoughError(Exception):
    pass


def read(client_class: type, uri: str, pauses: list[float]) -> None:
    """Reads a subscription until it has paused often enough."""

    def check() -> None:
        if len(pauses) >= len(PAUSES):
            raise EnoughError

    if client_class is Client:
        with Client(uri, reconnect=True) as client, client.subscribe(check) as subscription:
            for _ in subscription:
                check()
        return

    async def main() -> None:
        async def check_() -> None:
            check()

        client = aio.Client(uri, reconnect=True)
        async with client, client.subscribe(check_) as subscription:
            async for _ in subscription:
                check()

    asyncio.run(main())


@CLIENTS
@pytest.mark.parametrize("name", LOOPS)
def test_a_subscription_pauses_after_each_connection(
    client_class: type, name: str, pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    scheme, script = LOOPS[name]
    if name in ("ws redirects", "ws is unavailable"):
        return refused(client_class, script, monkeypatch)
    failed: list[None] = []

    def at_once() -> Iterator[float]:
        while True:
            failed.append(None)
            yield 0.0

    # A connection that is reset before a busy client has seen it open is a failed attempt.
    monkeypatch.setattr("ucall._client.reconnecting.backoff", at_once)
    with scripted(script) as server:
        with pytest.raises(EnoughError):
            read(client_class, f"{scheme}://127.0.0.1:{server.port}", pauses)
        assert pauses[: len(PAUSES)] == PAUSES
        # A connection that has ended before its request is replaced at once, by one.
        assert server.accepted <= 2 * (len(pauses) + 1) + len(failed)


def refused(
    client_class: type, script: Callable[[Peer], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attempts to connect pause by themselves."""
    made: list[float] = []

    def counted() -> Iterator[float]:
        for pause in backoff.backoff():
            made.append(pause)
            if len(made) == len(PAUSES):
                raise EnoughError
            yield 0.0

    monkeypatch.setattr("ucall._client.reconnecting.backoff", counted)
    with scripted(script) as server:
        with pytest.raises((EnoughError, RuntimeError)):
            read(client_class, f"ws://127.0.0.1:{server.port}", [])
        assert made == PAUSES
        assert server.accepted == len(PAUSES)


def test_pauses_begin_anew_after_a_connection_that_lasted(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(backoff, "uniform", lambda least, most: most)
    monkeypatch.setattr(backoff, "monotonic", lambda: now)
    made = backoff.Backoff()

    def after(seconds: float) -> float:
        nonlocal now
        made.opened()
        now += seconds
        return made.next()

    assert [made.next() for _ in range(3)] == PAUSES[:3]
    assert after(0.8) == 0.8, "no longer than its pause"
    assert after(1.75) == 0.1
    assert after(0.15) == 0.2 and after(0.45) == 0.1
    # Whatever was opened before counts once.
    assert [made.next() for _ in range(9)] == PAUSES[1:]


CALLS = 10


def call_often(client_class: type, uris: str | list[str]) -> None:
    """Calls, each of which may fail."""
    failed = (OSError, ucall.RPCError)
    if client_class is Client:
        with Client(uris, timeout=20) as client:
            for _ in range(CALLS):
                with pytest.raises(failed):
                    client.call("sum", a=1, b=2).raise_for_status()
        return

    async def main() -> None:
        async with aio.Client(uris, timeout=20) as client:
            for _ in range(CALLS):
                with pytest.raises(failed):
                    (await client.call("sum", a=1, b=2)).raise_for_status()

    asyncio.run(main())


def refuse_calls(peer: Peer) -> None:
    """Drains each connection, and refuses the call on it."""
    peer.send(DRAIN + b"\n")
    id = json.loads(peer.raw_request())["id"]
    error = {"code": -32002, "message": "draining"}
    peer.send(json.dumps({"jsonrpc": "2.0", "id": id, "error": error}).encode() + b"\n")


CALL_LOOPS = {
    "http closes": ("http", raw()),
    "http redirects": ("http", refuse("302 Found")),
    "http redirects itself": ("http", refuse("308 Permanent Redirect")),
    "http is unavailable": ("http", refuse("503 Service Unavailable")),
    "tcp closes": ("tcp", raw()),
    "tcp refuses": ("tcp", refuse_calls),
    "ws closes": ("ws", over_websocket()),
    "ws drains": ("ws", over_websocket(frame(DRAIN))),
}


@CLIENTS
@pytest.mark.parametrize("name", CALL_LOOPS)
def test_a_call_makes_one_connection(client_class: type, name: str) -> None:
    scheme, script = CALL_LOOPS[name]
    with scripted(script) as server:
        call_often(client_class, f"{scheme}://127.0.0.1:{server.port}")
        assert server.accepted <= 2 * CALLS


@CLIENTS
@pytest.mark.parametrize("name", CALL_LOOPS)
def test_a_call_to_several_servers_tries_each_three_times(
    client_class: type, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resend, "_ROUND_PAUSES_S", (0.001, 0.001))
    scheme, script = CALL_LOOPS[name]
    with scripted(script) as one, scripted(script) as other:
        servers: list[Scripted] = [one, other]
        call_often(client_class, [f"{scheme}://127.0.0.1:{it.port}" for it in servers])
        # Probes and the question for idempotent functions are connections, too.
        assert sum(it.accepted for it in servers) <= CALLS * 2 * 3 + 4 * CALLS
