"""The queues of asyncio."""

from __future__ import annotations

import asyncio
import gc

import pytest
from pairs import Pairs, free_location

from harness import eventually, in_asyncio
from ucall import queue as nq
from ucall.aio import queue as anq

WAIT_S = 60


@in_asyncio
async def test_put_and_get_are_awaited(pairs: Pairs) -> None:
    async with anq.Communicator(pairs.server(ack="taken")) as server:
        client = anq.Communicator(pairs.client(server._queue, ack="taken"))
        began = []
        server.on_start(began.append)
        puts = [client.put(number) for number in range(300)]
        got = [await server.get(timeout=WAIT_S) for _ in puts]
        assert [message.data for message in got] == list(range(300))
        await asyncio.wait_for(asyncio.gather(*puts), WAIT_S)
        waiting = [asyncio.create_task(client.get(timeout=WAIT_S)) for _ in range(3)]
        await asyncio.sleep(0.01)
        for number in range(3):
            await server.put(number)
        assert [(await it).data for it in waiting] == [0, 1, 2]
        assert began == [client.id]
        with pytest.raises(TimeoutError):
            await client.get(timeout=0.01)
        await client.close()
        with pytest.raises(ConnectionError):
            await client.get()
        with pytest.raises(ConnectionError):
            await client.put("late")


@in_asyncio
async def test_messages_are_acknowledged_in_any_order(pairs: Pairs) -> None:
    async with anq.Communicator(pairs.server(ack="explicit")) as server:
        client = anq.Communicator(pairs.client(server._queue, ack="explicit"))
        for putter, getter in ((client, server), (server, client)):
            puts = [putter.put(number) for number in range(100)]
            messages = [await getter.get(timeout=WAIT_S) for _ in puts]
            for message in messages[:0:-1]:
                message.ack()
            # Acknowledgements made before this `put` reach the other side before its message.
            told = getter.put("told")
            (await putter.get(timeout=WAIT_S)).ack()
            await asyncio.wait_for(told, WAIT_S)
            assert not any(put.done() for put in puts)
            messages[0].ack()
            await asyncio.wait_for(asyncio.gather(*puts), WAIT_S)
        await client.close()


@pytest.mark.parametrize("timeout", [None, WAIT_S])
@in_asyncio
async def test_a_message_of_a_get_that_was_cancelled_is_not_acknowledged(
    pairs: Pairs, timeout: float | None
) -> None:
    async with anq.Communicator(pairs.server()) as server:
        client = pairs.client(server._queue, ack="explicit")
        waiting = asyncio.create_task(server.get(timeout=timeout))
        await asyncio.sleep(0)
        future = client.put("x")
        # The message is assigned to a `get` whose task is cancelled before it runs.
        while server._gets:
            server._poll()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert not future.done()
        (await server.get(timeout=WAIT_S)).ack()
        await asyncio.wait_for(asyncio.wrap_future(future), WAIT_S)


@pytest.mark.parametrize("pairs", ["tcp"], indirect=True)
@in_asyncio
async def test_a_get_that_timed_out_is_not_kept(pairs: Pairs) -> None:
    async with anq.Communicator(pairs.server()) as server:
        waiting = asyncio.create_task(server.get())
        await asyncio.sleep(0)
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await server.get(timeout=0)
        assert len(server._gets) == 1
        pairs.client(server._queue).put("x")
        assert (await asyncio.wait_for(waiting, WAIT_S)).data == "x"


@pytest.mark.parametrize("pairs", ["tcp"], indirect=True)
@in_asyncio
async def test_a_full_queue_raises_in_asyncio(pairs: Pairs) -> None:
    unconnected = pairs.client(pairs.server(), ack="taken", full="block", queue_size=2_000)
    client = anq.Communicator(unconnected)
    first = client.put(b"x" * 1500)
    with pytest.raises(nq.FullError):
        client.put(b"x" * 1500)
    first.cancel()
    await client.close(0)


@pytest.mark.parametrize("pairs", ["tcp", "grpc"], indirect=True)
@in_asyncio
async def test_a_cancelled_close_closes_at_once(pairs: Pairs) -> None:
    unconnected = pairs.client(pairs.server(), netloc=free_location(), expire_s=WAIT_S)
    client = anq.Communicator(unconnected)
    put = client.put("x")
    closing = asyncio.create_task(client.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert client.state == "closed" and client._pipe is None
    with pytest.raises(ConnectionError, match="this side has closed"):
        await put


@pytest.mark.parametrize("pairs", ["tcp"], indirect=True)
@in_asyncio
async def test_a_raising_callback_delays_no_message(pairs: Pairs) -> None:
    told: list[str] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: told.append(repr(context["exception"])))
    async with anq.Communicator(pairs.server()) as server:
        began, ended = asyncio.Event(), asyncio.Event()
        server.on_start(lambda peer: {}[peer])
        server.on_start(lambda _: began.set())
        server.on_end(lambda _: ended.set())
        client = pairs.client(server._queue)
        client.put("x")
        assert (await server.get(timeout=WAIT_S)).data == "x"
        await asyncio.wait_for(began.wait(), WAIT_S)
        await asyncio.to_thread(client.close)
        await asyncio.wait_for(ended.wait(), WAIT_S)
    assert told == [f"KeyError({client.id!r})"]


@in_asyncio
async def test_lost_messages_are_one_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    complaints: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: complaints.append(context))
    client = anq.new(options=nq.CommunicatorOptions(netloc=free_location()))
    for number in range(100):
        client.put(number)
    await client.close(timeout=0)
    gc.collect()
    assert complaints == []
    assert eventually(lambda: "100 messages were not acknowledged" in caplog.text)
    assert caplog.text.count("not acknowledged") == 1


@in_asyncio
async def test_a_get_that_finds_a_message_reports_sessions_too(pairs: Pairs) -> None:
    server = anq.Communicator(pairs.server())
    began: asyncio.Queue[object] = asyncio.Queue()
    server.on_start(began.put_nowait)
    client = pairs.client(server._queue)
    client.put("message").result(WAIT_S)
    assert (await server.get(timeout=WAIT_S)).data == "message"
    assert await asyncio.wait_for(began.get(), WAIT_S) == client.id
    await server.close()


@in_asyncio
async def test_a_get_that_does_not_wait_returns_a_message_beside_one_that_waits(
    pairs: Pairs,
) -> None:
    async with anq.Communicator(pairs.server()) as server:
        other, client = pairs.client(server._queue), pairs.client(server._queue)
        for it in (other, client):
            await asyncio.wrap_future(it.put("here"))
            await server.get(timeout=WAIT_S)
        waiting = asyncio.create_task(server.get(other.id))
        await asyncio.sleep(0)
        await asyncio.wrap_future(client.put("x"))
        assert (await server.get(client.id, timeout=0)).data == "x"
        with pytest.raises(TimeoutError):
            await server.get(client.id, timeout=0)
        waiting.cancel()
        await asyncio.to_thread(other.close)
        await asyncio.to_thread(client.close)
