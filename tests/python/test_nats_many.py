"""Servers that clients find by NATS, and its nodes, killed, drained and restarted under load."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from signal import Signals
from typing import Any, TypeAlias

import nats
import pytest
from brokers import NatsServer, cluster, registered
from many_servers import SECONDS, Load, Servers, load, rounds, servers

import ucall
from harness import HOST

COUNT, CALLERS = 4, 32 if SECONDS else 8
#: A busy machine loses more calls than these tests allow.
LONG = pytest.mark.skipif(not SECONDS, reason="make test-many-servers runs it")
KINDS = pytest.mark.parametrize("kind", ["threads", "tasks"])
#: nats-py would wait for two seconds.
AGAIN = {"reconnect_time_wait": 0.05}
Ended: TypeAlias = list[tuple[float, float]]


@pytest.fixture
def nodes() -> Iterator[list[NatsServer]]:
    with cluster() as started:
        yield started


def uri(nodes: list[NatsServer], scheme: str = "") -> str:
    urls = ",".join(f"{HOST}:{node.port}" for node in nodes)
    return f"nats{scheme}://{urls}/models"


def broker_options(nodes: list[NatsServer], **more: Any) -> dict[str, Any]:
    urls = ",".join(node.url for node in nodes)
    return {"url": urls, "group": "models", "options": AGAIN, **more}


def disturb(running: Servers, nodes: list[NatsServer], made: Load, sent: Signals) -> Ended:
    """Ends the servers in turn, and kills the nodes: with `make test-many-servers` a server every
    three seconds and a node every ten, otherwise as soon as calls go on. Restarts each. Returns
    from when to when servers were ending."""
    ended, began = [], time.monotonic()
    node_due, node_number = began + 10, 0
    for number in rounds(COUNT if sent is signal.SIGKILL else 2):
        victim = number % COUNT
        if SECONDS:
            assert made.goes_on_until(began + 3 * (number + 1))
        kills_node = not SECONDS or time.monotonic() >= node_due
        if kills_node:
            nodes[node_number % 3].kill()
        if sent is signal.SIGKILL:
            ended.append(running.kill(victim))
            assert made.goes_on()
        else:
            running.signal(victim, sent)
        running.restart(victim)
        if kills_node:
            nodes[node_number % 3].start()
            node_due, node_number = node_due + 10, node_number + 1
        assert made.goes_on()
    return ended


@LONG
@KINDS
@pytest.mark.parametrize("scheme", ["", "+tcp"])
def test_killed_servers_and_nodes_fail_only_the_calls_on_the_servers(
    tmp_path: Path, nodes: list[NatsServer], kind: str, scheme: str
) -> None:
    with servers(tmp_path, COUNT, broker_options(nodes)) as running:
        assert registered(nodes[0], COUNT)
        with load(uri(nodes, scheme), kind, CALLERS, broker_options=AGAIN) as made:
            ended = disturb(running, nodes, made, signal.SIGKILL)
        made.check(running.begun())
    made.check_failures(ended)


@KINDS
@pytest.mark.slow
def test_drained_servers_and_killed_nodes_fail_no_call(
    tmp_path: Path, nodes: list[NatsServer], kind: str
) -> None:
    with servers(tmp_path, COUNT, broker_options(nodes)) as running:
        assert registered(nodes[0], COUNT)
        with load(uri(nodes), kind, CALLERS, broker_options=AGAIN) as made:
            disturb(running, nodes, made, signal.SIGTERM)
        made.check(running.begun())
    assert made.failures == []
    assert all(count == 1 for count in running.begun().values())


def test_a_rolling_restart_fails_no_call_of_any_client_of_nats(
    tmp_path: Path, nodes: list[NatsServer]
) -> None:
    """The drain takes a server off the broker's list before it refuses calls."""
    with servers(tmp_path, 2, broker_options(nodes)) as running:
        assert registered(nodes[0], 2)
        replies = asyncio.run(_restart_under_requests(nodes, running))
        assert sum(replies.values()) > 200
        assert set(replies) == {True}, replies
    assert all(count == 1 for count in running.begun().values())


async def _restart_under_requests(nodes: list[NatsServer], running: Any) -> Counter[Any]:
    replies: Counter[Any] = Counter()
    has_ended = False
    connection = await nats.connect(nodes[1].url)

    async def call_in_turn(caller: int) -> None:
        number = caller
        while not has_ended:
            number += 8
            payload = json.dumps([number]).encode()
            try:
                reply = await connection.request("models.once", payload, timeout=60)
            except nats.errors.Error as error:
                replies[repr(error)] += 1
            else:
                is_right = reply.headers is None and json.loads(reply.data) == number + 1
                replies[is_right or reply.data] += 1

    tasks = [asyncio.ensure_future(call_in_turn(caller)) for caller in range(8)]
    for number in range(2):
        running.signal(number, signal.SIGTERM)
        await asyncio.to_thread(running.restart, number)
        assert await asyncio.to_thread(registered, nodes[0], 2)
    has_ended = True
    await asyncio.gather(*tasks)
    await connection.close()
    return replies


@LONG
@KINDS
def test_calls_through_nats_fail_only_if_they_may_not_be_repeated(
    tmp_path: Path, nodes: list[NatsServer], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No server can be reached directly, so all calls go through the broker, whose nodes end. NATS
    does not report that a reply was lost with a node: its caller waits as long as it allows."""
    monkeypatch.setattr("ucall._nats.group._FIRST_SILENCE_S", 0.3)
    with servers(tmp_path, 2, broker_options(nodes, advertise="")) as running:
        assert registered(nodes[0], 2)
        with load(uri(nodes), kind, broker_options=AGAIN, timeout=3) as made:
            for number in rounds(3):
                nodes[number % 3].kill()
                assert made.goes_on(50)
                nodes[number % 3].start()
                assert made.goes_on(50)
        made.check(running.begun())
    for failure in made.failures:
        assert failure.method == "once", failure
        assert isinstance(failure.error, ucall.ConnectionError | ucall.TimeoutError)
        assert failure.error.may_have_run


@LONG
@KINDS
def test_idempotent_calls_through_nats_leave_a_killed_server(
    tmp_path: Path, nodes: list[NatsServer], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NATS does not report that the server has ended which has a call."""
    monkeypatch.setattr("ucall._nats.group._FIRST_SILENCE_S", 0.3)
    with servers(tmp_path, 2, broker_options(nodes, advertise="")) as running:
        assert registered(nodes[0], 2)
        with load(uri(nodes), kind, broker_options=AGAIN, idempotent=True) as made:
            for number in rounds(3):
                running.kill(number % 2)
                assert made.goes_on()
                running.restart(number % 2)
                # Otherwise the next kill would leave no server at all.
                assert registered(nodes[0], 2)
                assert made.goes_on()
        assert made.wrong == []
    assert made.failures == []
    assert max(made.latencies, key=lambda it: it[1])[1] < 30
