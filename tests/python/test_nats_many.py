"""Servers that clients find by NATS, and its nodes, killed, drained and restarted under load."""

from __future__ import annotations

import asyncio
import json
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nats
import pytest
from brokers import NatsServer, cluster, registered
from many_servers import Load, load, rounds, servers
from test_many_servers import check

import ucall
from harness import HOST, eventually

COUNT = 4
KINDS = pytest.mark.parametrize("kind", ["threads", "tasks"])
#: nats-py would wait for two seconds.
AGAIN = {"reconnect_time_wait": 0.05}


@pytest.fixture
def nodes() -> Iterator[list[NatsServer]]:
    with cluster() as started:
        yield started


def uri(nodes: list[NatsServer], scheme: str = "") -> str:
    urls = ",".join(f"{HOST}:{node.port}" for node in nodes)
    return f"nats{scheme}://{urls}/models"


def run_arguments(nodes: list[NatsServer], **more: Any) -> dict[str, Any]:
    urls = ",".join(node.url for node in nodes)
    return {"broker": urls, "group": "models", "broker_options": AGAIN, **more}


@KINDS
@pytest.mark.parametrize("scheme", ["", "+tcp"])
def test_killed_servers_and_nodes_fail_only_the_calls_on_the_servers(
    tmp_path: Path, nodes: list[NatsServer], kind: str, scheme: str
) -> None:
    kills: list[tuple[float, float]] = []
    with servers(tmp_path, COUNT, run_arguments(nodes)) as running:
        assert registered(nodes[0], COUNT)
        with load(uri(nodes, scheme), kind, broker_options=AGAIN) as made:
            for number in rounds(COUNT):
                nodes[number % 3].kill()
                victim = number % COUNT
                kills.append(running.kill(victim))
                assert made.goes_on()
                running.restart(victim)
                nodes[number % 3].start()
                assert made.goes_on()
        check(made, running.begun())
    for failure in made.failures:
        assert failure.method == "once", failure
        assert isinstance(failure.error, ucall.ConnectionError) and failure.error.may_have_run
        is_of = (began <= failure.ended and failure.began <= ended for began, ended in kills)
        assert any(is_of), failure


@KINDS
def test_a_rolling_restart_fails_no_call(
    tmp_path: Path, nodes: list[NatsServer], kind: str
) -> None:
    with servers(tmp_path, COUNT, run_arguments(nodes)) as running:
        assert registered(nodes[0], COUNT)
        with load(uri(nodes), kind, broker_options=AGAIN) as made:
            for number in rounds(COUNT):
                victim = number % COUNT
                running.signal(victim, signal.SIGTERM)
                running.restart(victim)
                assert made.goes_on()
        check(made, running.begun())
    assert made.failures == []
    assert all(count == 1 for count in running.begun().values())


def test_a_rolling_restart_fails_no_call_of_any_client_of_nats(
    tmp_path: Path, nodes: list[NatsServer]
) -> None:
    """The drain takes a server off the broker's list before it refuses calls."""
    with servers(tmp_path, 2, run_arguments(nodes)) as running:
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
    for number in range(4):
        running.signal(number % 2, signal.SIGTERM)
        await asyncio.to_thread(running.restart, number % 2)
        assert await asyncio.to_thread(registered, nodes[0], 2)
    has_ended = True
    await asyncio.gather(*tasks)
    await connection.close()
    return replies


@KINDS
def test_idempotent_calls_through_nats_survive_a_killed_node(
    tmp_path: Path, nodes: list[NatsServer], kind: str
) -> None:
    """No server can be reached directly, so all calls go through the broker."""
    with servers(tmp_path, 2, run_arguments(nodes, advertise="")) as running:
        assert registered(nodes[0], 2)
        with load(uri(nodes), kind, broker_options=AGAIN) as made:
            for number in rounds(3):
                nodes[number % 3].kill()
                assert _goes_on(made)
                nodes[number % 3].start()
                assert _goes_on(made)
        check(made, running.begun())


def _goes_on(made: Load) -> bool:
    before = len(made.succeeded)
    return eventually(lambda: len(made.succeeded) > before + 50)
