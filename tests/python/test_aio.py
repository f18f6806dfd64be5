"""The client for asyncio: many calls at once, over HTTP and over one raw connection."""

from __future__ import annotations

import asyncio
import functools
import json
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import forking
import pytest
from functions import echo, sum
from scripted import Peer, Scripted, answering, http_reply, result, scripted

import ucall
from harness import eventually, in_asyncio
from ucall._client.datagrams import WINDOW
from ucall.aio import Client


def fail(code: int, message: str) -> None:
    raise ucall.RPCError(code, message)


def sleep(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


class Holding:
    """A function that returns when it is released, and blocks its server until then."""

    def __init__(self) -> None:
        self.began, self.released = threading.Event(), threading.Event()

    def hold(self) -> str:
        self.began.set()
        self.released.wait(60)
        return "released"


SCHEMES = ("http", "tcp")


@pytest.fixture
def holding() -> Holding:
    return Holding()


@pytest.fixture
def server(serve_once: Callable[..., ucall.Server], holding: Holding) -> ucall.Server:
    server = serve_once(sum, echo, fail, sleep, holding.hold)
    server.add(sum, name="math.sum")
    return server


@asynccontextmanager
async def connected(server: ucall.Server, scheme: str, **options: Any) -> AsyncIterator[Client]:
    async with Client(f"{scheme}://127.0.0.1", server.port, **options) as client:
        yield client


@pytest.mark.parametrize("scheme", SCHEMES)
def test_calls_within_uvloop(server: ucall.Server, scheme: str) -> None:
    uvloop = pytest.importorskip("uvloop")

    async def call() -> list[Any]:
        async with connected(server, scheme) as client:
            responses = await asyncio.gather(*(client.sum(n, 1) for n in range(20)))
            return [response.json for response in responses]

    assert uvloop.run(call()) == list(range(1, 21))


@pytest.mark.parametrize(("scheme", "connections"), [("http", 20), ("tcp", 1), ("ws", 1)])
@in_asyncio
async def test_many_calls_at_once(server: ucall.Server, scheme: str, connections: int) -> None:
    async with connected(server, scheme, max_connections=20) as client:
        for _ in range(2):
            responses = await asyncio.gather(*(client.echo(number) for number in range(200)))
            assert [response.json for response in responses] == list(range(200))
        batches = [client.batch() for _ in range(10)]
        for number, batch in enumerate(batches):
            batch.echo(number)
            batch.echo("x")
        sent = await asyncio.gather(*(batch.send() for batch in batches))
        assert [responses[0].json for responses in sent] == list(range(10))
    assert server.stats()["accepted"] <= connections


@pytest.mark.parametrize("scheme", SCHEMES)
@in_asyncio
async def test_a_cancelled_call_affects_no_other(
    server: ucall.Server, holding: Holding, scheme: str
) -> None:
    async with connected(server, scheme) as client:
        await client.sum(1, 2)
        tasks = [asyncio.create_task(client.hold()) for _ in range(4)]
        await asyncio.to_thread(holding.began.wait, 60)
        tasks[0].cancel()
        tasks[2].cancel()
        holding.released.set()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(outcome).__name__ for outcome in outcomes] == [
            "CancelledError",
            "Response",
            "CancelledError",
            "Response",
        ]
        for number in range(10):
            assert (await client.echo(number)).json == number


@in_asyncio
async def test_a_cancelled_call_over_http_closes_its_connection() -> None:
    has_come = threading.Event()

    def silent(peer: Peer) -> None:
        peer.http_request()
        has_come.set()
        peer.http_request()

    with scripted(silent) as server:
        client = Client(port=server.port)
        call = asyncio.create_task(client.echo(1))
        await asyncio.to_thread(has_come.wait, 60)
        call.cancel()
        await asyncio.wait([call])
        assert await asyncio.to_thread(eventually, lambda: server.ended == 1)


@pytest.mark.parametrize("scheme", SCHEMES)
@in_asyncio
async def test_a_timed_out_call_affects_no_other(
    server: ucall.Server, holding: Holding, scheme: str
) -> None:
    async with connected(server, scheme) as client:
        slow = asyncio.create_task(client.hold())
        await asyncio.to_thread(holding.began.wait, 60)
        with pytest.raises(ucall.TimeoutError, match=r"timed out after 0\.05 s") as caught:
            await client.with_options(timeout=0.05).echo("late")
        assert caught.value.may_have_run
        holding.released.set()
        assert (await slow).json == "released"
        assert (await client.echo(1)).json == 1


@pytest.mark.parametrize("scheme", SCHEMES)
def test_another_loop_opens_new_connections(server: ucall.Server, scheme: str) -> None:
    client = Client(f"{scheme}://127.0.0.1", server.port)

    async def call() -> Any:
        response = await client.sum(1, 2)
        await client.close()
        return response.json

    assert [asyncio.run(call()) for _ in range(3)] == [3, 3, 3]


class Gate:
    """A call that waits until another one opens the gate."""

    def __init__(self) -> None:
        self._opened = asyncio.Event()

    async def wait(self) -> str:
        await self._opened.wait()
        return "opened"

    async def open(self) -> None:
        self._opened.set()


@pytest.mark.parametrize("scheme", ["http", "tcp", "ws"])
def test_a_forked_child_leaves_its_parent_the_connections(
    serve_once: Callable[..., ucall.Server], scheme: str
) -> None:
    gate = Gate()
    server = serve_once(echo, gate.wait, gate.open)
    source = f"""
import asyncio, os
from ucall.aio import Client

client = Client("{scheme}://127.0.0.1", {server.port}, timeout=20)

async def call_in_child():
    assert (await client.echo("child")).json == "child"
    await client.close()

async def main():
    # Over HTTP the second call opens a connection, which is idle at the fork.
    await client.echo("parent")
    waiting = asyncio.create_task(client.wait())
    await client.echo("parent")
    child = os.fork()
    if child == 0:
        try:
            asyncio.run(call_in_child())
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    await client.open()
    print((await waiting).json)

asyncio.run(main())
"""
    done = forking.run([sys.executable, "-c", source])
    assert done.stdout == b"opened\n", done.stderr


@in_asyncio
async def test_replies_may_be_out_of_order() -> None:
    def backwards(peer: Peer) -> None:
        requests = [json.loads(peer.raw_request()) for _ in range(5)]
        for request in reversed(requests):
            peer.send(result(request["params"], request["id"]))

    with scripted(backwards) as server:
        client = Client("tcp://127.0.0.1", server.port)
        responses = await asyncio.gather(*(client.echo(number) for number in range(5)))
        assert [response.json for response in responses] == [[0], [1], [2], [3], [4]]
        await client.close()


@in_asyncio
async def test_two_calls_of_one_id_over_one_connection() -> None:
    has_come, may_reply = threading.Event(), threading.Event()

    def late(peer: Peer) -> None:
        peer.raw_request()
        has_come.set()
        may_reply.wait(60)
        peer.send(result(1, "x"))
        peer.raw_request()
        peer.send(result(2, "x"))

    with scripted(late) as server:
        client = Client("tcp://127.0.0.1", server.port).with_options(id="x")
        first = asyncio.create_task(client.echo(1))
        await asyncio.to_thread(has_come.wait, 60)
        with pytest.raises(ValueError, match="has the id 'x'"):
            await client.echo(2)
        may_reply.set()
        assert (await first).json == 1
        assert (await client.echo(2)).json == 2
        await client.close()


@in_asyncio
async def test_a_call_fails_because_its_server_has_closed_the_connection() -> None:
    def close(peer: Peer) -> None:
        peer.raw_request()
        has_come.set()
        may_end.wait(60)
        peer.end()

    def answer(peer: Peer) -> None:
        peer.send(result(2, json.loads(peer.raw_request())["id"]))

    has_come, may_end = threading.Event(), threading.Event()
    with scripted(close, answer) as server:
        client = Client("tcp://127.0.0.1", server.port)
        first = asyncio.create_task(client.echo(1))
        await asyncio.to_thread(has_come.wait, 60)
        may_end.set()
        # The next call finds the end of the connection before asyncio does.
        assert eventually(lambda: server.ended == 1)
        assert (await client.echo(2)).json == 2
        with pytest.raises(ucall.ConnectionError, match="the server closed the connection"):
            await first
        await client.close()


@in_asyncio
async def test_no_call_is_sent_after_a_notice_of_a_drain() -> None:
    def drain(peer: Peer) -> None:
        peer.send(result(1, json.loads(peer.raw_request())["id"]))
        has_reply.wait(60)
        peer.send(b'{"jsonrpc":"2.0","method":"$/drain"}\n')
        peer.wait_delivered()
        is_draining.set()
        peer.more()

    def answer(peer: Peer) -> None:
        peer.send(result(2, json.loads(peer.raw_request())["id"]))

    has_reply, is_draining = threading.Event(), threading.Event()
    with scripted(drain, answer) as server:
        client = Client("tcp://127.0.0.1", server.port)
        assert (await client.echo(1)).json == 1
        has_reply.set()
        is_draining.wait(60)  # The loop is blocked, so that the next call receives the notice.
        assert (await client.echo(2)).json == 2
        await client.close()


@in_asyncio
async def test_a_broken_connection_fails_its_calls_once() -> None:
    seen = []

    def dropping(peer: Peer) -> None:
        for _ in range(3):
            seen.append(peer.raw_request())

    with scripted(dropping) as server:
        client = Client("tcp://127.0.0.1", server.port)
        calls = (client.echo(number) for number in range(3))
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [ucall.ConnectionError] * 3
        assert len(set(map(id, outcomes))) == 3
        assert (len(seen), server.accepted) == (3, 1)
        await client.close()


@in_asyncio
async def test_an_error_without_an_id_fails_the_only_call_or_all() -> None:
    refusal = b'{"jsonrpc":"2.0","error":{"code":-32600,"message":"bad"},"id":null}\n'

    def refusing(peer: Peer, calls: int) -> None:
        for _ in range(calls):
            peer.raw_request()
        peer.send(refusal)
        peer.raw_request()

    scripts = [functools.partial(refusing, calls=calls) for calls in (1, 2)]
    with scripted(*scripts) as server:
        client = Client("tcp://127.0.0.1", server.port)
        with pytest.raises(ucall.RPCError, match="bad"):
            (await client.echo(1)).raise_for_status()
        await client.close()
        outcomes = await asyncio.gather(client.echo(1), client.echo(2), return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [ucall.ConnectionError] * 2
        await client.close()


class SlowServer:
    """Reads when the test allows it. What a client may send before that, the kernel holds."""

    def __init__(self) -> None:
        self.may_read, self.received = threading.Event(), 0

    def script(self, peer: Peer) -> None:
        self.may_read.wait(60)
        while (request := json.loads(peer.raw_request()))["method"] == "log":
            self.received += 1
        peer.send(result("read", request["id"]))
        peer.raw_request()

    def uri(self, server: Scripted) -> str:
        return f"tcp://127.0.0.1:{server.port}"


#: More than the kernel holds for a connection, in messages of a megabyte.
MANY = 32


async def notify(client: Client, sent: list[int]) -> None:
    for number in range(MANY):
        await client.notify("log", "x" * 1_000_000)
        sent.append(number)


@in_asyncio
async def test_notifications_wait_for_a_server_that_does_not_read() -> None:
    slow, sent = SlowServer(), list[int]()
    with scripted(slow.script) as server:
        async with Client(slow.uri(server), timeout=60).with_options(id=1) as client:
            notifying = asyncio.create_task(notify(client, sent))
            while not sent:
                await asyncio.sleep(0)
            assert len(sent) < MANY
            with pytest.raises(ucall.TimeoutError) as caught:
                await client.with_options(timeout=0.2).notify("log", "late")
            assert not caught.value.may_have_run
            late = asyncio.create_task(client.with_options(id="cancelled").echo())
            await asyncio.sleep(0)
            late.cancel()
            slow.may_read.set()
            await notifying
            assert (await client.echo()).json == "read"
    assert (len(sent), slow.received, server.accepted) == (MANY, MANY, 1)


@in_asyncio
async def test_a_stream_waits_for_a_server_that_does_not_read() -> None:
    slow = SlowServer()
    written: list[int] = []
    with scripted(slow.script) as server:
        async with Client(slow.uri(server), timeout=60).with_options(id=1) as client:
            notifying = asyncio.create_task(notify(client, []))
            while client._pool._connection is None or client._pool._connection.is_writable:
                await asyncio.sleep(0)
            connection = client._pool._connection
            written.append(connection._requests_sent)
            with pytest.raises(ucall.TimeoutError) as caught:
                stream = client.with_options(timeout=0.05, id=2).stream.generate()
                await stream._next_item()
            assert not caught.value.may_have_run
            written.append(connection._requests_sent)
            slow.may_read.set()
            await notifying
            assert (await client.echo()).json == "read"
    assert written[0] == written[1] < MANY


@in_asyncio
async def test_notifications_wait_for_a_server_that_sends_first() -> None:
    """It reads once its items are sent. The client receives them, though its program does not."""
    slow = SlowServer()
    value = {"token": 1, "value": "x" * 1_000_000}
    item = json.dumps({"jsonrpc": "2.0", "method": "$/progress", "params": value}).encode()

    def script(peer: Peer) -> None:
        peer.raw_request()
        peer.send(*[item + b"\n"] * MANY)
        slow.may_read.set()
        slow.script(peer)

    with scripted(script) as server:
        async with Client(slow.uri(server), timeout=60).with_options(id=1) as client:
            stream = client.stream.generate()
            assert await stream._next_item() is not None
            for _ in range(MANY):
                await client.notify("log", "x" * 1_000_000)
            assert (await client.with_options(id=2).echo()).json == "read"
    assert slow.received == MANY


@in_asyncio
async def test_what_waits_to_be_sent_fails_with_its_connection() -> None:
    slow = SlowServer()

    async def notify() -> None:
        for _ in range(MANY):
            await client.notify("log", "x" * 1_000_000)

    with scripted(lambda peer: slow.may_read.wait(60) and peer.reset()) as server:
        async with Client(slow.uri(server), timeout=60) as client:
            notifying = asyncio.create_task(notify())
            while not notifying.done() and client._pool._connection is None:
                await asyncio.sleep(0)
            slow.may_read.set()
            with pytest.raises(ucall.ConnectionError) as raised:
                await notifying
            assert not raised.value.may_have_run


@in_asyncio
async def test_connections_closed_while_idle_are_replaced() -> None:
    def once(peer: Peer) -> None:
        peer.http_request()
        peer.send(http_reply(result(1, "x")))

    with scripted(once) as peers:
        client = Client(port=peers.port).with_options(id="x")
        for number in range(5):
            assert (await client.echo(1)).json == 1
            assert peers.accepted == number + 1
            # The loop must not see the end before the next call, so it is blocked meanwhile.
            assert eventually(lambda number=number: peers.ended == number + 1)  # type: ignore[misc]
        await client.close()


@in_asyncio
async def test_calls_past_max_connections_wait() -> None:
    with scripted(answering()) as server:
        client = Client(port=server.port, max_connections=2)
        responses = await asyncio.gather(*(client.echo(number) for number in range(50)))
        assert [response.json for response in responses] == [[number] for number in range(50)]
        assert server.accepted <= 2
        await client.close()


@pytest.mark.parametrize("scheme", ["http", "udp"])
@in_asyncio
async def test_a_call_that_waits_for_others_until_its_time_is_over_has_not_run(
    scheme: str,
) -> None:
    kind = socket.SOCK_STREAM if scheme == "http" else socket.SOCK_DGRAM
    with socket.socket(socket.AF_INET, kind) as silent:
        silent.bind(("127.0.0.1", 0))
        if scheme == "http":
            silent.listen()
        uri = f"{scheme}://127.0.0.1:{silent.getsockname()[1]}"
        options = {"max_connections": WINDOW} if scheme == "http" else {}
        async with Client(uri, **options, timeout=60) as client:
            others = [asyncio.create_task(client.echo(number)) for number in range(WINDOW)]
            await asyncio.sleep(0)
            with pytest.raises(ucall.TimeoutError) as caught:
                await client.with_options(timeout=0.05).echo("late")
            assert not caught.value.may_have_run
            if scheme == "udp":  # Notifications do not wait.
                with pytest.raises(ucall.TimeoutError) as caught:
                    async with client.with_options(timeout=0.05).batch() as batch:
                        batch.notify("log", "sent")
                        batch.echo("late")
                assert caught.value.may_have_run
            for other in others:
                other.cancel()
            await asyncio.gather(*others, return_exceptions=True)


@in_asyncio
async def test_a_hundred_connections_are_the_default() -> None:
    all_called, may_reply = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()
    barrier = threading.Barrier(100, lambda: loop.call_soon_threadsafe(all_called.set))

    def answer(peer: Peer) -> None:
        request = json.loads(peer.http_request())
        if request["method"] == "echo":
            barrier.wait(60)
            may_reply.wait(60)
        peer.send(http_reply(result(None, request["id"])))

    with scripted(answer) as server:
        client = Client(port=server.port)
        calls = [asyncio.ensure_future(client.echo(number)) for number in range(200)]
        await all_called.wait()
        # Connections are accepted in their order: before this one all that the calls have begun.
        async with Client(port=server.port) as other:
            await other.last()
        assert server.accepted == 101
        may_reply.set()
        await client.close()
        for call in calls:
            call.cancel()


def test_max_connections_must_be_positive() -> None:
    with pytest.raises(ValueError, match="max_connections"):
        Client(max_connections=0)
