"""What a server takes of calls through NATS."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from brokers import NatsServer, connected, registered, request
from test_nats import Seen, broker, error_of, seen, serving

import ucall
from harness import eventually

# The fixtures, for pytest.
__all__ = ["broker", "seen"]


def test_calls_above_the_limit_are_refused(
    broker: NatsServer, monkeypatch: pytest.MonkeyPatch, seen: Seen
) -> None:
    monkeypatch.setattr("ucall._nats.calls._RUNNING_MAX", 1)

    async def call_twice(connection: Any) -> None:
        first = asyncio.ensure_future(
            connection.request("models.wait", timeout=60, headers={"Ucall-Timeout-Ms": "10000"})
        )
        await asyncio.to_thread(seen.started.wait, 60)
        code, _, error = error_of(await connection.request("models.math.add", b"[1]", timeout=60))
        assert code == "-32003" and error["data"] == {"retry_after_ms": 1000}
        first.cancel()

    # The first call would hold up the end for its ten seconds.
    with serving(broker, seen, drain_timeout_s=0.1):
        connected(broker.url, call_twice)


def test_messages_above_the_limit_of_bytes_are_refused(
    broker: NatsServer, monkeypatch: pytest.MonkeyPatch, seen: Seen
) -> None:
    monkeypatch.setattr("ucall._nats.calls._RUNNING_BYTES_MAX", 100)

    async def call(connection: Any) -> None:
        headers = {"Ucall-Call-Id": "waiting"}
        await connection.publish("models.wait", b"[]", reply="nowhere", headers=headers)
        await connection.flush()
        await asyncio.to_thread(seen.started.wait, 60)
        reply = await connection.request("models.math.add", b"[1]", timeout=60)
        assert reply.data == b"2"
        payload = b"[1" + b" " * 70 + b"]"
        code, _, _ = error_of(await connection.request("models.math.add", payload, timeout=60))
        assert code == "-32003"
        await connection.publish("models.$cancel", b"waiting")
        assert (await connection.request("models.math.add", payload, timeout=60)).data == b"2"

    with serving(broker, seen):
        connected(broker.url, call)


def test_notifications_count_until_they_begin(
    broker: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ucall._nats.calls._RUNNING_MAX", 2)
    started, may_end, noted = threading.Event(), threading.Event(), []
    server = ucall.Server(port=0)

    @server
    def block() -> None:
        started.set()
        may_end.wait(60)

    @server
    def note(number: int) -> None:
        noted.append(number)

    server.start(broker=ucall.Broker(url=broker.url, group="models"))
    try:
        assert registered(broker)
        assert server._registered is not None
        calls = server._registered._calls
        assert calls is not None

        async def flood(connection: Any) -> None:
            blocked = asyncio.ensure_future(connection.request("models.block", timeout=60))
            assert await asyncio.to_thread(started.wait, 60)
            for number in range(5):
                await connection.publish("models.note", b"[%d]" % number)

            def were_refused() -> bool:
                return sum(errors for _, errors, _, _ in calls.counts()) == 4

            assert await asyncio.to_thread(eventually, were_refused)
            may_end.set()
            await blocked

        connected(broker.url, flood)
        assert request(broker, "models.note", b"[5]").data == b"null"
        assert noted == [0, 5]
    finally:
        may_end.set()
        server.stop()
