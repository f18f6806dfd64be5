"""Names with several addresses, of which some do not answer: Happy Eyeballs (RFC 8305)."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import select
import socket
import threading
import time
from collections.abc import Coroutine, Generator, Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest
from both_clients import NewClient
from scripted import Peer, answering, result, scripted
from test_client_streams import Transport
from websocket_peer import frame, read_call, upgrade

import ucall
from harness import HOST, free_port
from ucall._client import aio_pool, happy_eyeballs, sockets
from ucall._client.aio_pool import connect_to_one
from ucall._client.happy_eyeballs import DELAY_S, Place, attempts, interleaved, literal

#: For the slowest machine; below half of LIMIT_S, which an address that does not answer cost.
END_S = 20.0
LIMIT_S = 60.0


@pytest.fixture(scope="module")
def full_port() -> Iterator[int]:
    """The port of a server that never accepts a connection: attempts wait."""
    with socket.create_server((HOST, 0), backlog=0) as listener, ExitStack() as waiting:
        port = listener.getsockname()[1]
        try:
            while True:
                waiting.enter_context(socket.create_connection((HOST, port), 0.5))
        except TimeoutError:
            yield port


def at(port: int) -> Place:
    return (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (HOST, port))


def place(family: int, number: int) -> Place:
    return (family, socket.SOCK_STREAM, 6, "", number)


def test_families_take_turns() -> None:
    four, six = socket.AF_INET, socket.AF_INET6
    found = [place(six, 1), place(six, 2), place(six, 3), place(four, 4), place(four, 5)]
    assert [number for *_, number in interleaved(found)] == [1, 4, 2, 5, 3]
    assert [number for *_, number in interleaved(found[3:] + found[:1])] == [4, 1, 5]
    assert interleaved([]) == []


@pytest.mark.parametrize("host", [HOST, "::1"])
def test_an_address_needs_no_resolver(host: str) -> None:
    [expected] = socket.getaddrinfo(host, 80, type=socket.SOCK_STREAM)
    assert literal(host, 80) == [expected]
    assert literal("server.test", 80) is None


Attempts = Generator[tuple[list[socket.socket], float | None], float, socket.socket]


def connected(running: Attempts, now: float) -> socket.socket:
    """Lets attempts go on while the time stands still, until one succeeds."""
    try:
        while True:
            pending, _ = running.send(now)
            assert select.select([], pending, [], END_S)[1], "no attempt ends"
    except StopIteration as ended:
        made: socket.socket = ended.value
        return made


def test_the_next_attempt_begins_after_a_delay(full_port: int) -> None:
    with socket.create_server((HOST, 0)) as listener:
        good = listener.getsockname()[1]
        running = attempts([at(full_port), at(full_port), at(good)], 10.0)
        pending, seconds = next(running)
        assert (len(pending), seconds) == (1, DELAY_S)
        pending, seconds = running.send(10.1)
        assert (len(pending), seconds) == (1, pytest.approx(0.15))
        pending, seconds = running.send(10.25)
        assert (len(pending), seconds) == (2, DELAY_S)
        pending, seconds = running.send(10.3)
        assert len(pending) == 2
        with connected(running, 10.5) as made:
            assert made.getpeername() == (HOST, good)
        assert all(other.fileno() == -1 for other in pending)


def test_the_second_attempt_is_of_the_other_family(full_port: int) -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as listener:
        other = literal("::1", listener.getsockname()[1])
        assert other is not None
        running = attempts([at(full_port), at(full_port), *other], 0.0)
        next(running)
        with connected(running, DELAY_S) as made:
            assert made.family == socket.AF_INET6


def test_an_attempt_that_fails_needs_no_delay(full_port: int) -> None:
    with socket.create_server((HOST, 0)) as listener:
        good = listener.getsockname()[1]
        running = attempts([at(full_port), at(free_port()), at(free_port()), at(good)], 0.0)
        [first], _ = next(running)
        with connected(running, DELAY_S) as made:
            assert made.getpeername() == (HOST, good)
        assert first.fileno() == -1


@pytest.mark.parametrize(
    ("limits", "millis"),
    [((None, None), None), ((0.0012, 5.0), 2), ((None, 1.0), 1000), ((1e9, None), 2**31 - 1)],
)
def test_a_wait_is_rounded_up_to_what_the_system_takes(
    monkeypatch: pytest.MonkeyPatch, limits: tuple[float | None, ...], millis: int | None
) -> None:
    waits: list[int | None] = []
    monkeypatch.setattr(select, "poll", lambda: SimpleNamespace(poll=waits.append))
    sockets._wait_for_any([], *limits)
    assert waits == [millis]


def test_the_last_error_is_raised() -> None:
    running = attempts([at(free_port()), place(socket.AF_UNIX, 1), at(free_port())], 0.0)
    with pytest.raises(OSError) as raised:
        next(running)
        connected(running, 0.0)
    assert raised.value.errno == errno.ECONNREFUSED
    with pytest.raises(ucall.ConnectionError, match="no address"):
        next(attempts([], 0.0))


def test_attempts_that_are_closed_close_their_sockets(full_port: int) -> None:
    running = attempts([at(full_port)] * 3, 0.0)
    next(running)
    assert running.send(DELAY_S)[1] == DELAY_S
    pending, seconds = running.send(2 * DELAY_S)
    made = [*pending]
    assert (len(made), seconds) == (3, None)
    running.close()
    assert [it.fileno() for it in made] == [-1] * 3


def answer(scheme: str, peer: Peer) -> None:
    """Replies to a call of the transport."""
    if scheme == "http":
        return answering()(peer)
    if scheme == "ws":
        upgrade(peer)
        call = read_call(peer)
        return peer.send(frame(result(call["params"], call["id"])))
    call = json.loads(peer.raw_request())
    return peer.send(result(call["params"], call["id"]) + b"\n")


@pytest.mark.parametrize("scheme", ["http", "tcp", "ws"])
def test_an_address_that_does_not_answer_costs_little(
    scheme: str, monkeypatch: pytest.MonkeyPatch, full_port: int, new_client: NewClient
) -> None:
    with scripted(lambda peer: answer(scheme, peer)) as server:
        found = [at(full_port), at(full_port), at(server.port)]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
        began = time.monotonic()
        with new_client(f"{scheme}://server.test:1", timeout=LIMIT_S) as client:
            assert client.echo(1).json == [1]
        assert time.monotonic() - began < END_S


def test_addresses_share_the_time(
    monkeypatch: pytest.MonkeyPatch, full_port: int, new_client: NewClient
) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [at(full_port)] * 1000)
    began = time.monotonic()
    with pytest.raises(ucall.TimeoutError, match=r"timed out after 0\.6 s"):
        new_client("server.test", timeout=0.6).sum(1, 2)
    assert time.monotonic() - began < END_S


@pytest.mark.parametrize("kind", ["asyncio", "uvloop"])
def test_each_event_loop_tries_the_next_address(kind: str, full_port: int) -> None:
    loops = pytest.importorskip(kind)

    async def connect(*ports: int) -> Any:
        with await connect_to_one([at(port) for port in ports]) as made:
            return made.getpeername()[1]

    def run(work: Coroutine[Any, Any, Any]) -> Any:
        return loops.run(asyncio.wait_for(work, END_S))

    with socket.create_server((HOST, 0)) as listener:
        good = listener.getsockname()[1]
        assert run(connect(full_port, free_port(), good)) == good
    with pytest.raises(ConnectionRefusedError):
        run(connect(free_port(), free_port()))


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="needs TCP_USER_TIMEOUT")
@pytest.mark.parametrize("kind", ["http", "tcp", "ws", "shared", "stream"])
def test_a_time_limit_of_the_system_is_a_failure_of_the_connection(
    monkeypatch: pytest.MonkeyPatch, new_client: NewClient, kind: str
) -> None:
    """As that of keepalive, if the other machine is gone."""
    begin = happy_eyeballs._begin

    def begin_impatiently(place: Place) -> tuple[socket.socket, bool]:
        made, is_connected = begin(place)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 100)
        return made, is_connected

    monkeypatch.setattr(happy_eyeballs, "_begin", begin_impatiently)
    wire, has_failed = (
        Transport({"shared": "tcp", "stream": "http"}.get(kind, kind)),
        threading.Event(),
    )

    def read_nothing(peer: Peer) -> None:
        wire.open(peer)
        has_failed.wait(LIMIT_S)

    with scripted(read_nothing) as server:
        with new_client(wire.uri(server), timeout=LIMIT_S) as client:
            if kind == "shared":
                client.subscribe()
            with pytest.raises(ucall.ConnectionError, match="the connection failed"):
                # More than the system holds.
                if kind == "stream":
                    list(client.stream.echo("x" * (8 << 20)))
                else:
                    client.echo("x" * (8 << 20))
        has_failed.set()


@pytest.mark.parametrize("scheme", ["tcp", "ws"])
def test_a_time_limit_of_the_system_ends_no_reconnecting(
    monkeypatch: pytest.MonkeyPatch, new_client: NewClient, scheme: str
) -> None:
    wire, failures = Transport(scheme), 2

    def attempts_after_failures(*arguments: Any) -> Attempts:
        nonlocal failures
        if failures:
            failures -= 1
            raise OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
        return (yield from attempts(*arguments))

    for module in (sockets, aio_pool):
        monkeypatch.setattr(module, "attempts", attempts_after_failures)

    def notify(peer: Peer) -> None:
        wire.open(peer)
        wire.send(peer, b'{"jsonrpc":"2.0","method":"news"}')
        wire.call(peer)

    with scripted(notify) as server:
        with new_client(wire.uri(server), timeout=None) as client:
            with pytest.raises(ucall.ConnectionError, match="cannot connect") as caught:
                client.echo(1)
            assert not caught.value.may_have_run
        with new_client(wire.uri(server), timeout=None, reconnect=True) as client:
            assert next(client.subscribe())[0] == "news"
    assert failures == 0


ADDRESS: Any = SimpleNamespace(name="server:1")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(errno.ECONNREFUSED, "Connection refused"), "Connection refused"),
        (UnicodeError("label too long"), "label too long"),
        (OSError(), "OSError"),
    ],
)
def test_a_connection_that_fails_has_a_reason(error: Exception, reason: str) -> None:
    made: Any = sockets.connect_error(ADDRESS, error, 1.0)
    assert str(made) == f"cannot connect to server:1: {reason}"


def test_a_connection_that_is_late_is_no_late_call() -> None:
    """Otherwise its server would be taken for one that answers slowly."""
    made: Any = sockets.connect_error(ADDRESS, TimeoutError(), 1.0)
    assert isinstance(made, ucall.TimeoutError) and made._was_connecting
