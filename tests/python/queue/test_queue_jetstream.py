"""Queues that a NATS server stores with JetStream."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import itertools
import os
import signal
import subprocess
import sys
import threading
import uuid
from argparse import Namespace
from pathlib import Path
from typing import Any

import forking
import nats.errors
import nats.js.errors
import numpy as np
import pytest
from brokers import NatsServer, cluster, connected, jetstream, version
from stored_queues import Queues, stored

from harness import eventually
from ucall import queue as nq
from ucall.aio import queue as anq
from ucall.queue.jetstream import stored as stored_module

WAIT_S = 60


def test_messages_outlive_the_process_that_put_them(queues: Queues) -> None:
    client = queues.client()
    array = np.arange(10_000)
    objects = [1, "two", b"three" * 1000, {"it": array}, None]
    futures = [client.put(data) for data in objects]
    for future in futures:
        future.result(WAIT_S)
    client.close()
    assert client.state == "closed"
    server = queues.server()
    messages = [server.get(timeout=WAIT_S) for _ in objects]
    assert [message.data for message in messages[:3]] == objects[:3]
    got = messages[3].data["it"]
    assert np.array_equal(got, array)
    got[0] = 7
    assert {message.peer for message in messages} == {client.id}
    assert not any(message.redelivered for message in messages)
    with pytest.raises(TimeoutError):
        server.get(timeout=0.01)
    # It removes what is acknowledged.
    assert eventually(lambda: stored(queues) == 0)


def test_each_message_goes_to_one_server_of_the_group(queues: Queues) -> None:
    servers = [queues.server() for _ in range(3)]
    client, got = queues.client(), [[] for _ in servers]  # type: ignore[var-annotated]

    def get(server: nq.jetstream.server.Communicator, mine: list[int]) -> None:
        with contextlib.suppress(nq.ConnectionError):
            while True:
                mine.append(server.get().data)

    threads = [threading.Thread(target=get, args=it) for it in zip(servers, got, strict=True)]
    for thread in threads:
        thread.start()
    for number in range(300):
        client.put(number)
    assert eventually(lambda: sum(map(len, got)) >= 300)
    queues.close()
    for thread in threads:
        thread.join(WAIT_S)
    assert sorted(itertools.chain(*got)) == list(range(300))
    assert sum(bool(mine) for mine in got) > 1


def test_a_server_that_works_keeps_no_messages_from_others(queues: Queues) -> None:
    client, busy, other = queues.client(), queues.server(), queues.server()
    for number in range(1000):
        client.put(number)
    # It is quick, so its pulls are long by now.
    assert [busy.get(timeout=WAIT_S).data for _ in range(1000)] == list(range(1000))
    for number in range(500):
        client.put(number).result(WAIT_S)
    # A pull of one message may have been in flight.
    got = [other.get(timeout=WAIT_S).data for _ in range(499)]
    assert got == sorted(set(got)) and set(got) <= set(range(500))


def test_a_get_that_does_not_wait_returns_what_has_arrived(queues: Queues) -> None:
    client, server = queues.client(), queues.server()
    client.put("x").result(WAIT_S)
    with pytest.raises(TimeoutError):
        server.get(timeout=0)
    # It has this one pulled, although none waits any more.
    assert eventually(lambda: len(server._receiver()._deliveries.pulled) == 1)
    assert server.get(timeout=0).data == "x"


def test_what_a_server_does_not_acknowledge_goes_to_another_one(queues: Queues) -> None:
    client = queues.client()
    futures = [client.put(number) for number in range(3)]
    for future in futures:
        future.result(WAIT_S)
    first = queues.server("explicit")
    messages = [first.get(timeout=WAIT_S) for _ in range(3)]
    assert not any(message.redelivered for message in messages)
    messages[1].ack()
    messages[1].ack()
    first.close()
    with pytest.raises(nq.ConnectionError):
        messages[0].ack()
    with pytest.raises(nq.ConnectionError):
        first.get()
    second = queues.server("explicit")
    again = [second.get(timeout=WAIT_S) for _ in range(2)]
    assert sorted((it.data, it.redelivered) for it in again) == [(0, True), (2, True)]
    for message in again:
        message.ack()
    assert eventually(lambda: stored(queues) == 0)


DROPPED = """
import multiprocessing, sys
from ucall import queue as nq

def put():
    options = nq.CommunicatorOptions(
        netloc=nq.NetworkLocation(port=int(sys.argv[1])), broker=nq.BrokerOptions(topic=sys.argv[2])
    )
    queue = nq.new("jetstream", "client", options)
    return [queue.put(number) for number in range(100)]

if sys.argv[3] == "child":
    child = multiprocessing.get_context("fork").Process(target=put)
    child.start()
    child.join()
else:
    futures = put()
"""


@pytest.mark.parametrize("process", ["program", "child"])
def test_a_program_stores_what_a_dropped_queue_has(queues: Queues, process: str) -> None:
    command = [sys.executable, "-c", DROPPED, str(queues.broker.port), queues.topic, process]
    ended = forking.run(command, timeout=WAIT_S)
    assert ended.returncode == 0, ended.stderr
    assert stored(queues) == 100


KILLED = """
import os, sys, time
from ucall import queue as nq
port, topic, ack = sys.argv[1:]
options = nq.CommunicatorOptions(
    netloc=nq.NetworkLocation(port=int(port)), broker=nq.BrokerOptions(topic=topic),
    connection=nq.ConnectionOptions(ack=ack, expire_s=0.5),
)
queue = nq.new("jetstream", "server", options)
os.write(1, b"%d\\n" % queue.get().data)
time.sleep(600)
"""


@pytest.mark.parametrize("ack", ["taken", "explicit"])
def test_a_killed_server_loses_what_it_had_taken_or_nothing(queues: Queues, ack: str) -> None:
    client = queues.client()
    command = [sys.executable, "-c", KILLED, str(queues.broker.port), queues.topic, ack]
    with forking.Python(command, stdout=subprocess.PIPE) as killed:
        assert killed.stdout is not None
        client.put(1).result(WAIT_S)
        assert killed.stdout.readline() == b"1\n"
        if ack == "taken":
            assert eventually(lambda: stored(queues) == 0)
        killed.kill()
    client.put(2).result(WAIT_S)
    server = queues.server()
    expected = {(2, False)} if ack == "taken" else {(2, False), (1, True)}
    got = {(it.data, it.redelivered) for it in (server.get(timeout=WAIT_S) for _ in expected)}
    assert got == expected


def test_a_message_is_held_while_its_server_lives(queues: Queues) -> None:
    busy = queues.server("explicit", expire_s=0.3)
    # The first server of a group sets its time.
    assert eventually(lambda: busy.state == "connected")
    idle, client = queues.server("explicit"), queues.client()
    client.put("long").result(WAIT_S)
    message = busy.get(timeout=WAIT_S)
    with pytest.raises(TimeoutError):
        idle.get(timeout=1)
    message.ack()
    assert eventually(lambda: stored(queues) == 0)


def test_puts_wait_for_a_broker_that_is_gone(tmp_path: Path) -> None:
    broker = NatsServer(*jetstream(tmp_path / "node"))
    with contextlib.closing(Queues(broker)) as queues:
        client, server = queues.client(), queues.server()
        early = client.put("early")
        with broker:
            early.result(WAIT_S)
            assert server.get(timeout=WAIT_S).data == "early"
            assert server.state == client.state == "connected"
            broker.kill()
            puts = [client.put(number) for number in range(100)]
            assert eventually(lambda: client.state == "connecting")
            broker.start()
            for put in puts:
                put.result(WAIT_S)
            # A message that was taken before the kill may come again.
            got: set[Any] = {"early"}
            while len(got) < 101:
                got.add(server.get(timeout=WAIT_S).data)
            assert got == {"early", *range(100)}
            queues.close()


def test_a_lost_connection_marks_what_was_stored(tmp_path: Path) -> None:
    """A broker that is killed may have forgotten that it has delivered them."""
    with (
        NatsServer(*jetstream(tmp_path / "node")) as broker,
        contextlib.closing(Queues(broker)) as queues,
    ):
        client, server = queues.client(), queues.server()
        for number in range(3):
            client.put(number).result(WAIT_S)
        first = server.get(timeout=WAIT_S)
        broker.kill()
        broker.start()
        client.put(3).result(WAIT_S)
        got = {first.data: first.redelivered}
        while len(got) < 4:
            message = server.get(timeout=WAIT_S)
            # The acknowledgement of the first one may be lost, too.
            got.setdefault(message.data, message.redelivered)
        assert got == {0: False, 1: True, 2: True, 3: got[3]}
        client.put(4).result(WAIT_S)
        last = server.get(timeout=WAIT_S)
        assert (last.data, last.redelivered) == (4, False)
        queues.close()


def test_a_new_leader_of_the_group_marks_what_was_stored(tmp_path: Path) -> None:
    """A node that is killed may have told the others of none of its deliveries."""

    async def leader(connection: Any) -> str | None:
        try:
            info = await connection.jetstream().consumer_info(stream, "ucall")
        except nats.errors.Error:
            return None  # An election.
        return info.cluster.leader  # type: ignore[no-any-return]

    async def step_down(connection: Any) -> None:
        subject = f"$JS.API.CONSUMER.LEADER.STEPDOWN.{stream}.ucall"
        assert b'"success":true' in (await connection.request(subject, timeout=WAIT_S)).data

    with cluster(store=tmp_path) as nodes, contextlib.closing(Queues(nodes[0])) as queues:
        stream, url = queues.topic.replace(".", "=2E"), nodes[0].url
        replicated = {"replicas": 3}
        client, server = queues.client(broker=replicated), queues.server(broker=replicated)
        for number in range(2):
            client.put(number).result(WAIT_S)
        # Possibly a repeat, if the stream had no leader yet when it was put.
        server.get(timeout=WAIT_S)
        before = connected(url, leader)
        connected(url, step_down)
        assert eventually(lambda: connected(url, leader) not in (before, None))
        # A server looks for the leader if it has got nothing for a second.
        server._receiver()._pulls.arrived_at -= 1.1
        assert server.get(timeout=WAIT_S).redelivered
        client.put(2).result(WAIT_S)
        assert not server.get(timeout=WAIT_S).redelivered
        queues.close()


def test_an_old_broker_is_warned_of(queues: Queues, caplog: pytest.LogCaptureFixture) -> None:
    queues.client().put(0).result(WAIT_S)
    assert ("may stop delivering" in caplog.text) == (version() < (2, 10))


def test_puts_fail_once_the_broker_is_gone_for_expire_s(queues: Queues) -> None:
    nowhere = NatsServer()
    queues.broker = nowhere
    client = queues.client(expire_s=0.2)
    with pytest.raises(nq.ConnectionError, match="not stored within expire_s: no connection"):
        client.put("x").result(WAIT_S)
    later = client.put("later")
    with pytest.raises(TimeoutError):
        later.result(0.5)
    assert later.cancel()
    client.close(0.1)
    with pytest.raises(nq.ConnectionError):
        client.put("late").result(WAIT_S)


def test_a_cancelled_put_is_withdrawn_without_a_broker(queues: Queues) -> None:
    queues.broker = NatsServer()
    client = queues.client(queue_size=1000, expire_s=10 * WAIT_S)
    for _ in range(2):
        # There is room for one of them.
        put = client.put(b"x" * 800)
        assert put.cancel() and put.cancel()
        assert concurrent.futures.wait([put], WAIT_S).done == {put}
    client.close(WAIT_S)
    assert not client._sender()._is_aborted


def test_queue_size_bounds_what_waits_for_the_broker(queues: Queues) -> None:
    broker, queues.broker = queues.broker, NatsServer()
    client = queues.client(queue_size=3000)
    for _ in range(2):
        client.put(b"x" * 1000)
    with pytest.raises(nq.FullError):
        client.put(b"x" * 1000)
    blocked = queues.client(queue_size=3000, full="block")
    for _ in range(2):
        blocked.put(b"x" * 1000)
    put = threading.Thread(target=blocked.put, args=(b"x" * 1000,))
    put.start()
    put.join(0.05)
    assert put.is_alive()
    queues.close()
    put.join(WAIT_S)
    assert not put.is_alive()
    queues.broker = broker


def test_a_full_stream_refuses_or_blocks(queues: Queues) -> None:
    client = queues.client(queue_size=5000)
    client.put("first").result(WAIT_S)
    fills = queues.client()
    with pytest.raises(nq.FullError, match="maximum bytes"):
        for _ in range(6):
            fills.put(b"x" * 1000).result(WAIT_S)
    blocks = queues.client(full="block")
    put = blocks.put(b"x" * 1000)
    with pytest.raises(TimeoutError):
        put.result(0.2)
    server = queues.server()
    server.get(timeout=WAIT_S)
    server.get(timeout=WAIT_S)
    put.result(WAIT_S)


def test_a_message_above_max_payload_fails_alone(queues: Queues) -> None:
    client = queues.client()
    futures = [client.put(os.urandom(size)) for size in (10, 1 << 20, 10)]
    with pytest.raises(ValueError, match="the broker's max_payload"):
        futures[1].result(WAIT_S)
    futures[0].result(WAIT_S)
    futures[2].result(WAIT_S)
    with pytest.raises(ValueError, match="message_size"):
        queues.client(message_size=1000).put(b"x" * 2000)


def test_a_message_that_cannot_be_read_is_acknowledged(queues: Queues) -> None:
    client, server = queues.client(), queues.server()
    client.put(Namespace(it=1))
    client.put("next").result(WAIT_S)
    with pytest.raises(nq.RefusedError, match=r"argparse\.Namespace") as caught:
        server.get(timeout=WAIT_S)
    assert caught.value.peer == client.id
    assert caught.value.queue_message.data is None  # type: ignore[attr-defined]
    assert server.get(timeout=WAIT_S).data == "next"
    assert eventually(lambda: stored(queues) == 0)


HOSTILE: list[tuple[bytes, dict[str, str]]] = [
    (b"", {}),
    (b"\x80\x05garbage", {}),
    (b"x" * 10, {"Ucall-Parts": "5,6"}),
    (b"x" * 10, {"Ucall-Parts": "5"}),
    (b"x" * 10, {"Ucall-Parts": "-5,15"}),
    (b"x" * 10, {"Ucall-Parts": "many"}),
    (b"x" * 10, {"Ucall-Parts": "9" * 5000}),
]


def test_any_client_of_nats_may_put(queues: Queues) -> None:
    server = queues.server()
    client = queues.client()
    client.put("before").result(WAIT_S)

    async def put(connection: Any) -> None:
        for payload, headers in HOSTILE:
            await connection.jetstream().publish(queues.topic, payload, headers=headers)

    connected(queues.broker.url, put)
    client.put("after").result(WAIT_S)
    assert server.get(timeout=WAIT_S).data == "before"
    for _ in HOSTILE:
        with pytest.raises(Exception) as caught:
            server.get(timeout=WAIT_S)
        assert caught.value.peer == uuid.UUID(int=0)  # type: ignore[attr-defined]
    assert server.get(timeout=WAIT_S).data == "after"
    raw = nq.SerializationOptions(nq.BytesSerializer().load, nq.BytesSerializer().dump)
    connected(queues.broker.url, lambda it: it.jetstream().publish(queues.topic, b"raw"))
    server.close()
    assert queues.server(serialization=raw).get(timeout=WAIT_S).data == b"raw"


def test_a_put_that_is_sent_again_is_stored_once_or_marked(queues: Queues) -> None:
    """As after a connection that was lost before the broker's answer."""
    client = queues.client()
    client.put("first").result(WAIT_S)
    sender = client._sender()
    refused, lost = sender._finish, []  # type: ignore[var-annotated]

    def lose(put: Any, error: Exception | None) -> None:
        if lost:
            return refused(put, error)
        lost.append(put)
        sender._sent[-1], sender._sent_bytes = put, sender._sent_bytes + put.weight
        sender._send_again(-1)

    sender._finish = lose  # type: ignore[method-assign]
    client.put("second").result(WAIT_S)
    assert lost
    server = queues.server()
    got = [server.get(timeout=WAIT_S).data for _ in range(2)]
    assert got == ["first", "second"]
    with pytest.raises(TimeoutError):
        server.get(timeout=0.1)
    # The broker has forgotten the id of this one.
    lost[0].headers["Nats-Msg-Id"] = "another"
    connected(
        queues.broker.url,
        lambda it: it.jetstream().publish(queues.topic, lost[0].payload, headers=lost[0].headers),
    )
    again = server.get(timeout=WAIT_S)
    assert (again.data, again.redelivered) == ("second", True)


def test_a_put_that_the_broker_takes_for_a_duplicate_of_none_is_stored(queues: Queues) -> None:
    """As nats-server 2.10 answers the repeat of a message that has found a stream full."""
    client, server = queues.client(), queues.server()
    client.put("first").result(WAIT_S)
    broker, ids = client._sender()._broker, []
    publish = broker.publish

    async def answer(topic: str, payload: bytes, reply: str, headers: dict[str, str]) -> None:
        ids.append(headers["Nats-Msg-Id"])
        if len(ids) == 1:
            await publish(reply, b'{"stream": "s", "seq": 0, "duplicate": true}')
        else:
            await publish(topic, payload, reply, headers)

    broker.publish = answer
    client.put("second").result(WAIT_S)
    assert [server.get(timeout=WAIT_S).data for _ in range(2)] == ["first", "second"]
    assert len(set(ids)) == 2


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("server", {}, 'ack: expected "taken" or "explicit"'),
    ("client", {"ack": "taken"}, "ack: is for servers"),
    ("client", {"full": "drop_oldest"}, "full: expected"),
    ("client", {"handshakes": 3}, "handshakes: has no effect"),
    ("client", {"broker": {"topic": "a b"}}, "topic"),
    ("client", {"broker": {"topic": "a.*"}}, "topic"),
    ("client", {"broker": {"topic": "$JS"}}, "topic"),
    ("client", {"broker": {"urls": "http://x"}}, "broker: expected nats://"),
    ("client", {"broker": {"replicas": 0}}, "replicas"),
    ("client", {"broker": {"options": {"no_such": 1}}}, "broker_options: expected"),
    ("client", {"broker": {"user": "a", "options": {"user": "b"}}}, "user is given twice"),
]


@pytest.mark.parametrize(("purpose", "given", "reason"), REFUSED)
def test_options_without_effect_are_refused(
    queues: Queues, purpose: str, given: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        nq.new("jetstream", purpose, queues.options(**given))  # type: ignore[call-overload]


def test_asyncio_wraps_the_blocking_calls(queues: Queues) -> None:
    client, server = queues.client(), queues.server()

    async def main() -> object:
        await asyncio.wrap_future(client.put("awaited"))
        return (await asyncio.to_thread(server.get, timeout=WAIT_S)).data

    assert asyncio.run(main()) == "awaited"
    with pytest.raises(ValueError, match="JetStream"):
        anq.new(nq.Protocol.JETSTREAM)  # type: ignore[arg-type]


def test_a_forked_child_refuses_it(queues: Queues) -> None:
    client, server = queues.client(), queues.server()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            for call in (lambda: client.put(1), lambda: server.get(timeout=0)):
                with pytest.raises(RuntimeError, match="the process that made it"):
                    call()
            client.close()
            server.close()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    client.put("still here").result(WAIT_S)
    assert server.get(timeout=WAIT_S).data == "still here"


def test_a_forked_child_exits_while_its_parent_puts(queues: Queues) -> None:
    client = queues.client()
    held, released = threading.Event(), threading.Event()

    def put() -> None:
        with client._sender()._lock:
            held.set()
            released.wait(WAIT_S)

    thread = threading.Thread(target=put)
    thread.start()
    held.wait()
    child = os.fork()
    if child == 0:
        # Ends a child that waits for a thread that it does not have.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(WAIT_S)
        code = 1
        try:
            stored_module._close_all()
            code = 0
        finally:
            os._exit(code)
    status = os.waitpid(child, 0)[1]
    released.set()
    thread.join()
    assert os.waitstatus_to_exitcode(status) == 0
