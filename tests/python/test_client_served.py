"""Streams of our clients from our servers, over each transport."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from both_clients import NewClient
from certificates import Authority, Files, authority, files
from serving import Serve

import ucall
from harness import HOST, eventually, in_asyncio
from ucall import aio
from ucall.client import Client

__all__ = ["authority", "files"]

SCHEMES = ["http", "tcp", "ws"]
#: Of a stream that arrives in several reads.
MANY = 1000


class Functions:
    """Functions of a server, which count the calls that hang or have ended."""

    def __init__(self) -> None:
        self.hung = self.ended = 0

    def count(self, n: int) -> Iterator[int]:
        yield from range(n)
        return "end"

    async def count_async(self, n: int) -> AsyncIterator[int]:
        for number in range(n):
            await asyncio.sleep(0)
            yield number

    def endless(self) -> Iterator[str]:
        try:
            while True:
                yield "x" * 1000
        finally:
            self.ended += 1

    async def hang(self) -> None:
        self.hung += 1
        try:
            await asyncio.sleep(3600)
        finally:
            self.ended += 1

    def fail(self) -> Iterator[int]:
        yield 1
        raise ucall.RPCError(7, "out of paper")

    def serve(self, serve: Serve, **options: Any) -> ucall.Server:
        functions = self.count, self.count_async, self.endless, self.hang, self.fail
        return serve(*functions, **options)


@pytest.fixture(params=SCHEMES)
def scheme(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def test_streams_and_their_ends(serve: Serve, scheme: str, new_client: NewClient) -> None:
    functions = Functions()
    server = functions.serve(serve)
    with new_client(f"{scheme}://{HOST}:{server.port}") as client:
        stream = client.stream.count(3)
        assert (list(stream), stream.result) == ([0, 1, 2], "end")
        stream = client.stream.count_async(MANY)
        assert (list(stream), stream.result) == ([*range(MANY)], None)
        assert client.count(3).json == [0, 1, 2], "collected"
        items: list[int] = []
        with pytest.raises(ucall.RPCError, match="out of paper"):
            client.with_progress(items.append).fail().raise_for_status()
        assert items == [1]
        with pytest.raises(ucall.RPCError, match="Method not found"):
            list(client.stream.absent())
        for _ in client.stream.endless():
            break
        assert eventually(lambda: functions.ended == 1)
        assert client.count(1).json == [0]


@in_asyncio
async def test_tasks_share_a_client(serve: Serve, scheme: str) -> None:
    functions = Functions()
    server = functions.serve(serve)

    async def numbers(client: aio.Client, n: int) -> list[Any]:
        return [number async for number in client.stream.count_async(n)]

    async with aio.Client(f"{scheme}://{HOST}:{server.port}") as client:
        assert await asyncio.gather(*(numbers(client, n) for n in range(50))) == [
            [*range(n)] for n in range(50)
        ]
        task = asyncio.ensure_future(numbers(client, 1 << 40))
        await asyncio.sleep(0)
        task.cancel()
        assert (await client.count(1)).json == [0]


def test_a_late_or_cancelled_call_is_cancelled_at_the_server(serve: Serve) -> None:
    functions = Functions()
    server = functions.serve(serve)
    with Client(f"ws://{HOST}:{server.port}") as client:
        with pytest.raises(ucall.TimeoutError):
            client.with_options(timeout=0.1).hang()
        assert eventually(lambda: functions.ended == 1)

    async def run(scheme: str) -> None:
        before = functions.ended
        async with aio.Client(f"{scheme}://{HOST}:{server.port}") as client:
            with pytest.raises(ucall.TimeoutError):
                await client.with_options(timeout=0.1).hang()
            hanging = asyncio.ensure_future(client.hang())
            assert await asyncio.to_thread(eventually, lambda: functions.hung == before + 2)
            hanging.cancel()
            # Before the end of the connection, which cancels its calls, too.
            assert await asyncio.to_thread(eventually, lambda: functions.ended == before + 2)
            assert (await client.count(1)).json == [0]

    asyncio.run(run("ws"))
    asyncio.run(run("tcp"))


def test_a_slow_reader_receives_no_more_than_its_limit(serve: Serve, scheme: str) -> None:
    server = Functions().serve(serve)
    uri = f"{scheme}://{HOST}:{server.port}"

    async def read() -> None:
        async with aio.Client(uri, max_waiting_bytes=524_288) as client:
            stream = client.stream.endless()
            items = aiter(stream)
            await anext(items)
            connection = stream._source._connection  # type: ignore[union-attr]
            while connection._transport.is_reading():
                await asyncio.sleep(0.001)
            assert [len(await anext(items)) for _ in range(1500)] == [1000] * 1500
            await stream.aclose()

    asyncio.run(read())
    with Client(uri, max_waiting_bytes=524_288) as client:
        for number, _ in enumerate(client.stream.endless()):
            if number == 1500:
                break


@pytest.mark.parametrize("scheme", ["https", "tcps", "wss"])
def test_streams_under_tls(
    serve_once: Serve, authority: Authority, files: Files, scheme: str, new_client: NewClient
) -> None:
    functions = Functions()
    secure = {"ssl_certfile": files.certificate, "ssl_keyfile": files.key}
    server = functions.serve(serve_once, **secure)
    uri, verify = f"{scheme}://localhost:{server.port}", str(authority.path)
    with new_client(uri, verify=verify) as client:
        assert list(client.stream.count(MANY)) == [*range(MANY)]
        for _ in client.stream.endless():
            break
        assert eventually(lambda: functions.ended == 1)


class Topics:
    """Functions of a server that sends messages."""

    server: ucall.Server

    def watch(self, ctx: ucall.Context, topic: str) -> None:
        ctx.subscribe(topic)

    async def tell(self, ctx: ucall.Context, text: str) -> None:
        ctx.notify("told", {"text": text})

    def publish(self, topic: str, n: int) -> None:
        for number in range(n):
            self.server.publish(topic, "news", [number])

    def serve(self, serve: Serve, **options: Any) -> ucall.Server:
        self.server = serve(self.watch, self.tell, self.publish, **options)
        return self.server


def news(n: int) -> list[Any]:
    return [("news", [number]) for number in range(n)]


@pytest.mark.parametrize("scheme", ["tcp", "ws"])
def test_subscriptions(serve: Serve, scheme: str, new_client: NewClient) -> None:
    server = Topics().serve(serve)
    uri = f"{scheme}://{HOST}:{server.port}"
    other = new_client(f"{HOST}:{server.port}")
    with other, new_client(uri) as client, client.subscribe() as messages:
        client.watch("a").raise_for_status()
        client.tell("hi")
        assert next(messages) == ("told", {"text": "hi"})
        other.publish("a", 100)
        assert [next(messages) for _ in range(100)] == news(100)
        client.publish("a", 3)
        assert [next(messages) for _ in range(3)] == news(3)


def test_a_subscription_outlives_its_server(serve_once: Serve, new_client: NewClient) -> None:
    first = Topics().serve(serve_once)
    port = first.port
    with new_client(f"ws://{HOST}:{port}", reconnect=True) as client:

        def watch() -> None:
            client.watch("a").raise_for_status()
            client.publish("a", 1)

        with client.subscribe(watch) as messages:
            assert next(messages) == ("news", [0])
            first.stop()
            functions = Topics()
            functions.server = second = ucall.Server(port=port)
            for function in functions.watch, functions.publish:
                second.add(function)
            second.start()
            assert next(messages) == ("news", [0])
            second.stop()


def test_a_draining_server_closes_the_connection(serve_once: Serve, new_client: NewClient) -> None:
    server = Topics().serve(serve_once)
    with new_client(f"ws://{HOST}:{server.port}") as client:

        def watch() -> None:
            client.watch("a").raise_for_status()
            client.publish("a", 1)

        messages = client.subscribe(watch)
        assert next(messages) == ("news", [0])
        server.stop()
        with pytest.raises(ucall.ConnectionError, match="the server closed the WebSocket: 1001"):
            next(messages)
