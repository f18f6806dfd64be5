"""Objects that the receiver does not allow: they fail at `put`, or as soon as it is known."""

from __future__ import annotations

import asyncio
import logging
import pickle
from argparse import Namespace
from collections.abc import Callable
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from pairs import Pairs, free_location

from harness import eventually, program
from ucall import queue as nq
from ucall.aio import queue as anq
from ucall.queue.utils import allow as allowed

WAIT_S = 60
Pair = Callable[..., tuple[nq.Communicator, nq.Communicator]]


class Job:
    """Of the program, and allowed by no receiver at first."""

    def __init__(self, number: int = 0) -> None:
        self.number = number

    class Inner:
        pass


NAME = f"{Job.__module__}.Job"


def custom(**given: Any) -> nq.SerializationOptions:
    """A loader whose rules nobody else knows."""
    serializer = nq.PickleSerializer(**given)
    return nq.SerializationOptions(lambda stream: serializer.load(stream), serializer.dump)


@pytest.fixture(autouse=True)
def only_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test allows its classes for itself alone."""
    monkeypatch.setattr(allowed, "_allowed", dict(allowed._allowed))


def connect(server: nq.Communicator, client: nq.Communicator) -> None:
    """Returns once each side knows the names of the other."""
    for source, target, peers in ((client, server, ()), (server, client, (client.id,))):
        future = source.put("here", *peers)
        assert target.get(timeout=WAIT_S).data == "here"
        future.result(WAIT_S)


def test_put_refuses_what_the_peer_does_not_allow(pair: Pair) -> None:
    server, client = pair()
    connect(server, client)
    fix = rf"{NAME} is not allowed: .*nq\.allow\(Job\).*allow_by_name\('{NAME}'\)"
    for data in (Job(), [1, {"job": Job()}], Job, (b"x" * 300_000, Job())):
        with pytest.raises(nq.RefusedError, match=fix) as caught:
            client.put(data)
        assert caught.value.peer == server.id
        assert str(server.id) in str(caught.value)
    with pytest.raises(nq.RefusedError, match="Job is not allowed") as caught:
        server.put(Job(), client.id)
    assert caught.value.peer == client.id
    # All other objects arrive.
    values = [Fraction(1, 3), ValueError("no"), b"\x94\x93\x94" * 10, list(range(10_000))]
    for value in [*values, np.arange(8), {"array": np.zeros(100_000)}]:
        client.put(value).result(WAIT_S)
        assert repr(server.get(timeout=WAIT_S).data) == repr(value)


@pytest.mark.parametrize("pairs", ["tcp", "grpc"], indirect=True)
def test_what_the_peer_allows_arrives(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    server, client = pair()
    connect(server, client)
    with pytest.raises(nq.RefusedError):
        client.put(Job(1))
    nq.allow(Job)
    # At once, though the announcement is on its way.
    client.put(Job(2)).result(WAIT_S)
    assert server.get(timeout=WAIT_S).data.number == 2
    server.put(Job(3), client.id).result(WAIT_S)
    assert client.get(timeout=WAIT_S).data.number == 3
    with pytest.raises(nq.RefusedError, match=r"Job\.Inner is not allowed"):
        client.put(Job.Inner())


@pytest.mark.parametrize("pairs", ["tcp"], indirect=True)
def test_allow_by_name_is_announced(pairs: Pairs) -> None:
    by_name = nq.PickleSerializer.allow_by_name("argparse", "types.SimpleNamespace")
    serializer = nq.PickleSerializer(by_name)
    server = pairs.server(serialization=nq.SerializationOptions(serializer.load, serializer.dump))
    client = pairs.client(server)
    connect(server, client)
    for value in (Namespace(a=1), SimpleNamespace(b=2)):
        client.put(value).result(WAIT_S)
        assert server.get(timeout=WAIT_S).data == value
    with pytest.raises(nq.RefusedError, match="Job is not allowed"):
        client.put(Job())


@pytest.mark.parametrize("pairs", ["tcp", "shm", "mqtt", "grpc", "nats"], indirect=True)
def test_what_is_put_before_the_connection_is_checked_then(pairs: Pairs) -> None:
    given = {"netloc": free_location()} if pairs.protocol in ("tcp", "grpc") else {}
    server = pairs.server(**given)
    place = {"netloc": server.options.netloc, "broker": server.options.broker}
    server.close(0)
    client = pairs.client(server, **place)
    futures = [client.put(data) for data in (1, Job(), 2, [Job()], 3)]
    server = pairs.server(**place)
    assert [server.get(timeout=WAIT_S).data for _ in range(3)] == [1, 2, 3]
    for future in futures[1::2]:
        with pytest.raises(nq.RefusedError, match=f"{NAME} is not allowed") as caught:
            future.result(WAIT_S)
        assert caught.value.peer == server.id
    for future in futures[::2]:
        future.result(WAIT_S)


@pytest.mark.parametrize("ack", ["received", "taken", "explicit"])
def test_get_tells_and_the_sender_is_told(
    pairs: Pairs, ack: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = pairs.server(serialization=custom())
    client = pairs.client(server, ack=ack)
    client.put("first")
    first = server.get(timeout=WAIT_S)
    assert first.data == "first"
    first.ack()
    future, after = client.put(Job()), client.put("next")
    with pytest.raises(
        nq.RefusedError, match=rf"{NAME} is not allowed: .*nq\.allow\(Job\)"
    ) as caught:
        server.get(timeout=WAIT_S)
    error = caught.value
    assert isinstance(error, pickle.UnpicklingError)
    assert error.peer == client.id
    message = error.queue_message  # type: ignore[attr-defined]
    assert (message.peer, message.data) == (client.id, None)
    message.ack()
    following = server.get(timeout=WAIT_S)
    assert following.data == "next"
    following.ack()
    after.result(WAIT_S)
    if ack == "received":
        future.result(WAIT_S)
    else:
        with pytest.raises(nq.RefusedError, match=f"{NAME} is not allowed") as told:
            future.result(WAIT_S)
        assert told.value.peer == server.id
    for line in (
        f"queue {server.id}: a message of peer {client.id} cannot be read: refused: {NAME}",
        f"queue {client.id}: peer {server.id} cannot read a message: refused: {NAME}",
    ):
        eventually(lambda line=line: line in caplog.text, timeout_s=WAIT_S)


@pytest.mark.parametrize("pairs", ["tcp", "mqtt", "nats"], indirect=True)
def test_an_error_of_a_custom_load_has_the_peer(pairs: Pairs) -> None:
    def load(stream: nq.Stream) -> Any:
        raise KeyError("no such key")

    server = pairs.server(serialization=nq.SerializationOptions(load=load))
    client = pairs.client(server, ack="taken")
    future = client.put({"a": 1})
    with pytest.raises(KeyError) as caught:
        server.get(timeout=WAIT_S)
    assert caught.value.peer == client.id  # type: ignore[attr-defined]
    with pytest.raises(nq.RefusedError, match="the peer cannot read it: KeyError: 'no such key'"):
        future.result(WAIT_S)


@pytest.mark.parametrize("pairs", ["tcp"], indirect=True)
def test_a_callable_allow_is_asked_by_the_receiver_alone(pairs: Pairs) -> None:
    asked: list[str] = []
    serializer = nq.PickleSerializer(lambda name: asked.append(name) or name == NAME)
    server = pairs.server(serialization=nq.SerializationOptions(serializer.load, serializer.dump))
    client = pairs.client(server)
    connect(server, client)
    client.put(Job(7)).result(WAIT_S)
    assert server.get(timeout=WAIT_S).data.number == 7
    assert asked == [NAME]


@pytest.mark.parametrize("pairs", ["tcp"], indirect=True)
def test_a_long_list_is_not_announced(pairs: Pairs) -> None:
    names = [f"module{number}.{'x' * 100}" for number in range(1000)]
    serializer = nq.PickleSerializer(nq.PickleSerializer.allow_by_name(*names, NAME))
    server = pairs.server(serialization=nq.SerializationOptions(serializer.load, serializer.dump))
    client = pairs.client(server, ack="taken")
    connect(server, client)
    client.put(Job(7))
    assert server.get(timeout=WAIT_S).data.number == 7
    # Only the server can tell.
    refused = client.put(Namespace())
    with pytest.raises(nq.RefusedError, match="Namespace is not allowed"):
        server.get(timeout=WAIT_S)
    with pytest.raises(nq.RefusedError, match="Namespace is not allowed"):
        refused.result(WAIT_S)


@pytest.mark.parametrize("pairs", ["tcp"], indirect=True)
def test_a_message_to_several_peers_names_the_one_that_refuses(pairs: Pairs) -> None:
    server = pairs.server()
    by_name = nq.PickleSerializer(nq.PickleSerializer.allow_by_name(NAME))
    willing = pairs.client(
        server, serialization=nq.SerializationOptions(by_name.load, by_name.dump)
    )
    other = pairs.client(server)
    for client in (willing, other):
        connect(server, client)
    with pytest.raises(nq.RefusedError) as caught:
        server.put(Job())
    assert caught.value.peer == other.id
    server.put(Job(1), willing.id).result(WAIT_S)
    assert willing.get(timeout=WAIT_S).data.number == 1
    server.put("last")
    # The refused message has reached no client.
    assert [client.get(timeout=WAIT_S).data for client in (willing, other)] == ["last"] * 2


@pytest.mark.parametrize("pairs", ["tcp", "grpc"], indirect=True)
def test_asyncio_refuses_in_the_same_way(pairs: Pairs) -> None:
    server = pairs.server()
    client = pairs.client(server)
    options = client.options
    client.close()

    async def main() -> None:
        async with anq.new(pairs.protocol, nq.Purpose.CLIENT, options) as client:
            # At once, or when the connection is there.
            with pytest.raises(nq.RefusedError, match="Job is not allowed") as caught:
                await client.put(Job())
            assert caught.value.peer == server.id
            with pytest.raises(nq.RefusedError, match="Job is not allowed"):
                client.put(Job())

    asyncio.run(asyncio.wait_for(main(), WAIT_S))


SENDER = """
import sys
from ucall import queue as nq

class Theirs:
    pass

place = nq.CommunicatorOptions(netloc=nq.NetworkLocation("127.0.0.1", int(sys.argv[1])))
with nq.new(options=place) as queue:
    queue.put("here").result(60)
    queue.get(timeout=60)
    try:
        queue.put(Theirs())
    except nq.RefusedError as error:
        print(error.peer)
    queue.put("end").result(60)
"""


@pytest.mark.parametrize("pairs", ["tcp"], indirect=True)
def test_another_process_refuses_at_put(pairs: Pairs) -> None:
    server = pairs.server()
    assert server.address is not None
    with program(SENDER, str(server.address[1])) as process:
        peer = server.get(timeout=WAIT_S).peer
        server.put("there", peer)
        assert server.get(timeout=WAIT_S).data == "end"
        output, errors = process.communicate(timeout=WAIT_S)
    assert (output.strip(), errors) == (str(server.id), "")


def test_the_log_of_names_is_quiet(caplog: pytest.LogCaptureFixture) -> None:
    """An object that fails at `put` is reported by its exception alone."""
    caplog.set_level(logging.WARNING, "ucall")
    serializer = nq.PickleSerializer()
    with pytest.raises(nq.RefusedError, match=f"refused: {NAME} is not allowed") as caught:
        serializer.load(serializer.dump(Job()))
    assert caught.value.peer is None
    assert caplog.text == ""
