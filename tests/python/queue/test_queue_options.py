"""The options of a connection."""

from __future__ import annotations

import concurrent.futures
import threading
from typing import Any

import pytest
from pairs import Pairs, free_location

from harness import eventually
from ucall import queue as nq

WAIT_S = 60
# Two messages of 1,000 bytes fill it.
QUEUE_SIZE = 2 * (1000 + 128)

pytestmark = pytest.mark.parametrize("pairs", ["tcp"], indirect=True)


def full_client(pairs: Pairs, full: str) -> tuple[nq.Communicator, list[nq.Future]]:
    """A client without a server, and the futures of the messages that fill its queue."""
    client = pairs.client(pairs.server(), netloc=free_location(), queue_size=QUEUE_SIZE, full=full)
    return client, [client.put(bytes([number]) * 1000) for number in range(2)]


def receive_all(pairs: Pairs, client: nq.Communicator) -> list[Any]:
    """The messages that a late server gets: two, and then no more."""
    server = pairs.server(netloc=client.options.netloc)
    received = [server.get(timeout=WAIT_S).data for _ in range(2)]
    client.close()
    with pytest.raises(TimeoutError):
        server.get(timeout=0.2)
    return received


def test_full_block_waits_for_room(pairs: Pairs) -> None:
    client, futures = full_client(pairs, "block")
    puts: list[nq.Future] = []
    blocked = threading.Thread(target=lambda: puts.append(client.put(b"late")))
    blocked.start()
    blocked.join(0.2)
    assert blocked.is_alive()
    # That frees memory in the queue.
    assert futures[1].cancel()
    blocked.join(WAIT_S)
    assert not blocked.is_alive()
    assert receive_all(pairs, client) == [bytes(1000), b"late"]
    puts[0].result(WAIT_S)


def test_full_drop_oldest_drops_the_oldest(pairs: Pairs) -> None:
    client, futures = full_client(pairs, "drop_oldest")
    futures.append(client.put(b"new"))
    with pytest.raises(nq.FullError):
        futures[0].result(WAIT_S)
    assert receive_all(pairs, client) == [b"\1" * 1000, b"new"]
    for future in futures[1:]:
        future.result(WAIT_S)


def test_a_dropped_message_is_announced_before_one_that_waits_to_be_taken(pairs: Pairs) -> None:
    client = pairs.client(
        pairs.server(transport_size=65_536), ack="taken", full="drop_oldest", queue_size=1_000_000
    )
    sent: list[nq.Future] = []

    def is_on_the_wire() -> bool:
        sent.append(client.put(b"x" * 100_000))
        concurrent.futures.wait(sent[-1:], timeout=0.05)
        return not sent[-1].cancel()

    assert eventually(is_on_the_wire)
    announced = threading.Event()
    sent[-1].add_done_callback(lambda _: None)
    futures = [client.put(b"y" * 100_000) for _ in range(5)]
    futures[0].add_done_callback(lambda _: announced.set())
    futures += [client.put(b"z" * 100_000) for _ in range(15)]
    assert announced.wait(WAIT_S)
    assert isinstance(futures[0].exception(), nq.FullError)
    assert not sent[-1].done()


def test_full_drop_newest_drops_the_newest(pairs: Pairs) -> None:
    client, futures = full_client(pairs, "drop_newest")
    with pytest.raises(nq.FullError):
        client.put(b"new").result(WAIT_S)
    assert receive_all(pairs, client) == [bytes(1000), b"\1" * 1000]
    for future in futures:
        future.result(WAIT_S)


@pytest.mark.parametrize("merge", [True, False])
def test_get_merge_gives_load_one_chunk(pairs: Pairs, merge: bool) -> None:
    def load(stream: nq.Stream) -> tuple[int, int]:
        return len(stream.chunks), stream.nbytes

    serialization = nq.SerializationOptions(dump=lambda data: [data], load=load)
    server = pairs.server(serialization=serialization, get_merge=merge)
    pairs.client(server, serialization=serialization).put(b"x" * 200_000)
    chunks, length = server.get(timeout=WAIT_S).data
    assert length == 200_000
    assert (chunks == 1) is merge


@pytest.mark.parametrize("merge", [True, False])
def test_put_merge_joins_the_chunks_of_dump(pairs: Pairs, merge: bool) -> None:
    pieces = [bytearray(b"a" * 100_000), bytearray(b"b" * 100_000)]
    serialization = nq.SerializationOptions(
        dump=lambda _: nq.Stream(pieces), load=lambda stream: stream.read()
    )
    client = pairs.client(
        pairs.server(), netloc=free_location(), serialization=serialization, put_merge=merge
    )
    client.put(None)
    # Programs must not do this; here it shows that the message is sent without a copy.
    pieces[0][:] = b"c" * 100_000
    server = pairs.server(netloc=client.options.netloc, serialization=serialization)
    first = b"a" if merge else b"c"
    assert server.get(timeout=WAIT_S).data == first * 100_000 + b"b" * 100_000


def test_transport_size_bounds_untaken_messages(pairs: Pairs) -> None:
    server = pairs.server(transport_size=1_000_000)
    client = pairs.client(server, full="block", queue_size=4_000_000)
    first = client.put(b"x" * 100_000)
    first.result(WAIT_S)
    later = [client.put(b"x" * 100_000) for _ in range(30)]
    assert eventually(lambda: sum(future.done() for future in later) >= 8)
    with pytest.raises(TimeoutError):
        later[-1].result(0.3)
    assert sum(future.done() for future in later) <= 20
    for _ in range(31):
        server.get(timeout=WAIT_S)
    later[-1].result(WAIT_S)
