"""A peer that is away for longer than ``expire_s``, and returns."""

from __future__ import annotations

import asyncio
import logging
import os
import time
import uuid
from collections.abc import Iterator

import pytest
from broker import BROKERS, Broker
from pairs import PROTOCOLS, Pairs, free_location

from harness import eventually
from ucall import queue as nq
from ucall.aio import queue as anq

WAIT_S = 60
#: How long the servers of `test_all_messages_of_an_outage_are_accounted_for` are away, and the
#: ``expire_s`` of their clients: 300 and 30 in `make test-queue-long`.
AWAY_S = float(os.environ.get("UCALL_QUEUE_AWAY_S", "2"))
EXPIRE_S = float(os.environ.get("UCALL_QUEUE_EXPIRE_S", "0.4"))
CLIENTS = 3


class Outage:
    """A server that can be killed, and started again at its address."""

    def __init__(self, pairs: Pairs, *, is_of_broker: bool = False) -> None:
        self.pairs = pairs
        self._broker: Broker | None = None
        self._given: dict[str, object] = {}
        if pairs.protocol in ("tcp", "grpc"):
            self._given["netloc"] = free_location()
        if is_of_broker:
            self._broker = BROKERS[pairs.protocol]()
            self._broker.start()
            self._given["netloc"] = nq.NetworkLocation(port=self._broker.port)
        self.server = pairs.server(id=uuid.uuid4(), **self._given)
        self._given.update(
            id=self.server.id,
            netloc=self.server.options.netloc,
            broker=self.server.options.broker,
        )

    def client(self, **given: object) -> nq.Communicator:
        return self.pairs.client(self.server, reconnect=(0.01, 0.1), **given)

    def begin(self) -> None:
        if self._broker is not None:
            self._broker.kill()
        else:
            # As if it was killed: its clients get no end.
            self.server._close(True)
            self.server.close()

    def end(self) -> None:
        if self._broker is not None:
            self._broker.start()
        else:
            self.server = self.pairs.server(**self._given)

    def stop(self) -> None:
        if self._broker is not None:
            for communicator in reversed(self.pairs.made):
                communicator.close(0)
            self._broker.__exit__(None, None, None)


@pytest.fixture
def outage(request: pytest.FixtureRequest, pairs: Pairs) -> Iterator[Outage]:
    made = Outage(pairs, is_of_broker=getattr(request, "param", "server") == "broker")
    yield made
    made.stop()


def assert_expired(future: nq.Future, peer: uuid.UUID | None) -> None:
    with pytest.raises(nq.ConnectionError, match="was gone for longer than expire_s") as caught:
        future.result(WAIT_S)
    assert caught.value.peer == peer


@pytest.mark.slow
def test_what_is_put_after_an_outage_arrives(outage: Outage) -> None:
    client = outage.client(expire_s=EXPIRE_S)
    client.put("first").result(WAIT_S)
    assert client.state == "connected"
    outage.begin()
    before = [client.put(number) for number in range(3)]
    failures: list[BaseException | None] = []
    for future in before:
        future.add_done_callback(lambda it: failures.append(it.exception()))
    for future in before:
        assert_expired(future, outage.server.id)
    assert client.state == "connecting"
    later = [client.put(number) for number in range(3, 6)]
    # Longer than `expire_s` once more: what is put in an outage waits for its end.
    time.sleep(2 * EXPIRE_S)
    assert not any(future.done() for future in later)
    outage.end()
    assert [outage.server.get(timeout=WAIT_S).data for _ in later] == [3, 4, 5]
    for future in later:
        future.result(WAIT_S)
    eventually(lambda: len(failures) == len(before), timeout_s=WAIT_S)
    assert client.state == "connected"
    outage.server.put("back", client.id).result(WAIT_S)
    assert client.get(timeout=WAIT_S).data == "back"


@pytest.mark.parametrize("pairs", ["tcp", "shm", "mqtt", "nats"], indirect=True)
def test_a_server_takes_a_client_back(pairs: Pairs) -> None:
    server = pairs.server(expire_s=EXPIRE_S, keepalive_s=0.1)
    given = {"id": uuid.uuid4(), "reconnect": (0.01, 0.1)}
    client = pairs.client(server, **given)
    client.put("here").result(WAIT_S)
    assert server.get(timeout=WAIT_S).peer == client.id
    kinds: list[str] = []
    server.on_connection(lambda event: kinds.append(event.kind))
    client._close(True)
    lost = server.put("lost", client.id)
    assert_expired(lost, client.id)
    eventually(lambda: "ended" in kinds, timeout_s=WAIT_S)
    assert server.peers() == []
    client = pairs.client(server, **given)
    client.put("again").result(WAIT_S)
    assert server.get(timeout=WAIT_S).data == "again"
    server.put("welcome", client.id).result(WAIT_S)
    assert client.get(timeout=WAIT_S).data == "welcome"
    eventually(lambda: kinds[-1:] == ["started"], timeout_s=WAIT_S)
    assert kinds[-4:] == ["lost", "expired", "ended", "started"]


@pytest.mark.parametrize("pairs", ["tcp", "grpc"], indirect=True)
def test_the_log_and_the_callback_tell_of_an_outage(
    outage: Outage, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ucall")
    client = outage.client(expire_s=EXPIRE_S)
    events: list[nq.ConnectionEvent] = []
    client.on_connection(events.append)
    ended: list[uuid.UUID] = []
    client.on_end(ended.append)
    client.put("first").result(WAIT_S)
    outage.begin()
    server = outage.server.id
    eventually(lambda: ended == [server], timeout_s=WAIT_S)
    outage.end()
    client.put("later").result(WAIT_S)
    eventually(lambda: len(events) == 5, timeout_s=WAIT_S)
    kinds = ["started", "lost", "expired", "ended", "started"]
    assert [event.kind for event in events] == kinds
    assert {event.peer for event in events} == {server}
    assert [event.reason is not None for event in events] == [False, True, True, False, False]
    lines = [
        ("INFO", f"the session with peer {server} has started"),
        ("WARNING", f"the connection with peer {server} was lost: "),
        ("WARNING", f"peer {server} was gone for longer than expire_s: its session has ended"),
        ("INFO", f"the session with peer {server} has started"),
    ]

    def found() -> list[tuple[str, str]]:
        records = [(record.levelname, record.getMessage()) for record in caplog.records]
        ours = [it for it in records if f"queue {client.id}: " in it[1]]
        return [it for it in ours if "cannot connect" not in it[1]]

    eventually(lambda: len(found()) == len(lines), timeout_s=WAIT_S)
    for (level, text), (found_level, line) in zip(lines, found(), strict=True):
        assert (level, text in line) == (found_level, True), line


@pytest.mark.parametrize("pairs", ["tcp"], indirect=True)
def test_a_refused_client_is_told(pairs: Pairs, caplog: pytest.LogCaptureFixture) -> None:
    server = pairs.server()
    first = pairs.client(server)
    first.put("mine").result(WAIT_S)
    second = pairs.client(server, id=first.id)
    events: list[nq.ConnectionEvent] = []
    second.on_connection(events.append)
    with pytest.raises(nq.ConnectionError, match="another communicator has this id"):
        second.put("not mine").result(WAIT_S)
    eventually(lambda: bool(events), timeout_s=WAIT_S)
    assert {event.kind for event in events} == {"refused"}
    assert "another communicator has this id" in str(events[-1].reason)
    logged = f"queue {second.id}: the server refuses this side: "
    eventually(lambda: logged in caplog.text, timeout_s=WAIT_S)
    assert second.state == "closed"


@pytest.mark.parametrize("pairs", ["tcp", "mqtt", "nats"], indirect=True)
def test_states(pairs: Pairs) -> None:
    server = pairs.server()
    assert server.state == "listening"
    client = pairs.client(server)
    client.put("x").result(WAIT_S)
    assert (server.state, client.state) == ("connected", "connected")
    client.close()
    eventually(lambda: server.state == "listening", timeout_s=WAIT_S)
    assert client.state == "closed"
    server.close()
    assert server.state == "closed"


@pytest.mark.parametrize("pairs", ["tcp", "grpc"], indirect=True)
def test_an_asyncio_client_outlives_an_outage(outage: Outage) -> None:
    given = outage.client().options
    connection = nq.ConnectionOptions(expire_s=EXPIRE_S, reconnect=(0.01, 0.1))
    options = nq.CommunicatorOptions(
        netloc=given.netloc, security=given.security, connection=connection
    )

    async def main() -> None:
        async with anq.new(outage.pairs.protocol, nq.Purpose.CLIENT, options) as client:
            kinds: list[str] = []
            client.on_connection(lambda event: kinds.append(event.kind))
            await client.put("first")
            assert client.state == "connected"
            await asyncio.to_thread(outage.begin)
            with pytest.raises(nq.ConnectionError, match="expire_s") as caught:
                await client.put("before")
            assert caught.value.peer == outage.server.id
            later = client.put("later")
            await asyncio.to_thread(outage.end)
            await later
            while len(kinds) < 5:
                await asyncio.sleep(0.01)
            assert kinds == ["started", "lost", "expired", "ended", "started"]

    asyncio.run(asyncio.wait_for(main(), WAIT_S))


ABSENT = [(protocol, "server") for protocol in PROTOCOLS]
ABSENT += [(protocol, "broker") for protocol in BROKERS]


@pytest.mark.parametrize(
    ("pairs", "outage"), ABSENT, indirect=True, ids=[f"{it[0]}, {it[1]} away" for it in ABSENT]
)
@pytest.mark.slow
def test_all_messages_of_an_outage_are_accounted_for(outage: Outage) -> None:
    """Each message that is put before, in and after an outage arrives or fails, once."""
    clients = [outage.client(expire_s=EXPIRE_S) for _ in range(CLIENTS)]
    for client in clients:
        client.put(("start", client.id)).result(WAIT_S)
    before = outage.server
    outage.begin()
    outcomes: dict[tuple[uuid.UUID, int], list[BaseException | None]] = {}

    def put(client: nq.Communicator, number: int) -> nq.Future:
        calls = outcomes[client.id, number] = []
        future = client.put((client.id, number))
        future.add_done_callback(lambda it: calls.append(it.exception()))
        return future

    end = time.monotonic() + AWAY_S
    futures, number = [], 0
    while time.monotonic() < end:
        futures += [put(client, number) for client in clients]
        number += 1
        time.sleep(AWAY_S / 40)
    during = number
    outage.end()
    for number in range(during, during + 10):
        futures += [put(client, number) for client in clients]
    eventually(lambda: all(future.done() for future in futures), timeout_s=WAIT_S)
    eventually(lambda: all(map(len, outcomes.values())), timeout_s=WAIT_S)
    # Each future has one outcome, and those of an outage fail with the peer.
    assert {len(calls) for calls in outcomes.values()} == {1}
    failed = {key: calls[0] for key, calls in outcomes.items() if calls[0] is not None}
    for failure in failed.values():
        assert isinstance(failure, nq.ConnectionError)
        assert failure.peer == before.id
    for client in clients:
        numbers = sorted(number for key, number in failed if key == client.id)
        assert numbers == list(range(len(numbers)))
        assert 0 < len(numbers) < during
    arrived = set()
    while len(arrived) < len(outcomes) - len(failed):
        message = outage.server.get(timeout=WAIT_S)
        assert message.data not in arrived
        if message.data[0] != "start":
            arrived.add(message.data)
    assert arrived.isdisjoint(failed)
    assert arrived | set(failed) == set(outcomes)
