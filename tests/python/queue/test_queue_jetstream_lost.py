"""Streams and consumers that are lost while queues over JetStream use them."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import shutil
from pathlib import Path
from typing import Any

import nats
import nats.errors
import nats.js.errors
import pytest
from brokers import NatsServer, connected, jetstream
from stored_queues import Queues, stored

from harness import eventually
from ucall import queue as nq
from ucall.queue.jetstream.pulls import First, Idle

WAIT_S = 60


def delete(queues: Queues, what: str) -> None:
    """What an operator may do, or another program of the same topic."""
    name = queues.topic.replace(".", "=2E")

    async def main(connection: Any) -> None:
        stream = connection.jetstream()
        config = (await stream.stream_info(name)).config
        if what == "consumer":
            # It is made again at once, which the broker may take for a failure.
            with contextlib.suppress(nats.js.errors.ServerError):
                await stream.delete_consumer(name, "ucall")
            return
        await stream.delete_stream(name)
        if what == "replaced":
            await stream.add_stream(config)

    connected(queues.broker.url, main)


def look(queue: nq.StoredQueue) -> None:
    """Does not wait for the next look at the stream."""
    assert queue._work._loop is not None
    queue._work._loop.call_soon_threadsafe(queue._work._suspicious.set)


@pytest.mark.parametrize("what", ["stream", "consumer", "replaced"])
def test_what_is_deleted_at_the_broker_is_made_again(
    queues: Queues, what: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A replaced one is looked for at once below. Others are found without that.
    monkeypatch.setattr(
        "ucall.queue.jetstream.session._LOOK_S", 600.0 if what == "replaced" else 0.05
    )
    client, server = queues.client(), queues.server("explicit")
    events: dict[nq.StoredQueue, list[nq.ConnectionEvent]] = {client: [], server: []}
    for side in (client, server):
        assert eventually(lambda side=side: side.state == "connected")  # type: ignore[misc]
        side.on_connection(events[side].append)
    for number in range(3):
        client.put(number).result(WAIT_S)
    held = server.get(timeout=WAIT_S)
    for side in (client, server):
        # It knows what is stored.
        look(side)
        assert eventually(lambda side=side: side._work._stored == 3)  # type: ignore[misc]
    delete(queues, what)
    is_new = what != "consumer"
    for side in (client, server) if is_new else (server,):
        look(side)
        assert eventually(lambda side=side: len(events[side]) == 2)  # type: ignore[misc]
        assert [it.kind for it in events[side]] == ["lost", "started" if is_new else "resumed"]
        assert side.state == "connected"
    client.put(3).result(WAIT_S)
    if is_new:
        assert "that it had are lost (at the last look: 3)" in caplog.text
        first = server.get(timeout=WAIT_S)
        assert (first.data, first.redelivered) == (3, False)
        # It acknowledges no message that has its number now.
        assert server._receiver()._deliveries.held() == [first._reply]  # type: ignore[attr-defined]
        held.ack()
        assert stored(queues) == 1
        first.ack()
    else:
        assert "messages that were not acknowledged are delivered again" in caplog.text
        again = [server.get(timeout=WAIT_S) for _ in range(4)]
        assert [it.data for it in again] == [0, 1, 2, 3]
        assert [it.redelivered for it in again[:3]] == [True] * 3
        for message in again:
            message.ack()
    assert eventually(lambda: stored(queues) == 0)


def test_a_put_and_a_get_that_waits_notice_a_deletion_at_once(
    queues: Queues, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without a look.
    monkeypatch.setattr("ucall.queue.jetstream.session._LOOK_S", 10.0 * WAIT_S)
    client = queues.client()
    client.put(0).result(WAIT_S)
    delete(queues, "stream")
    client.put(1).result(WAIT_S)
    server = queues.server()
    assert server.get(timeout=WAIT_S).data == 1
    with concurrent.futures.ThreadPoolExecutor() as threads:
        waiting = threads.submit(server.get, timeout=WAIT_S)
        assert eventually(lambda: isinstance(server._receiver()._pulls.state, First))
        delete(queues, "consumer")
        assert eventually(lambda: "delivered again" in caplog.text)
        client.put(2).result(WAIT_S)
        assert waiting.result(WAIT_S).data == 2


def test_nothing_is_pulled_while_the_stream_is_made_again(
    queues: Queues, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, server = queues.client(), queues.server("explicit")
    assert eventually(lambda: server.state == "connected")
    receiver, states = server._receiver(), []
    join_group = receiver._join_group

    async def join_group_slowly() -> None:
        await join_group()
        while not receiver._waiting:
            await asyncio.sleep(0)
        for _ in range(3):
            receiver._wanted.set()
            await receiver._find_group()
        states.append(receiver._pulls.state)

    monkeypatch.setattr(receiver, "_join_group", join_group_slowly)
    delete(queues, "stream")
    look(server)
    assert eventually(lambda: not receiver._is_ready)
    with concurrent.futures.ThreadPoolExecutor() as threads:
        waiting = threads.submit(server.get, timeout=WAIT_S)
        assert eventually(lambda: states)
        client.put("new").result(WAIT_S)
        message = waiting.result(WAIT_S)
    assert states == [Idle()]
    message.ack()
    assert eventually(lambda: stored(queues) == 0)


def test_a_group_that_does_not_answer_is_made_again(
    queues: Queues, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As that of a stream which another connection was making at the same time."""
    request, asked = nats.NATS.request, []
    name = queues.topic.replace(".", "=2E")

    async def made_at(connection: Any) -> Any:
        return (await connection.jetstream().consumer_info(name, "ucall")).created

    async def request_once_in_vain(self: Any, subject: str, *given: Any, **named: Any) -> Any:
        if ".MSG.NEXT." in subject and not asked:
            asked.append(await made_at(self))
            raise nats.errors.TimeoutError
        return await request(self, subject, *given, **named)

    monkeypatch.setattr(nats.NATS, "request", request_once_in_vain)
    server = queues.server()
    assert eventually(lambda: server.state == "connected")
    assert asked and asked != [connected(queues.broker.url, made_at)]


def test_a_broker_without_its_disk_gets_a_stream_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "node"
    with NatsServer(*jetstream(folder)) as broker, contextlib.closing(Queues(broker)) as queues:
        client, server = queues.client(), queues.server()
        client.put("lost").result(WAIT_S)
        broker.kill()
        shutil.rmtree(folder)
        broker.start()
        client.put("stored").result(WAIT_S)
        assert server.get(timeout=WAIT_S).data == "stored"
        # The server may have made the stream again before the client has missed it.
        assert eventually(lambda: "are lost (at the last look: 1)" in caplog.text)
        queues.close()


def test_lost_puts_are_counted_in_the_log(queues: Queues, caplog: pytest.LogCaptureFixture) -> None:
    queues.broker = NatsServer()
    client = queues.client()
    futures = [client.put(number) for number in range(3)]
    client.close(0)
    assert "closed: 3 messages were not stored" in caplog.text
    error = futures[0].exception(WAIT_S)
    assert isinstance(error, nq.ConnectionError) and not error.may_have_arrived
