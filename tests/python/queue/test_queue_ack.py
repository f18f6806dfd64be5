"""Explicit acknowledgements, over every protocol."""

from __future__ import annotations

import dataclasses
import gc
import itertools
import random
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from pairs import Pairs
from resources import shared_maps, wait_until

from harness import program
from ucall import queue as nq

Pair = Callable[..., tuple[nq.Communicator, nq.Communicator]]
WAIT_S = 60
tcp = pytest.mark.parametrize("pairs", ["tcp"], indirect=True)
# In each case one side puts and the other gets.
connect_by = pytest.mark.parametrize("putter", ["client", "server"])


def met(pairs: Pairs, putter: str, **given: Any) -> tuple[nq.Communicator, nq.Communicator]:
    """The side that puts with ``ack="explicit"``, and the side that gets."""
    given = {"reconnect": (0.01, 0.05), **given}
    ours, theirs = {"ack": "explicit", **given}, given
    server = pairs.server(**(ours if putter == "server" else theirs))
    client = pairs.client(server, **(ours if putter == "client" else theirs))
    if putter == "client":
        return client, server
    client.put("here").result(WAIT_S)
    assert server.get(timeout=WAIT_S).data == "here"
    return server, client


def again(pairs: Pairs, closed: nq.Communicator, other: nq.Communicator) -> nq.Communicator:
    """A new incarnation of a closed communicator."""
    if not closed.is_server:
        connection = dataclasses.asdict(closed.options.connection)
        return pairs.client(other, id=closed.id, **connection)
    netloc = nq.NetworkLocation(*(closed.address or closed.options.netloc))
    broker = closed.options.broker
    return pairs.server(id=closed.id, netloc=netloc, broker=broker, reconnect=(0.01, 0.05))


def taken(getter: nq.Communicator, count: int) -> list[nq.Message]:
    return [getter.get(timeout=WAIT_S) for _ in range(count)]


@connect_by
def test_acknowledged_in_any_order_the_futures_end_in_theirs(pairs: Pairs, putter: str) -> None:
    ours, getter = met(pairs, putter)
    futures = [ours.put(number) for number in range(6)]
    messages = taken(getter, 6)
    assert [message.data for message in messages] == list(range(6))
    for at in (4, 2, 1, 2, 4):
        assert messages[at].ack() is None  # type: ignore[func-returns-value]
    # Acknowledgements made before this `put` reach the other side before its message.
    getter.put("told").result(WAIT_S)
    assert not any(future.done() for future in futures)
    messages[0].ack()
    for future in futures[:3]:
        future.result(WAIT_S)
    assert not any(future.done() for future in futures[3:])
    messages[5].ack()
    messages[3].ack()
    for future in futures:
        future.result(WAIT_S)
    assert not any(message.redelivered for message in messages)


def test_any_thread_acknowledges(pair: Pair) -> None:
    server, client = pair(ack="explicit")
    futures = [client.put(number) for number in range(1000)]
    messages = taken(server, 1000)
    random.Random(3).shuffle(messages)

    def acknowledge(some: list[nq.Message]) -> None:
        for message in some:
            message.ack()

    # Two threads acknowledge each message.
    halves = [messages[at::4] + messages[at - 2 :: 4] for at in range(4)]
    threads = [threading.Thread(target=acknowledge, args=(some,)) for some in halves]
    for thread in threads:
        thread.start()
    for future in futures:
        future.result(WAIT_S)
    for thread in threads:
        thread.join(WAIT_S)


@connect_by
def test_get_returns_later_messages_and_queue_size_is_the_bound(pairs: Pairs, putter: str) -> None:
    # Ten times the window.
    ours, getter = met(pairs, putter, transport_size=65_536, queue_size=660_000)
    futures = [ours.put(b"x" * 32_768) for _ in range(20)]
    messages = taken(getter, 20)
    with pytest.raises(nq.FullError):
        ours.put(b"x" * 32_768)
    # Messages that were sent together are kept together.
    for message in messages[:0:-1]:
        message.ack()
    getter.put("told").result(WAIT_S)
    assert not any(future.done() for future in futures)
    with pytest.raises(nq.FullError):
        ours.put(b"x" * 32_768)
    messages[0].ack()
    for future in futures:
        future.result(WAIT_S)
    late = ours.put(b"x" * 32_768)
    getter.get(timeout=WAIT_S).ack()
    late.result(WAIT_S)


@pytest.mark.parametrize("ack", ["received", "taken"])
def test_messages_of_other_kinds_are_acknowledged_already(pairs: Pairs, ack: str) -> None:
    server = pairs.server()
    client = pairs.client(server, ack=ack)
    future = client.put("x")
    message = server.get(timeout=WAIT_S)
    future.result(WAIT_S)
    message.ack()
    client.close()
    message.ack()
    server.close()
    message.ack()
    nq.Message(client.id, "made by hand").ack()


@connect_by
def test_a_side_that_closes_leaves_the_rest_to_its_next_incarnation(
    pairs: Pairs, putter: str
) -> None:
    ours, getter = met(pairs, putter)
    futures = [ours.put(number) for number in range(5)]
    messages = taken(getter, 3)
    messages[0].ack()
    messages[2].ack()
    getter.close()
    futures[0].result(WAIT_S)
    # `get` has not returned two of them; of the others one was acknowledged out of order.
    rest = []
    with pytest.raises(ConnectionError):
        while True:
            rest.append(getter.get())
    for message in (messages[1], *rest):
        with pytest.raises(ConnectionError) as caught:
            message.ack()
        assert caught.value.peer == ours.id  # type: ignore[attr-defined]
    messages[0].ack()
    messages[2].ack()
    # As for a disconnected peer.
    futures.append(ours.put(5))
    assert not any(future.done() for future in futures[1:])
    getter = again(pairs, getter, ours)
    received = taken(getter, 5)
    assert [it.data for it in received] == [1, 2, 3, 4, 5]
    # What had not arrived before the close need not be marked.
    assert all(it.redelivered for it in received[: 2 + len(rest)])
    for message in reversed(received):
        message.ack()
    for future in futures:
        future.result(WAIT_S)


@connect_by
def test_close_waits_until_all_is_acknowledged(pairs: Pairs, putter: str) -> None:
    ours, getter = met(pairs, putter)
    futures = [ours.put(number) for number in range(3)]
    messages = taken(getter, 3)
    closing = threading.Thread(target=ours.close)
    closing.start()
    messages[0].ack()
    messages[2].ack()
    futures[0].result(WAIT_S)
    closing.join(0.2)
    assert closing.is_alive()
    messages[1].ack()
    closing.join(WAIT_S)
    assert not closing.is_alive()
    for future in futures:
        future.result(0)


@connect_by
def test_close_waits_at_most_its_timeout(pairs: Pairs, putter: str) -> None:
    ours, getter = met(pairs, putter)
    future = ours.put("x")
    assert getter.get(timeout=WAIT_S).data == "x"
    ours.close(0.1)
    with pytest.raises(ConnectionError):
        future.result(WAIT_S)


def test_all_acknowledged_both_sides_end_at_once(pairs: Pairs) -> None:
    # Otherwise each side would wait for a new incarnation of the other.
    given = {"ack": "explicit", "expire_s": 1000}
    server = pairs.server(**given)
    client = pairs.client(server, **given)
    client.put("there")
    message = server.get(timeout=WAIT_S)
    server.put("back")
    message.ack()
    client.get(timeout=WAIT_S).ack()
    client.close()
    server.close()


@tcp
def test_a_side_that_closes_and_stays_away_is_given_up(pairs: Pairs) -> None:
    server = pairs.server(ack="explicit", expire_s=0.3)
    client = pairs.client(server)
    client.put("here").result(WAIT_S)
    future = server.put("x")
    client.get(timeout=WAIT_S)
    client.close()
    with pytest.raises(ConnectionError) as caught:
        future.result(WAIT_S)
    assert caught.value.peer == client.id  # type: ignore[attr-defined]


@tcp
def test_there_is_no_other_kind(pairs: Pairs) -> None:
    with pytest.raises(ValueError, match="expected 'received', 'taken' or 'explicit'"):
        pairs.server(ack="later")


@tcp
def test_an_acknowledgement_for_a_restarted_peer_is_dropped(pairs: Pairs) -> None:
    server = pairs.server()
    given = {"ack": "explicit", "reconnect": (0.01, 0.05)}
    client = pairs.client(server, **given)
    client.put("x")
    message = server.get(timeout=WAIT_S)
    client.close(0)
    client = pairs.client(server, id=client.id, **given)
    future = client.put("y")
    late = server.get(timeout=WAIT_S)
    with pytest.raises(ConnectionError) as caught:
        message.ack()
    assert caught.value.peer == client.id  # type: ignore[attr-defined]
    late.ack()
    future.result(WAIT_S)


def test_each_client_has_its_own(pairs: Pairs) -> None:
    server = pairs.server()
    clients = [pairs.client(server, ack="explicit") for _ in range(4)]
    futures = {client.id: [client.put(number) for number in range(10)] for client in clients}
    messages = taken(server, 40)
    quiet = clients[0].id
    for message in messages:
        if message.peer != quiet:
            message.ack()
    for client in clients[1:]:
        for future in futures[client.id]:
            future.result(WAIT_S)
    assert not any(future.done() for future in futures[quiet])
    for message in messages:
        message.ack()
    for future in futures[quiet]:
        future.result(WAIT_S)


def test_one_that_cannot_be_read_is_acknowledged_too(pairs: Pairs) -> None:
    def load(stream: nq.Stream) -> str:
        return bytes(stream.read()).decode()

    given = {"serialization": nq.SerializationOptions(load, lambda data: [data])}
    server = pairs.server(**given)
    client = pairs.client(server, ack="explicit", **given)
    futures = [client.put(data) for data in (b"\xff", b"after")]
    with pytest.raises(UnicodeDecodeError) as caught:
        server.get(timeout=WAIT_S)
    unread = caught.value.queue_message  # type: ignore[attr-defined]
    assert (unread.peer, unread.data) == (client.id, None)
    server.get(timeout=WAIT_S).ack()
    # Its own future fails at once, with the reason. Later ones wait for its acknowledgement.
    with pytest.raises(nq.RefusedError, match="UnicodeDecodeError: ") as told:
        futures[0].result(WAIT_S)
    assert told.value.peer == server.id
    assert not futures[1].done()
    unread.ack()
    futures[1].result(WAIT_S)


@tcp
def test_a_message_keeps_no_communicator(pairs: Pairs) -> None:
    client, server = met(pairs, "client")
    client.put("x")
    message = server.get(timeout=WAIT_S)
    pairs.made.remove(server)
    del server
    gc.collect()
    with pytest.raises(ConnectionError) as caught:
        message.ack()
    assert str(caught.value.args[1]) == "this side has closed"


FORKS = """
import os, sys
from ucall import queue as nq

explicit = nq.ConnectionOptions(ack="explicit")
here = nq.CommunicatorOptions(netloc=nq.NetworkLocation(port=0))
server = nq.new(purpose=nq.Purpose.SERVER, options=here)
there = nq.CommunicatorOptions(netloc=nq.NetworkLocation(*server.address), connection=explicit)
client = nq.new(options=there)
future = client.put("x")
message = server.get(timeout=60)
child = os.fork()
if child == 0:
    try:
        message.ack()
    except RuntimeError:
        os._exit(7)
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
message.ack()
future.result(60)
print("done", flush=True)
"""


def test_a_forked_child_acknowledges_nothing() -> None:
    with program(FORKS) as process:
        assert process.stdout.readline() == "7\n"
        assert process.stdout.readline() == "done\n"


@pytest.mark.parametrize("pairs", ["tcp", "unix", "shm"], indirect=True)
def test_both_engines(pairs: Pairs, engine: str) -> None:
    for putter in ("client", "server"):
        ours, getter = met(pairs, putter, engine=engine)
        sizes = (0, 8, 8_193, 70_000, 1 << 20)
        futures = [ours.put(np.zeros(size, np.uint8)) for size in itertools.chain(sizes, sizes)]
        messages = taken(getter, len(futures))
        for message in reversed(messages[1:]):
            message.ack()
        getter.put("told").result(WAIT_S)
        assert not any(future.done() for future in futures)
        messages[0].ack()
        for future in futures:
            future.result(WAIT_S)


@pytest.mark.parametrize("pairs", ["shm"], indirect=True)
@pytest.mark.parametrize("trusted", [False, True])
def test_views_and_acknowledgements_are_independent(pairs: Pairs, trusted: bool) -> None:
    server = pairs.server(trusted=trusted)
    client = pairs.client(server, ack="explicit", trusted=trusted)
    futures = [client.put(np.full(600_000, number)) for number in range(4)]
    messages = taken(server, 4)
    assert not any(message.data.flags.writeable for message in messages)
    # An acknowledgement does not release memory that the program still views.
    views = [message.data for message in messages[:2]]
    for message in messages[:2]:
        message.ack()
    for future in futures[:2]:
        future.result(WAIT_S)
    assert [set(view) for view in views] == [{0}, {1}]
    # The others have no views left and are not acknowledged; their memory is free.
    del messages, message, views
    wait_until(lambda: shared_maps("r--p") == 0)
    server.put("told").result(WAIT_S)
    assert not any(future.done() for future in futures[2:])
    server.close()
    server = again(pairs, server, client)
    for number in (2, 3):
        message = server.get(timeout=WAIT_S)
        assert (set(message.data), message.redelivered) == ({number}, True)
        message.ack()
    for future in futures:
        future.result(WAIT_S)
