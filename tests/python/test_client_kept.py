"""Connections that clients keep for later calls, and pauses before they open others."""

from __future__ import annotations

import itertools
import threading

import pytest
from both_clients import NewClient
from scripted import Peer, answering, http_reply, result, scripted

from harness import eventually
from ucall._cli.progress import ProgressObserver
from ucall._client import sockets
from ucall._client.backoff import backoff
from ucall.client import Client


def check_a_minute(
    monkeypatch: pytest.MonkeyPatch, new_client: NewClient, **options: object
) -> None:
    def call_twice() -> None:
        with new_client(port=server.port, **options) as client:
            assert [client.echo(number).json for number in (1, 2)] == [[1], [2]]

    assert sockets.IDLE_MAX_S == 60
    with scripted(answering()) as server:
        call_twice()
        assert server.accepted == 1
        monkeypatch.setattr(sockets, "IDLE_MAX_S", 0.0)
        call_twice()
        assert server.accepted == 3


def test_a_connection_is_not_used_after_a_minute(
    monkeypatch: pytest.MonkeyPatch, new_client: NewClient
) -> None:
    check_a_minute(monkeypatch, new_client)


def test_an_observed_connection_is_not_used_after_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is one of those that TLS uses."""
    check_a_minute(monkeypatch, Client, _observer=ProgressObserver(is_verbose=False, has_bar=False))


def test_sixteen_idle_connections_are_kept() -> None:
    all_called = threading.Barrier(20)

    def answer(peer: Peer) -> None:
        peer.http_request()
        all_called.wait(60)
        peer.send(http_reply(result(1, id="x")))
        peer.http_request()

    with scripted(answer) as server:
        client = Client(port=server.port).with_options(id="x")
        threads = [threading.Thread(target=client.echo) for _ in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert eventually(lambda: server.ended == 4)
        assert len(client._pool._idle) == 16
        client.close()
        assert eventually(lambda: server.ended == 20)


def test_pauses_grow_to_ten_seconds() -> None:
    for number, pause in enumerate(itertools.islice(backoff(), 20)):
        longest = min(0.1 * 2**number, 10)
        assert longest / 2 <= pause <= longest
    first = [next(backoff()) for _ in range(200)]
    assert min(first) < 0.075 < max(first)
