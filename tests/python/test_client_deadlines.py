"""A time limit of a client holds for all steps of a call together: connecting, TLS, sending, every
further attempt. These tests have a clock of their own, which each step moves."""

from __future__ import annotations

import asyncio
import builtins
import json
import socket
import ssl
from collections.abc import Collection
from typing import Any

import pytest
from both_clients import NewClient
from scripted import result
from timing import Clock

import ucall
from ucall import _core
from ucall._client import pool, sockets, tls_socket
from ucall._client.address import Address
from ucall._client.aio_udp_endpoint import Endpoint
from ucall._client.channel import Channel
from ucall._client.datagrams import Cookie, RoundTrips, Window
from ucall._client.inbox import Inbox, Router
from ucall._client.link import Link
from ucall._client.socket_connection import EventConnection, SocketConnection
from ucall._client.sockets import Deadline, not_sent
from ucall._client.udp import AsyncUdpPool, UdpPool
from ucall.client import Client

SERVERS = [f"tcp://127.0.0.{number}:1" for number in (1, 2, 3)]
LIMIT_S = 10.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    names = [
        "deadline",
        "sockets",
        "pool",
        "balanced",
        "aio_balanced",
        "failover",
        "socket_connection",
    ]
    return Clock(monkeypatch, *(f"ucall._client.{name}" for name in names))


def answer(id: object, is_batch: bool = False, **members: object) -> _core.Reply:
    text: Any = {"jsonrpc": "2.0", "id": id, **(members or {"result": 1})}
    reader = _core.ReplyReader(http=False, reply_bytes_max=10_000)
    [reply] = reader.feed(json.dumps([text] if is_batch else text).encode() + b"\n")
    assert isinstance(reply, _core.Reply)
    return reply


def unsent() -> ucall.ConnectionError:
    return not_sent(ucall.ConnectionError("refused"))


class Servers:
    """The pools of all members of a client, of which none succeeds."""

    def __init__(self, clock: Clock, took_s: float, error: Exception | None = None) -> None:
        self._clock, self._took_s, self._error = clock, took_s, error or unsent()
        #: How the first attempt fails, if not as all.
        self.first: Exception | None = None
        #: The methods of the requests, and the seconds that each got.
        self.attempts: list[tuple[str, float | None]] = []

    def exchange(self, request: _core.Request, _: object, timeout: float | None) -> _core.Reply:
        method = json.loads(request.document)["method"]
        if method != "$/probe":
            self.attempts.append((method, timeout))
            self._clock.pass_by(self._took_s)
            if (first := self.first) is not None:
                self.first = None
                raise first
        raise self._error

    def close(self) -> None:
        pass

    def close_idle(self) -> None:
        pass


class AsyncServers(Servers):
    """The same in asyncio."""

    async def exchange(  # type: ignore[override]
        self, request: _core.Request, ids: object, timeout: float | None
    ) -> _core.Reply:
        return super().exchange(request, ids, timeout)


def call(
    new_client: NewClient,
    uris: Any,
    clock: Clock,
    took_s: float,
    error: Exception | None = None,
    **options: Any,
) -> tuple[Exception, list[tuple[str, float | None]]]:
    """How a call of a client fails, and its attempts."""
    servers = (Servers if new_client is Client else AsyncServers)(clock, took_s, error)
    with new_client(uris, timeout=LIMIT_S, **options) as client:
        _use(client, servers)
        with pytest.raises(OSError) as caught:
            client.call("get")
    return caught.value, servers.attempts


def _use(client: Any, servers: Servers) -> None:
    balancer = client._pool._balancer
    balancer._make_pool = lambda address: servers
    for member in balancer.members:
        member.pool = servers


@pytest.mark.parametrize("hedge", [False, True])
def test_each_attempt_gets_the_time_that_is_left(
    clock: Clock, new_client: NewClient, hedge: bool
) -> None:
    raised, attempts = call(new_client, SERVERS, clock, 3.0, hedge=hedge)
    assert isinstance(raised, ucall.ConnectionError)
    *first, (_, last_s) = attempts
    assert first == [("get", pytest.approx(left)) for left in (10, 7, 4)]
    # A pause of up to 0.1 s is before the next round. Another round would begin after the end.
    assert last_s == pytest.approx(0.925, abs=0.0251)


@pytest.mark.parametrize("may_have_run", [False, True])
def test_an_attempt_that_takes_too_long_says_whether_the_call_may_have_run(
    clock: Clock, new_client: NewClient, may_have_run: bool
) -> None:
    error = builtins.TimeoutError() if may_have_run else not_sent(ucall.TimeoutError("connecting"))
    raised, _ = call(new_client, SERVERS, clock, 4.0, error, hedge=True)
    assert isinstance(raised, ucall.TimeoutError)
    assert raised.may_have_run == may_have_run


def test_no_attempt_follows_a_pause_past_the_end(clock: Clock, new_client: NewClient) -> None:
    raised, attempts = call(new_client, SERVERS, clock, 3.32)
    assert len(attempts) == 3
    assert isinstance(raised, ucall.ConnectionError), "the failure is that of the last attempt"


@pytest.mark.parametrize(("took_s", "left_s"), [(2.0, 1.0), (9.5, 0.5)])
def test_a_discovery_takes_a_second_and_no_more_than_is_left(
    clock: Clock, new_client: NewClient, took_s: float, left_s: float
) -> None:
    _, attempts = call(new_client, SERVERS, clock, took_s, ucall.ConnectionError("cut"))
    assert attempts[0] == ("get", LIMIT_S)
    assert attempts[1] == ("rpc.discover", pytest.approx(left_s))


def test_a_name_is_resolved_within_the_time_of_the_call(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, new_client: NewClient
) -> None:
    durations = [4.0]  # It is resolved again beside the call, as the first server fails.
    found = [(socket.AF_INET, 1, 6, "", (f"127.0.0.{number}", 1)) for number in (1, 2)]

    def resolve(*_: object, **__: object) -> list[Any]:
        clock.pass_by(durations.pop() if durations else 0)
        return found

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    _, attempts = call(new_client, "dns+tcp://server.test:1", clock, 2.0)
    assert attempts[:2] == [("get", pytest.approx(6)), ("get", pytest.approx(4))]


class Connection:
    """A connection of a pool: one that was closed while it was idle, or one that is too slow."""

    def __init__(self, clock: Clock, is_closed: bool, limits: list[float | None]) -> None:
        self._clock, self._is_closed, self._limits = clock, is_closed, limits

    def exchange(self, _: _core.Request, timeout: float | None) -> None:
        self._limits.append(timeout)
        self._clock.pass_by(2)
        if not self._is_closed:
            raise builtins.TimeoutError

    def close(self) -> None:
        pass


def test_a_connection_is_replaced_within_the_time_of_the_call(clock: Clock) -> None:
    limits: list[float | None] = []

    def connect(deadline: Deadline) -> Connection:
        limits.append(deadline.left())
        clock.pass_by(3)
        return Connection(clock, False, limits)

    with Client("tcp://127.0.0.1:1", timeout=LIMIT_S) as client:
        client._pool._idle += [Connection(clock, True, limits) for _ in range(2)]
        client._pool._connect = connect
        with pytest.raises(ucall.TimeoutError, match="after 10 s"):
            client.call("get")
    # Two that the server has closed, the time to connect, and the exchange.
    assert limits == [10, 8, 6, 3]


@pytest.mark.parametrize(("idle", "connect_s"), [(5, 0), (0, 10)])
def test_a_call_that_was_not_sent_in_time_has_not_run(
    clock: Clock, idle: int, connect_s: float
) -> None:
    """The server has closed all idle connections, or takes long to accept a new one."""

    def connect(_: Deadline) -> Connection:
        clock.pass_by(connect_s)
        return Connection(clock, False, [])

    with Client("tcp://127.0.0.1:1", timeout=LIMIT_S) as client:
        client._pool._idle += [Connection(clock, True, []) for _ in range(idle)]
        client._pool._connect = connect
        with pytest.raises(ucall.TimeoutError, match="after 10 s") as caught:
            client.call("get")
    assert not caught.value.may_have_run


def test_a_stream_over_http_that_was_not_sent_in_time_has_not_run(clock: Clock) -> None:
    slow = SlowSocket(clock)
    made = EventConnection(slow, reply_bytes_max=1000)
    deadline = Deadline(LIMIT_S)
    clock.pass_by(LIMIT_S)
    with Client("tcp://127.0.0.1:1") as client:
        request = client._options.writer.call("get", (), None, 1)
    with pytest.raises(ucall.TimeoutError) as caught:
        made.begin(request, deadline)
    assert slow.limits == [] and not caught.value.may_have_run


def test_a_call_may_have_run_at_an_attempt_before_the_last(
    clock: Clock, new_client: NewClient
) -> None:
    servers = (Servers if new_client is Client else AsyncServers)(clock, 1.0)
    servers.first = ucall.ConnectionError("cut")
    with new_client(SERVERS, timeout=LIMIT_S) as client:
        _use(client, servers)
        with pytest.raises(ucall.ConnectionError, match="refused") as caught:
            client.with_options(idempotent=True).call("get")
    assert caught.value.may_have_run


@pytest.mark.parametrize(("connect_s", "expected"), [(None, [10, 6]), (5, [5, 1])])
def test_tls_gets_the_time_that_connecting_has_left(
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    connect_s: float | None,
    expected: list[float],
) -> None:
    limits = []

    def step(*arguments: Any) -> object:
        limits.append(arguments[-1].left())
        clock.pass_by(4)
        return object()

    monkeypatch.setattr(pool, "connect", step)
    monkeypatch.setattr(pool, "encrypt", step)
    with Client("tcps://127.0.0.1:1") as client:
        client._pool._connect_s = connect_s
        client._pool._socket(Deadline(LIMIT_S))
    assert limits == expected


def test_a_handshake_gets_the_time_that_is_left(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[float | None] = []

    class Handshake:
        def __init__(self, *_: object) -> None: ...
        def do_handshake(self) -> None: ...

    monkeypatch.setattr(tls_socket, "TlsSocket", Handshake)
    one, other = socket.socketpair()
    with one, other:
        deadline = Deadline(LIMIT_S)
        clock.pass_by(4)
        sockets.encrypt(one, None, Address("tcps://127.0.0.1:1"), deadline)  # type: ignore[arg-type]
        limits.append(one.gettimeout())
    assert limits == [6]


class SlowSocket:
    """A socket whose every operation takes a second, and moves few bytes."""

    def __init__(self, clock: Clock, received: bytes = b"", sent_max: int = 1 << 20) -> None:
        self._clock, self._received, self._sent_max = clock, received, sent_max
        self._timeout: float | None = LIMIT_S
        self.limits: list[float | None] = []

    def settimeout(self, seconds: float | None) -> None:
        self._timeout = seconds

    def gettimeout(self) -> float | None:
        return self._timeout

    def send(self, data: memoryview) -> int:
        self._take_a_second()
        return min(len(data), self._sent_max)

    def recv(self, size: int) -> bytes:
        self._take_a_second()
        piece, self._received = self._received[:20], self._received[20:]
        return piece

    def close(self) -> None:
        pass

    def fileno(self) -> int:
        return -1

    def _take_a_second(self) -> None:
        self.limits.append(self._timeout)
        assert len(self.limits) < 30, "it is past every limit"
        self._clock.pass_by(1)


def test_each_piece_that_is_sent_or_received_gets_the_time_that_is_left(clock: Clock) -> None:
    with Client("tcp://127.0.0.1:1") as client:
        request = client._options.writer.call("get", ("x" * 200_000,), None, 1)
    slow = SlowSocket(clock, result("x" * 60) + b"\n")
    made = SocketConnection(slow, is_http=False, reply_bytes_max=1000)  # type: ignore[arg-type]
    reply = made.exchange(request, LIMIT_S)
    assert reply is not None and reply.result() == "x" * 60
    # Four pieces out, and five in.
    assert slow.limits == list(range(10, 10 - len(slow.limits), -1)) and len(slow.limits) > 8


@pytest.mark.parametrize("sent_max", [1 << 20, 20], ids=["receiving", "sending"])
def test_a_handshake_of_many_pieces_ends_in_time(clock: Clock, sent_max: int) -> None:
    # A record of 16 KiB that does not end.
    slow = SlowSocket(clock, b"\x16\x03\x03\x40\x00" + b"\x02\x00\x3f\xfc" + bytes(1000), sent_max)
    secured = tls_socket.TlsSocket(slow, ssl.create_default_context(), "server.test")  # type: ignore[arg-type]
    with pytest.raises(builtins.TimeoutError):
        secured.do_handshake()
    assert slow.limits == list(range(10, 0, -1))


@pytest.mark.parametrize("scheme", ["tcp", "ws"])
def test_a_shared_connection_is_opened_within_the_time_of_the_call(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    limits = []

    def step(link: Link, *arguments: Any) -> None:
        limits.append(arguments[-1].left())
        clock.pass_by(2)

    async def wait(link: Link, *arguments: Any) -> None:
        step(link, *arguments)
        raise builtins.TimeoutError

    async def opened(link: Link, *arguments: Any) -> None:
        step(link, *arguments)

    monkeypatch.setattr(Link, "open", opened)
    monkeypatch.setattr(Link, "start", step)
    monkeypatch.setattr(Link, "wait", wait)
    monkeypatch.setattr(Channel, "cancel", lambda *_: None)
    one, other = socket.socketpair()
    with one, other, Client(f"{scheme}://127.0.0.1:1", timeout=LIMIT_S) as client:
        channel = client._pool.channel(for_calls=True)

        def connect(deadline: Deadline) -> socket.socket:
            limits.append(deadline.left())
            clock.pass_by(3)
            return one

        channel._connect = connect
        with pytest.raises(ucall.TimeoutError, match="after 10 s"):
            client.call("get")
    # Connecting, the upgrade, sending and waiting.
    assert limits == [10, 7, 5, 3]


def test_a_call_waits_for_a_connection_that_another_thread_opens_in_its_time() -> None:
    with Client("tcp://127.0.0.1:1", timeout=0.01) as client:
        channel = client._pool.channel(for_calls=True)
        late = pytest.raises(ucall.TimeoutError, match="cannot connect")
        with channel._opening, late as caught:
            client.call("get")
    assert not caught.value.may_have_run


def test_a_connection_is_not_opened_again_past_the_end(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = []

    def connect(deadline: Deadline) -> socket.socket:
        attempts.append(deadline.left())
        clock.pass_by(6)
        raise unsent()

    monkeypatch.setattr("ucall._client.reconnecting.backoff", lambda: iter([0.001, 5.0, 0.001]))
    with Client("tcp://127.0.0.1:1", timeout=LIMIT_S, reconnect=True) as client:
        channel = client._pool.channel(for_calls=True)
        channel._connect = connect
        with pytest.raises(ucall.ConnectionError, match="refused"):
            client.call("get")
    assert attempts == [10, 4]


class Lock:
    """The lock of what a connection sends, which another thread holds."""

    def __init__(self) -> None:
        self.limits: list[float] = []

    def acquire(self, timeout: float) -> bool:
        self.limits.append(timeout)
        return False


def test_a_request_waits_for_earlier_ones_and_for_room_in_its_time(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[float | None] = []

    def wait_for(link: Link, _: int, seconds: float | None) -> bool:
        limits.append(seconds)
        clock.pass_by(3)
        return len(limits) < 2

    monkeypatch.setattr(Link, "_wait_for", wait_for)
    one, other = socket.socketpair()
    with one, other, Client("tcp://127.0.0.1:1") as client:
        request = client._options.writer.call("get", ("x" * 10_000_000,), None, 1)
        link = Link(one, Router([], 1 << 20), 1000, None, None)
        deadline = Deadline(LIMIT_S)
        clock.pass_by(4)
        free, link._sending = link._sending, Lock()  # type: ignore[assignment]
        with pytest.raises(builtins.TimeoutError):
            link.send(request, deadline, Inbox())
        assert link._sending.limits == [6]  # type: ignore[attr-defined]
        link._sending = free
        with pytest.raises(builtins.TimeoutError):
            link.send(request, deadline, Inbox())
        assert limits == [6, 3]


TOO_LONG = {"error": {"code": -32603, "message": "", "data": {"transport": "tcp"}}}


class Tcp:
    """The connections that repeat calls over TCP."""

    def __init__(self, is_batch: bool) -> None:
        self._is_batch = is_batch
        self.limits: list[float | None] = []

    def exchange(self, _: object, ids: Collection[object], timeout: float | None) -> _core.Reply:
        self.limits.append(timeout)
        [id] = ids
        return answer(id, self._is_batch)

    def close(self) -> None:
        pass


class AsyncTcp(Tcp):
    """The same in asyncio."""

    async def exchange(  # type: ignore[override]
        self, request: object, ids: Collection[object], timeout: float | None
    ) -> _core.Reply:
        return super().exchange(request, ids, timeout)


@pytest.mark.parametrize("is_batch", [False, True])
def test_a_call_is_repeated_over_tcp_in_the_time_that_udp_has_left(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, new_client: NewClient, is_batch: bool
) -> None:
    def exchange(_: object, calls: list[Any], *rest: object) -> list[_core.Reply]:
        clock.pass_by(4)
        return [answer(id, **TOO_LONG) for id, _ in calls]

    async def exchange_later(*arguments: Any) -> list[_core.Reply]:
        return exchange(*arguments)

    monkeypatch.setattr(UdpPool, "_exchange", exchange)
    monkeypatch.setattr(AsyncUdpPool, "_exchange", exchange_later)
    tcp = (Tcp if new_client is Client else AsyncTcp)(is_batch)
    options: dict[str, Any] = {"timeout": LIMIT_S, "tcp_fallback": True}
    with new_client("udp://127.0.0.1:1", **options) as client:
        client._pool._make_tcp = lambda: tcp
        if is_batch:
            with client.batch() as batch:
                found = batch.call("get")
        else:
            found = client.call("get")
        assert found.json == 1
    assert tcp.limits == [6]


def test_a_datagram_waits_for_room_and_for_a_reply_in_its_time(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = []
    monkeypatch.setattr(_core, "send_datagrams", lambda *_: 0)
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with one, other, Client("udp://127.0.0.1:1") as client:
        deadline = Deadline(LIMIT_S)
        clock.pass_by(4)
        client._pool._run(one, client._pool._window(), [b"x"], deadline)
        limits.append(one.gettimeout())
        monkeypatch.setattr(_core, "receive_datagrams", lambda *given: limits.append(given[-1]))
        window = Window(RoundTrips(), Cookie(), lambda low, high: 1)
        window.add([(1, b"x")])
        window.take_due(0)
        # It would be sent again after a second.
        client._pool._receive(one, window, 0, deadline)
        clock.pass_by(5.75)
        client._pool._receive(one, window, 0, deadline)
    assert limits == [6, 1, 0.25]


def test_datagrams_in_asyncio_wait_in_their_time(clock: Clock) -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        with other:
            one.setblocking(False)
            endpoint = Endpoint(loop, one, Window(RoundTrips(), Cookie()), 10_000)
            deadline = Deadline(1000)
            clock.pass_by(999.99)
            running = asyncio.ensure_future(endpoint.run([(1, b"x")], deadline))
            done, _ = await asyncio.wait({running}, timeout=60)
            endpoint.close()
            assert done and isinstance(running.exception(), builtins.TimeoutError)

    asyncio.run(run())
