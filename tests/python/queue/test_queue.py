"""`put` and `get` between a server and its clients."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import uuid
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from pairs import Pairs, free_location

from harness import eventually, in_asyncio
from ucall import queue as nq

Pair = Callable[..., tuple[nq.Communicator, nq.Communicator]]
WAIT_S = 60


def test_objects_arrive_unchanged(pair: Pair) -> None:
    server, client = pair()
    objects: list[Any] = [
        None,
        b"",
        b"b" * 7,
        b"b" * 100_000,
        "text",
        "t" * 100_000,
        "\ud800",
        {"a": [1, 2.5, (True, None)], "b": b"x" * 200_000},
        {1, 2},
        bytearray(b"ab"),
        uuid.UUID(int=7),
        range(3),
        1 + 2j,
    ]
    for data in objects:
        client.put(data)
    got = [server.get(timeout=WAIT_S) for _ in objects]
    assert [message.data for message in got] == objects
    assert [type(message.data) for message in got] == [type(data) for data in objects]
    assert {message.peer for message in got} == {client.id}


@pytest.mark.parametrize("count", [0, 5, 20_000, 200_000])
def test_arrays_arrive_in_their_own_memory(pairs: Pairs, count: int) -> None:
    server = pairs.server()
    client = pairs.client(server)
    sent = {"f": np.arange(count, dtype=np.float64), "o": np.ones((3, count), order="F")}
    client.put(sent).result(WAIT_S)
    got = server.get(timeout=WAIT_S).data
    for name, array in sent.items():
        assert np.array_equal(got[name], array)
        assert got[name].dtype == array.dtype
        # Views of shared memory are read-only; messages of less than 4 MiB are copied out of it.
        if pairs.protocol == "shm" and count >= 200_000:
            assert not got[name].flags.writeable
        else:
            got[name][...] = 7


def test_a_broadcast_and_a_targeted_message_arrive_in_order(pairs: Pairs) -> None:
    server = pairs.server()
    clients = [pairs.client(server) for _ in range(5)]
    for client in clients:
        client.put("here")
    for _ in clients:
        server.get(timeout=WAIT_S)
    assert set(server.peers()) == {client.id for client in clients}
    everyone = server.put("all")
    server.put("third", clients[2].id)
    server.put("all again")
    everyone.result(WAIT_S)
    for position, client in enumerate(clients):
        expected = ["all", "third", "all again"] if position == 2 else ["all", "all again"]
        assert [client.get(timeout=WAIT_S).data for _ in expected] == expected
        assert client.peers() == [server.id]


def test_get_from_some_peers_keeps_messages_of_others(pairs: Pairs) -> None:
    server = pairs.server()
    clients = [pairs.client(server) for _ in range(3)]
    for client in clients:
        client.put("a").result(WAIT_S)
        client.put("b").result(WAIT_S)
    assert server.get(clients[2].id, timeout=WAIT_S).peer == clients[2].id
    assert server.get(clients[1].id, clients[2].id, timeout=WAIT_S).peer == clients[1].id
    rest = [(server.get(timeout=WAIT_S).peer, _) for _ in range(4)]
    # The peers take turns.
    assert [peer for peer, _ in rest] == [clients[at].id for at in (0, 2, 1, 0)]


def test_a_put_without_peers_fails(pairs: Pairs) -> None:
    server = pairs.server()
    unknown = uuid.uuid4()
    with pytest.raises(ConnectionError) as caught:
        server.put("x", unknown).result(WAIT_S)
    assert caught.value.peer == unknown  # type: ignore[attr-defined]
    with pytest.raises(ConnectionError):
        server.put("x").result(WAIT_S)


def test_get_times_out(pair: Pair) -> None:
    server, _ = pair()
    with pytest.raises(TimeoutError):
        server.get(timeout=0.01)


def test_after_close_get_drains_and_then_raises(pair: Pair) -> None:
    server, client = pair()
    for number in range(100):
        client.put(number)
    closing = threading.Thread(target=client.close)
    closing.start()
    # The client can close although the server has got nothing.
    closing.join(WAIT_S)
    assert not closing.is_alive()
    with pytest.raises(ConnectionError):
        client.get()
    with pytest.raises(ConnectionError):
        client.put("late").result(WAIT_S)
    assert [server.get(timeout=WAIT_S).data for _ in range(100)] == list(range(100))
    server.close()
    with pytest.raises(ConnectionError):
        server.get()


def test_closing_the_server_flushes_both_ways(pair: Pair) -> None:
    server, client = pair()
    client.put("first").result(WAIT_S)
    to_client = [server.put(number) for number in range(1000)]
    to_server = [client.put(number) for number in range(1000)]
    server.close(final=True)
    for future in to_client + to_server:
        future.result(WAIT_S)
    assert [server.get().data for _ in range(1001)] == ["first", *range(1000)]
    assert [client.get().data for _ in range(1000)] == list(range(1000))
    for communicator in (server, client):
        with pytest.raises(ConnectionError):
            communicator.get(timeout=WAIT_S)


def test_a_client_goes_on_with_the_next_server(pairs: Pairs) -> None:
    first = pairs.server()
    client = pairs.client(first, reconnect=(0.01, 0.1))
    client.put("before").result(WAIT_S)
    last = first.put("last")
    first.close()
    last.result(WAIT_S)
    assert eventually(lambda: client.state == "connecting")
    waiting = client.put("after")
    netloc = client.options.netloc
    second = pairs.server(netloc=netloc, broker=first.options.broker)
    waiting.result(WAIT_S)
    assert second.get(timeout=WAIT_S).data == "after"
    second.put("first").result(WAIT_S)
    assert [client.get(timeout=WAIT_S).data for _ in range(2)] == ["last", "first"]
    second.close(final=True)
    with pytest.raises(ConnectionError):
        client.get(timeout=WAIT_S)
    assert client.state == "closed"


@pytest.mark.parametrize("pairs", ["tcp"], indirect=True)
def test_a_future_says_whether_its_message_may_have_arrived(pairs: Pairs) -> None:
    server = pairs.server()
    client = pairs.client(server, ack="explicit", queue_size=1000, full="drop_newest")
    sent = client.put("sent")
    server.get(timeout=WAIT_S)
    dropped = client.put(b"x" * 1000)
    client.close(0)
    errors = [it.exception(WAIT_S) for it in (sent, dropped, client.put("late"))]
    assert [getattr(it, "may_have_arrived", None) for it in errors] == [True, False, False]


def test_put_returns_a_concurrent_future(pair: Pair) -> None:
    server, client = pair(ack="taken")
    future = client.put("x")
    called = threading.Event()
    future.add_done_callback(lambda _: called.set())
    assert isinstance(future, concurrent.futures.Future)
    waited = concurrent.futures.wait([future], timeout=0.05)
    assert waited.not_done == {future}
    server.get(timeout=WAIT_S)
    assert concurrent.futures.wait([future], timeout=WAIT_S).done == {future}
    assert called.wait(WAIT_S)
    assert future.exception() is None
    assert list(concurrent.futures.as_completed([future])) == [future]


@pytest.mark.parametrize("pairs", ["tcp"], indirect=True)
def test_a_future_keeps_its_state_under_its_lock(pair: Pair) -> None:
    """`concurrent.futures.wait` reads the state twice under the lock, and needs equal results."""
    server, client = pair(ack="taken")
    future = client.put("x")
    with future._condition:
        assert future._state == "PENDING"
        server.get(timeout=WAIT_S)
        future.result(WAIT_S)
        assert future.done()
        assert future._state == "PENDING"
    assert concurrent.futures.wait([future], timeout=WAIT_S).done == {future}
    assert future._state == "FINISHED"


@in_asyncio
async def test_futures_are_awaited_by_asyncio(pair: Pair) -> None:
    server, client = pair(ack="taken")
    futures = [asyncio.wrap_future(client.put(number)) for number in range(30)]
    for _ in futures:
        await asyncio.to_thread(server.get, timeout=WAIT_S)
    await asyncio.wait_for(asyncio.gather(*futures), WAIT_S)


def test_ack_taken_waits_for_get(pair: Pair) -> None:
    server, client = pair(ack="taken")
    futures = [client.put(number) for number in range(3)]
    with pytest.raises(TimeoutError):
        futures[0].result(0.1)
    server.get(timeout=WAIT_S)
    futures[0].result(WAIT_S)
    assert not futures[1].done()
    server.get(timeout=WAIT_S)
    server.get(timeout=WAIT_S)
    futures[2].result(WAIT_S)


def test_a_message_is_cancelled_until_it_is_on_the_wire(pairs: Pairs) -> None:
    is_on_port = pairs.protocol in ("tcp", "grpc")
    given = {"netloc": free_location()} if is_on_port else {}
    server = pairs.server(**given)
    address = server.options.netloc
    server.close()
    client = pairs.client(server, netloc=address)
    futures = [client.put(data) for data in ("a", "b", b"c" * 100_000, "d")]
    assert futures[1].cancel()
    assert futures[2].cancel()
    assert futures[1].cancelled()
    with pytest.raises(concurrent.futures.CancelledError):
        futures[2].result()
    server = pairs.server(netloc=address, broker=server.options.broker)
    assert [server.get(timeout=WAIT_S).data for _ in range(2)] == ["a", "d"]
    futures[3].result(WAIT_S)
    assert not futures[0].cancel()


def test_a_broadcast_cannot_be_cancelled(pairs: Pairs) -> None:
    server = pairs.server()
    clients = [pairs.client(server) for _ in range(2)]
    for client in clients:
        client.put("here").result(WAIT_S)
    future = server.put("all")
    assert not future.cancel()
    assert [client.get(timeout=WAIT_S).data for client in clients] == ["all", "all"]
    future.result(WAIT_S)
    assert not future.cancelled()


def test_session_callbacks_are_called(pairs: Pairs) -> None:
    server = pairs.server()
    began: list[uuid.UUID] = []
    ended = threading.Event()
    server.on_start(began.append)
    server.on_end(lambda _: ended.set())
    client = pairs.client(server)
    client.put("x").result(WAIT_S)
    client.close()
    assert ended.wait(WAIT_S)
    assert began == [client.id]
    assert server.peers() == []


def test_close_waits_no_longer_than_its_timeout(pairs: Pairs) -> None:
    server = pairs.server()
    server.close()
    # A message that is put after that time waits for the server.
    client = pairs.client(server, expire_s=1)
    with pytest.raises(ConnectionError):
        client.put("x").result(WAIT_S)
    # It goes on connecting, until it is closed.
    with pytest.raises(TimeoutError):
        client.get(timeout=0.1)
    client.put("y")
    client.close(timeout=0.1)
    with pytest.raises(ConnectionError):
        client.get(timeout=WAIT_S)
