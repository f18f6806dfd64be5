"""Forked children: they leave their parent its connections, locks, threads, servers and queues."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from scripted import Peer, result, scripted
from serving import Serve
from test_client_streams import Transport, item

import ucall
from ucall import _forks, aio
from ucall._client.aio_connection import EventConnection
from ucall._client.deadline import Deadline
from ucall._client.hedge import Hedge
from ucall._nats import connection as nats_connection
from ucall._nats.group import Group
from ucall._server import serving_threads
from ucall.client import Client
from ucall.queue.core import future as queue_future
from ucall.queue.core.communicator import Communicator

SCHEMES = pytest.mark.parametrize("scheme", ["http", "tcp", "ws", "udp", "several"])
#: What ends a child that waits for a thread that it does not have.
CHILD_S = 15


def in_child(work: Callable[[], object]) -> Any:
    """The result of a function in a forked child."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(CHILD_S)
            os.write(writer, json.dumps(work()).encode())
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    with open(reader, "rb") as pipe:
        text = pipe.read()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    return json.loads(text)


@contextmanager
def held(lock: Any) -> Iterator[None]:
    """A lock that another thread holds, which a child does not have."""
    is_held, released = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            is_held.set()
            released.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    assert is_held.wait(60)
    try:
        yield
    finally:
        released.set()
        thread.join()


def peer(ctx: ucall.Context) -> list[object]:
    """The address of the client, by which servers tell connections apart."""
    assert isinstance(ctx.peer, tuple)
    return [*ctx.peer]


def uri(server: ucall.Server, scheme: str) -> Any:
    if scheme == "several":
        return [f"tcp://127.0.0.1:{server.port}"]
    port = server.udp_port if scheme == "udp" else server.port
    return f"{scheme}://127.0.0.1:{port}"


@SCHEMES
def test_a_child_has_connections_of_its_own(serve_once: Serve, scheme: str) -> None:
    server = serve_once(peer, udp=True)
    with Client(uri(server, scheme), timeout=CHILD_S) as client:
        before = client.call("peer").json

        def call_and_close() -> object:
            found = client.call("peer").json
            client.close()
            return found

        assert in_child(call_and_close) != before
        assert client.call("peer").json == before


@pytest.mark.parametrize("scheme", ["http", "tcp", "ws", "udp"])
def test_a_child_has_connections_of_its_own_in_asyncio(serve_once: Serve, scheme: str) -> None:
    server = serve_once(peer, udp=True)

    async def run() -> None:
        async with aio.Client(uri(server, scheme), timeout=CHILD_S) as client:
            before = (await client.call("peer")).json

            async def call_and_close() -> object:
                found = (await client.call("peer")).json
                await client.close()
                return found

            def call_in_child() -> object:
                asyncio._set_running_loop(None)
                return asyncio.run(call_and_close())

            assert in_child(call_in_child) != before
            assert (await client.call("peer")).json == before

    asyncio.run(run())


def test_a_child_that_closes_a_client_leaves_its_parent_the_shared_connection(
    serve_once: Serve,
) -> None:
    server = serve_once(peer)
    with Client(uri(server, "tcp"), timeout=CHILD_S) as client:
        client._pool.channel(for_calls=True)
        before = client.call("peer").json
        link = client._pool._channel._connection

        def close() -> object:
            client.close()
            return [str(link.error), client._pool._channel._connection is None]

        error, is_dropped = in_child(close)
        assert "process that this one was forked from" in error and is_dropped
        assert client.call("peer").json == before


@pytest.mark.parametrize("name", ["pool", "channel", "turn", "socket", "servers"])
def test_a_child_waits_for_no_thread_of_its_parent(serve_once: Serve, name: str) -> None:
    server = serve_once(peer)
    scheme = "several" if name == "servers" else "tcp"
    with Client(uri(server, scheme), timeout=CHILD_S) as client, ExitStack() as stack:
        pool = client._pool
        if name == "servers":
            stack.enter_context(held(pool._servers.lock))
            # Its first call that fails needs the lock.
            work = lambda: client.with_options(timeout=1e-9).call("peer")  # noqa: E731
            raised: object = in_child(lambda: _name_of_error(work))
            assert raised == "TimeoutError"
            return
        channel = pool.channel(for_calls=True)
        client.call("peer")
        link = channel._connection
        locks = {
            "pool": pool._making,
            "channel": channel._opening,
            "turn": link._state,
            "socket": link._socket_lock,
        }
        stack.enter_context(held(locks[name]))

        def call_and_close() -> object:
            link.close()
            return client.call("peer").json

        assert in_child(call_and_close)


def _name_of_error(work: Callable[[], object]) -> str:
    try:
        work()
    except Exception as error:
        return type(error).__name__
    return ""


def test_a_child_counts_no_calls_of_its_parent() -> None:
    with Client(["127.0.0.1:1", "127.0.0.1:2"]) as client:
        balancer = client._pool._balancer
        for member in balancer.members:
            member.running.append(None)
            member.is_probing = True
        seen = in_child(lambda: [[len(it.running), it.is_probing] for it in balancer.members])
        assert seen == [[0, False]] * 2


def test_a_child_closes_a_stream_of_its_parent(serve_once: Serve) -> None:
    def items() -> Iterator[int]:
        yield from range(1000)

    server = serve_once(items)
    with Client(uri(server, "several"), timeout=CHILD_S) as client:
        stream = client.stream.items()
        items_left = iter(stream)
        assert next(items_left) == 0
        [member] = client._pool._balancer.members

        def close() -> list[int]:
            # A call of the child itself stays counted.
            member.running.append(None)
            stream.close()
            return [len(member.running)]

        assert in_child(close) == [1]
        assert len(member.running) == 1
        stream.close()
        assert len(member.running) == 0


def test_a_child_leaves_its_parent_a_stream_over_http() -> None:
    wire, has_ended = Transport("http"), threading.Event()

    def script(peer: Peer) -> None:
        id = wire.call(peer)["id"]
        wire.begin(peer)
        wire.send(peer, item("before", id))
        has_ended.wait(CHILD_S)
        wire.send(peer, item("after", id))
        wire.send(peer, result("end", id))
        wire.end(peer)

    with scripted(script) as server, Client(wire.uri(server), timeout=CHILD_S) as client:
        stream = client.stream.generate()
        items = iter(stream)
        assert next(items) == "before"

        def read_and_close() -> str:
            try:
                return f"an item: {next(items)}"
            except ucall.ConnectionError as error:
                return str(error)

        assert "process that this one was forked from" in in_child(read_and_close)
        has_ended.set()
        assert (list(items), stream.result) == (["after"], "end")


def test_a_child_reads_no_stream_of_its_parent_in_asyncio() -> None:
    async def run() -> None:
        connection = EventConnection(1000, 1 << 20)
        connection.abandon()
        with pytest.raises(ucall.ConnectionError, match="process that this one was forked from"):
            await connection.next(Deadline(CHILD_S))

    asyncio.run(run())


def test_a_child_hedges_with_threads_of_its_own() -> None:
    hedge = Hedge()
    assert hedge.submit(lambda: "parent").result(60) == "parent"
    # This thread is idle, so that an attempt would be left to it.
    threads = hedge._threads
    assert threads is not None and threads._idle.acquire(timeout=60)
    threads._idle.release()
    assert in_child(lambda: hedge.submit(lambda: "child").result(60)) == "child"
    hedge.close()


def test_a_child_has_no_running_server(serve_once: Serve) -> None:
    server = serve_once(peer)
    assert server._thread in serving_threads.running
    assert in_child(lambda: len(serving_threads.running)) == 0


def test_a_child_starts_a_thread_of_its_own_for_brokers() -> None:
    async def work() -> int:
        return os.getpid()

    assert nats_connection.start(work()).result(60) == os.getpid()
    with held(nats_connection._starting):
        assert in_child(lambda: nats_connection.start(work()).result(60) == os.getpid())


def test_a_child_leaves_its_parent_the_connection_to_a_broker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is closed on a loop, of which the child has only a copy."""
    closed = []
    monkeypatch.setattr("ucall._nats.group.start", closed.append)

    class Broker:
        def close(self) -> str:
            return "closed"

    with Client("nats://127.0.0.1:1/models") as client:
        group: Group = client._pool._servers.group

        def close() -> list[object]:
            group.close()
            return closed

        group._connection = Broker()
        assert in_child(close) == []
        assert group._connection is not None
        group.close()
        assert closed == ["closed"]


def test_a_child_calls_back_for_queues_without_its_parents_lock() -> None:
    with held(queue_future._lock):

        def take() -> bool:
            with queue_future._lock:
                return True

        assert in_child(take)


def test_a_child_has_no_open_queue() -> None:
    from ucall import queue as nq

    with nq.new("tcp", "server", nq.CommunicatorOptions(netloc=nq.NetworkLocation(port=0))) as it:
        assert it in Communicator._open

        def seen() -> list[object]:
            return [len(Communicator._open), len(Communicator._running), it._is_forked]

        assert in_child(seen) == [0, 0, True]


def test_a_child_forgets_the_rest_when_one_function_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    forgotten: list[int] = []

    def fail() -> None:
        raise ValueError

    functions = [lambda: forgotten.append(1), fail, lambda: forgotten.append(2)]
    monkeypatch.setattr(_forks, "_functions", functions)
    monkeypatch.setattr(_forks, "_owners", [])
    with pytest.raises(ValueError):
        _forks._run_all()
    assert sorted(forgotten) == [1, 2]
