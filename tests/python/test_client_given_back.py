"""What clients give back: connections, threads, tasks and calls, when they close or go on."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any

import pytest
from timing import Clock

import ucall
from ucall import _core, aio
from ucall._client import blocking
from ucall._client.deadline import Deadline
from ucall._client.sockets import not_sent
from ucall.client import Client

KINDS = pytest.mark.parametrize("kind", ["threads", "tasks"])
SERVERS = ["tcp://127.0.0.1:1", "tcp://127.0.0.2:1"]


class Pool:
    """The connections to one server, which notes what happens to them."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def close(self) -> None:
        self.events.append("close")

    def close_idle(self) -> None:
        self.events.append("close_idle")

    def exchange(self, request: _core.Request, ids: Any, timeout: float | None) -> _core.Reply:
        self.events.append(json.loads(request.document)["method"])
        reader = _core.ReplyReader(http=False, reply_bytes_max=1000)
        text = {"jsonrpc": "2.0", "id": next(iter(ids)), "result": 1}
        [reply] = reader.feed(json.dumps(text).encode() + b"\n")
        assert isinstance(reply, _core.Reply)
        return reply


class AsyncPool(Pool):
    """The same in asyncio."""

    async def exchange(  # type: ignore[override]
        self, request: _core.Request, ids: Any, timeout: float | None
    ) -> _core.Reply:
        return super().exchange(request, ids, timeout)


def run(kind: str, work: Any, uris: Any, **options: Any) -> None:
    """Runs a function with a client; one of asyncio within its loop."""
    if kind == "threads":
        result = work(Client(uris, **options))
        if isinstance(result, Coroutine):
            blocking.run(result)
        return

    async def main() -> None:
        result = work(aio.Client(uris, **options))
        if result is not None:
            await result

    asyncio.run(main())


def close(client: Any) -> None:
    """Closes a client, also one of asyncio, whose method does not wait."""
    client._pool.close()


@KINDS
@pytest.mark.parametrize("scheme", ["tcp", "ws"])
def test_the_shared_connection_is_closed(kind: str, scheme: str) -> None:
    made = Pool()

    def work(client: Any) -> None:
        if kind == "threads":
            client._pool._channel = made
        else:
            made.fail_calls, made.cancel = list, list  # type: ignore[attr-defined]
            client._pool._connection = made
        close(client)

    run(kind, work, f"{scheme}://127.0.0.1:1")
    assert made.events == ["close"]


@KINDS
def test_what_repeats_calls_over_tcp_is_closed(kind: str) -> None:
    made = Pool()

    def work(client: Any) -> None:
        client._pool._tcp = made
        close(client)

    run(kind, work, "udp://127.0.0.1:1", tcp_fallback=True)
    assert made.events == ["close"]


@KINDS
def test_the_connections_to_all_servers_and_the_broker_are_closed(kind: str) -> None:
    made = [Pool(), Pool(), Pool()]

    def work(client: Any) -> None:
        servers = client._pool._servers
        for member, pool in zip(servers.balancer.members, made, strict=False):
            member.pool = pool
        servers.group = made[2]
        close(client)

    run(kind, work, SERVERS)
    assert [it.events for it in made] == [["close"]] * 3


def test_probes_in_asyncio_end() -> None:
    async def main() -> None:
        client = aio.Client(SERVERS)
        servers = client._pool._servers
        began = asyncio.Event()

        async def probe() -> None:
            began.set()
            await asyncio.get_running_loop().create_future()

        servers.start(probe, "probe")
        await began.wait()
        servers.balancer.members[0].is_probing = True
        [task] = servers._tasks
        close(client)
        done, _ = await asyncio.wait({task}, timeout=60)
        assert done and task.cancelled() and not servers.balancer.members[0].is_probing

    asyncio.run(main())


@KINDS
def test_the_idle_connections_to_removed_addresses_are_closed(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    made: list[Pool] = []
    numbers = [1, 2]

    def resolve(*_: object, **__: object) -> list[Any]:
        return [(socket.AF_INET, 1, 6, "", (f"127.0.0.{number}", 1)) for number in numbers]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)

    def work(client: Any) -> Any:
        servers = client._pool._servers
        servers.balancer._make_pool = lambda _: made.append(Pool()) or made[-1]

        async def resolve_twice() -> None:
            await servers.resolve()
            for member in reversed(servers.balancer.members):
                client._pool._writer_of(member)
            del numbers[0]
            await servers.resolve()
            [left] = servers.balancer.members
            client._pool._writer_of(left)
            assert [*client._pool._writers] == [left]

        return resolve_twice()

    run(kind, work, "dns+tcp://server.test:1")
    assert [it.events for it in made] == [["close_idle"], []]


@KINDS
@pytest.mark.parametrize("is_up", [False, True])
def test_a_probe_of_a_server_that_was_down_opens_a_connection(kind: str, is_up: bool) -> None:
    """One that is idle may be to a process that has ended."""
    made = Pool() if kind == "threads" else AsyncPool()

    def work(client: Any) -> Any:
        pool = client._pool
        member = pool._balancer.members[0]
        member.pool, member.is_up = made, is_up
        return pool._probe(member)

    run(kind, work, SERVERS)
    assert made.events == ([] if is_up else ["close_idle"]) + ["$/probe"]


@KINDS
def test_a_probe_that_fails_ends_and_leaves_the_server_down(kind: str) -> None:
    members: list[Any] = []

    def refuse(*_: object) -> None:
        raise OSError

    def work(client: Any) -> Any:
        members.extend(client._pool._balancer.members)
        members[0].pool = SimpleNamespace(exchange=refuse, close_idle=lambda: None)
        members[0].is_up, members[0].is_probing = False, True
        return client._pool._probe(members[0])

    run(kind, work, SERVERS)
    assert not members[0].is_probing and not members[0].is_up


@KINDS
def test_a_call_begins_the_probes_that_are_due(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    names = ("failover", "balanced", "aio_balanced")
    clock = Clock(monkeypatch, *(f"ucall._client.{name}" for name in names))
    begun: list[str] = []

    async def work(client: Any) -> None:
        balancer = client._pool._balancer
        client._pool._servers.start = lambda _, name: begun.append(name)
        for member in balancer.members:
            member.pool = Pool() if kind == "threads" else AsyncPool()
        balancer.fail(balancer.members[0], clock.now)
        await blocking.result_of(client.call("get"))
        assert begun == []
        clock.pass_by(60)
        await blocking.result_of(client.call("get"))
        assert set(begun) == {"ucall-client-probe"}

    run(kind, work, SERVERS)


@KINDS
def test_a_call_earns_a_tenth_of_another_attempt(kind: str) -> None:
    made = Pool() if kind == "threads" else AsyncPool()
    budgets: list[Any] = []

    def work(client: Any) -> Any:
        for member in client._pool._balancer.members:
            member.pool = made
        budget = client._pool._balancer.budget
        budgets.append(budget)
        budget.saved = 0.0
        return client.call("get")

    run(kind, work, SERVERS)
    assert budgets[0].saved == pytest.approx(0.1)


def test_a_stream_that_is_closed_while_it_waits_is_not_begun_again() -> None:
    begun: list[object] = []

    async def begin(_: Deadline) -> None:
        begun.append(None)

    async def closed(_: Deadline) -> None:
        stream.close(has_ended=False)
        raise not_sent(ucall.ConnectionError("closed"))

    source = SimpleNamespace(begin=begin, next=closed, close=lambda **_: None)
    with Client(SERVERS) as client:
        stream: Any = client._pool.source(lambda *_: source)
        blocking.run(stream.begin(Deadline(5)))
        with pytest.raises(ucall.ConnectionError, match="closed"):
            blocking.run(stream.next(Deadline(5)))
    assert len(begun) == 1


def test_the_calls_of_an_earlier_loop_do_not_count() -> None:
    client = aio.Client(SERVERS)
    servers = client._pool._servers

    async def use() -> None:
        servers.use_running_loop()

    asyncio.run(use())
    servers.balancer.members[0].running.append(None)
    asyncio.run(use())
    assert servers.balancer.members[0].running == []


def test_sixteen_sockets_of_udp_are_kept() -> None:
    with Client("udp://127.0.0.1:1") as client:
        made = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(17)]
        for it in made:
            client._pool._return(it)
        assert [it.fileno() >= 0 for it in made] == [True] * 16 + [False]
    assert all(it.fileno() < 0 for it in made)
