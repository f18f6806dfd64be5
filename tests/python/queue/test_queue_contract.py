"""Promises of docs/queues.md that no other test covers, over every protocol."""

from __future__ import annotations

import contextlib
import gc
import logging
import pickle
import socket
import threading
import uuid
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from frames import frame, hello
from pairs import Pairs
from resources import wait_until

from harness import eventually
from ucall import queue as nq

Pair = Callable[..., tuple[nq.Communicator, nq.Communicator]]
WAIT_S = 60
tcp = pytest.mark.parametrize("pairs", ["tcp"], indirect=True)


@contextlib.contextmanager
def silent_server(pairs: Pairs, folder: Path) -> Iterator[nq.NetworkLocation]:
    """A listener that accepts connections and never sends."""
    is_path = pairs.protocol in ("unix", "shm")
    with socket.socket(socket.AF_UNIX if is_path else socket.AF_INET) as listener:
        listener.bind(str(folder / "silence.sock") if is_path else ("127.0.0.1", 0))
        listener.listen()
        if is_path:
            yield nq.NetworkLocation(listener.getsockname(), 0)
        else:
            yield nq.NetworkLocation(*listener.getsockname())


def test_construction_and_put_never_block(pairs: Pairs, tmp_path: Path) -> None:
    with silent_server(pairs, tmp_path) as silent_address:
        # A blocking constructor would wait forever.
        client = pairs.client(pairs.server(), netloc=silent_address)
        futures = [client.put(data) for data in ("x", np.zeros(50_000), b"x" * 1_000_000)]
        assert not any(future.done() for future in futures)
        assert client.peers() == []
        with pytest.raises(TimeoutError):
            client.get(timeout=0.01)
        assert [future.cancel() for future in futures] == [True] * 3
        client.close(0)


def test_a_payload_like_a_handshake_is_data(pair: Pair) -> None:
    server, client = pair()
    ids = (client.id, server.id, uuid.UUID(int=0))
    payloads: list[Any] = [it for id in ids for it in (id.bytes, id, str(id))]
    payloads += [b"ucall-q2", hello(client.id.bytes), hello(server.id.bytes, kind=2), frame(7, 0)]
    # The first messages of a connection, and later ones, in both directions.
    for _ in range(2):
        for sender, taker in ((client, server), (server, client)):
            for data in payloads:
                sender.put(data)
            assert [taker.get(timeout=WAIT_S).data for _ in payloads] == payloads


def test_an_id_is_not_a_message_with_any_serializer(pairs: Pairs) -> None:
    serializer = nq.BytesSerializer()
    given = {"serialization": nq.SerializationOptions(serializer.load, serializer.dump)}
    server = pairs.server(**given)
    client = pairs.client(server, **given)
    client.put(client.id.bytes)
    client.put(server.id.bytes)
    assert server.get(timeout=WAIT_S).data == client.id.bytes
    server.put(client.id.bytes)
    assert server.get(timeout=WAIT_S).data == server.id.bytes
    assert client.get(timeout=WAIT_S).data == client.id.bytes


def test_a_broadcast_is_serialized_once(pairs: Pairs) -> None:
    dumped = []

    def dump(data: bytes) -> list[bytes]:
        dumped.append(data)
        return [data]

    given = {"serialization": nq.SerializationOptions(lambda stream: stream.read(), dump)}
    server = pairs.server(**given)
    clients = [pairs.client(server, **given) for _ in range(4)]
    for client in clients:
        client.put(b"here").result(WAIT_S)
    dumped.clear()
    server.put(b"all").result(WAIT_S)
    assert [client.get(timeout=WAIT_S).data for client in clients] == [b"all"] * 4
    assert dumped == [b"all"]


def test_put_is_zero_copy_and_releases_the_object(pairs: Pairs, tmp_path: Path) -> None:
    with silent_server(pairs, tmp_path) as silent_address:
        waiting = pairs.client(pairs.server(), netloc=silent_address)
        array = np.zeros(50_000)
        future, kept = waiting.put(array), weakref.ref(array)
        del array
        gc.collect()
        assert kept() is not None
        future.cancel()
        waiting.peers()
        waiting.put("next")
        assert kept() is None
        waiting.close(0)
    server = pairs.server()
    client = pairs.client(server)
    array = np.arange(50_000)
    before = array.copy()
    future, kept = client.put({"it": array}), weakref.ref(array)
    assert np.array_equal(server.get(timeout=WAIT_S).data["it"], before)
    assert np.array_equal(array, before)
    future.result(WAIT_S)
    del array
    # The transport may hold the message a moment longer.
    for _ in range(100):
        client.put("more").result(WAIT_S)
        if kept() is None:
            return
    raise AssertionError("an array is kept that has arrived")


def test_get_from_some_peers_times_out(pairs: Pairs) -> None:
    server = pairs.server()
    quiet, talking = pairs.client(server), pairs.client(server)
    for client in (quiet, talking):
        client.put("here").result(WAIT_S)
        assert server.get(client.id, timeout=WAIT_S).data == "here"
    for number in range(100):
        talking.put(number)
    with pytest.raises(TimeoutError):
        server.get(quiet.id, timeout=0.05)
    with pytest.raises(TimeoutError):
        server.get(quiet.id, uuid.uuid4(), timeout=0)
    # Its peer's message wakes a waiting `get`, and no other message does.
    received: list[Any] = []
    waits = threading.Thread(target=lambda: received.append(server.get(quiet.id, timeout=WAIT_S)))
    waits.start()
    for number in range(100, 200):
        talking.put(number)
    quiet.put("mine").result(WAIT_S)
    waits.join(WAIT_S)
    assert [(message.peer, message.data) for message in received] == [(quiet.id, "mine")]
    assert [server.get(timeout=WAIT_S).data for _ in range(200)] == list(range(200))


def test_an_unpicklable_object_raises_and_changes_nothing(pair: Pair) -> None:
    server, client = pair(queue_size=10_000)
    for bad in (threading.Lock(), lambda: None, [b"x" * 9_000, threading.Lock()]):
        # For a nested function Python raises the last of these from 3.14 on.
        with pytest.raises((TypeError, AttributeError, pickle.PicklingError)):
            client.put(bad)
    client.put("good").result(WAIT_S)
    assert server.get(timeout=WAIT_S).data == "good"


def test_a_raising_load_loses_one_message(pairs: Pairs) -> None:
    def load(stream: nq.Stream) -> str:
        return bytes(stream.read()).decode()

    given = {"serialization": nq.SerializationOptions(load, lambda data: [data]), "ack": "taken"}
    server = pairs.server(**given)
    client = pairs.client(server, **given)
    futures = [client.put(data) for data in (b"before", b"\xff", b"after")]
    assert server.get(timeout=WAIT_S).data == "before"
    with pytest.raises(UnicodeDecodeError):
        server.get(timeout=WAIT_S)
    assert server.get(timeout=WAIT_S).data == "after"
    for future in futures[::2]:
        future.result(WAIT_S)
    with pytest.raises(nq.RefusedError, match="cannot read it: UnicodeDecodeError: 'utf-8'"):
        futures[1].result(WAIT_S)


def test_a_take_acknowledges_no_message_that_another_thread_loads(pairs: Pairs) -> None:
    begun, may_end = threading.Event(), threading.Event()

    def load(stream: nq.Stream) -> bytes:
        data = bytes(stream.read())
        if data == b"first":
            begun.set()
            assert may_end.wait(WAIT_S)
            raise ValueError("refused: the first")
        return data

    given = {"serialization": nq.SerializationOptions(load, lambda data: [data]), "ack": "taken"}
    server = pairs.server(**given)
    client = pairs.client(server, **given)
    futures = [client.put(data) for data in (b"first", b"second")]
    with ThreadPoolExecutor(1) as executor:
        first = executor.submit(server.get, timeout=WAIT_S)
        assert begun.wait(WAIT_S)
        try:
            assert server.get(timeout=WAIT_S).data == b"second"
            with pytest.raises(TimeoutError):
                futures[0].result(0.2)
        finally:
            may_end.set()
        with pytest.raises(ValueError, match="the first"):
            first.result(WAIT_S)
    with pytest.raises(nq.RefusedError, match="the first"):
        futures[0].result(WAIT_S)
    futures[1].result(WAIT_S)


def test_close_wakes_all_waiting_calls(pairs: Pairs) -> None:
    server = pairs.server()
    client = pairs.client(server)
    ended: list[type[BaseException]] = []

    def get(side: nq.Communicator) -> None:
        try:
            while True:
                side.get()
        except ConnectionError as error:
            ended.append(type(error))

    def put() -> None:
        # No `get` returns them, so the window is full after a few.
        futures = [unconnected.put(b"x" * 1000) for _ in range(10)]
        try:
            futures[-1].result(WAIT_S)
        except ConnectionError as error:
            ended.append(type(error))

    unconnected = pairs.client(pairs.server(), full="block", queue_size=3_000, ack="taken")
    works = [threading.Thread(target=get, args=(side,)) for side in (server, server, client)]
    works.append(threading.Thread(target=put))
    for work in works:
        work.start()
    client.close(1)
    server.close(1)
    unconnected.close(0.2)
    for work in works:
        work.join(WAIT_S)
    assert not any(work.is_alive() for work in works)
    assert ended == [nq.ConnectionError] * 4


def test_callbacks_may_put_get_and_close(pairs: Pairs) -> None:
    server = pairs.server()
    received: list[Any] = []
    over = threading.Event()

    def started(peer: uuid.UUID) -> None:
        server.put("welcome", peer)
        received.append(server.get(peer, timeout=WAIT_S).data)

    def ended(peer: uuid.UUID) -> None:
        server.close(1)
        over.set()

    server.on_start(started)
    server.on_end(ended)
    client = pairs.client(server)
    client.put("here")
    assert client.get(timeout=WAIT_S).data == "welcome"
    left = 100
    counted = threading.Event()

    def again(future: nq.Future) -> None:
        nonlocal left
        left -= 1
        if left:
            client.put(left).add_done_callback(again)
        else:
            client.close(WAIT_S)
            counted.set()

    client.put("first").add_done_callback(again)
    assert counted.wait(WAIT_S)
    assert over.wait(WAIT_S)
    assert received == ["here"]
    assert [server.get().data for _ in range(100)] == ["first", *range(99, 0, -1)]
    with pytest.raises(ConnectionError):
        server.get()


@tcp
def test_a_raising_callback_stops_no_other(pairs: Pairs, caplog: pytest.LogCaptureFixture) -> None:
    server = pairs.server()

    def leave(peer: uuid.UUID) -> None:
        raise SystemExit(3)

    started, arrived = threading.Event(), threading.Event()
    server.on_start(leave)
    server.on_start(lambda _: started.set())
    client = pairs.client(server)
    future = client.put("x")
    future.add_done_callback(lambda _: 1 / 0)  # type: ignore[arg-type,return-value]
    future.add_done_callback(lambda _: arrived.set())
    assert started.wait(WAIT_S)
    assert arrived.wait(WAIT_S)
    again = threading.Event()
    server.put("back").add_done_callback(lambda _: again.set())
    assert again.wait(WAIT_S)

    def told() -> set[type[BaseException] | None]:
        return {record.exc_info[0] for record in caplog.records if record.exc_info}

    # A callback that is added to a finished future runs at once, before the notifier's callbacks.
    assert eventually(lambda: told() == {SystemExit, ZeroDivisionError})
    assert {record.levelno for record in caplog.records if record.exc_info} == {logging.ERROR}


@tcp
def test_future_callbacks_run_after_the_queue_is_dropped(pairs: Pairs) -> None:
    server = pairs.server(ack="taken")

    def put() -> nq.Future:
        return pairs.made.pop(pairs.made.index(pairs.client(server, ack="taken"))).put("x")

    early, called = put(), threading.Event()
    early.add_done_callback(lambda _: called.set())
    gc.collect()
    late = put()
    gc.collect()
    late_called = threading.Event()
    late.add_done_callback(lambda _: late_called.set())
    assert [server.get(timeout=WAIT_S).data for _ in range(2)] == ["x", "x"]
    assert called.wait(WAIT_S)
    assert late_called.wait(WAIT_S)


def test_a_dropped_communicator_closes_in_order(pairs: Pairs) -> None:
    server = pairs.server()
    client = pairs.client(server)
    client.put("first").result(WAIT_S)
    for number in range(100):
        client.put(np.full(10_000, number))
    reference = weakref.ref(client)
    pairs.made.remove(client)
    del client
    gc.collect()
    assert server.get(timeout=WAIT_S).data == "first"
    assert [server.get(timeout=WAIT_S).data[0] for _ in range(100)] == list(range(100))
    wait_until(lambda: server.peers() == [])
    # A transport in Python keeps it until then.
    wait_until(lambda: reference() is None)


@tcp
def test_a_peer_is_named_by_its_id(pair: Pair) -> None:
    server, client = pair()
    client.put("here").result(WAIT_S)
    for call in (lambda: server.put("x", str(client.id)), lambda: server.get("nobody", timeout=0)):  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"expected a uuid.UUID as an id, not str"):
            call()
    unknown = uuid.uuid4()
    with pytest.raises(ConnectionError) as caught:
        client.put("x", unknown).result(WAIT_S)
    assert caught.value.peer == unknown  # type: ignore[attr-defined]
    client.put("to the server", server.id).result(WAIT_S)


def test_the_second_peer_with_one_id_is_refused(pairs: Pairs) -> None:
    server = pairs.server()
    first = pairs.client(server)
    first.put("first").result(WAIT_S)
    second = pairs.client(server, id=first.id)
    with pytest.raises(ConnectionError, match="give each an id of its own"):
        second.put("second").result(WAIT_S)
    with pytest.raises(ConnectionError, match="give each an id of its own"):
        second.get(timeout=WAIT_S)
    first.put("still there").result(WAIT_S)
    assert [server.get(timeout=WAIT_S).data for _ in range(2)] == ["first", "still there"]
    # Once the first is closed, its id is free.
    first.close()
    third = pairs.client(server, id=first.id)
    third.put("third").result(WAIT_S)
    assert server.get(timeout=WAIT_S).data == "third"


@tcp
def test_messages_are_distributed_among_getters(pairs: Pairs) -> None:
    server = pairs.server()
    clients = [pairs.client(server) for _ in range(3)]
    taken: list[list[tuple[uuid.UUID, int]]] = [[] for _ in range(4)]

    def get(mine: list[tuple[uuid.UUID, int]]) -> None:
        with contextlib.suppress(ConnectionError):
            while True:
                message = server.get()
                mine.append((message.peer, message.data))

    threads = [threading.Thread(target=get, args=(mine,)) for mine in taken]
    for thread in threads:
        thread.start()
    for number in range(1000):
        for client in clients:
            client.put(number)
    for client in clients:
        client.close()
    server.close()
    for thread in threads:
        thread.join(WAIT_S)
    everything = sorted(it for mine in taken for it in mine)
    assert everything == sorted((it.id, number) for it in clients for number in range(1000))
    for mine in taken:
        for client in clients:
            numbers = [number for peer, number in mine if peer == client.id]
            assert numbers == sorted(numbers)
