"""``Limits(max_calls_per_s=…)``: the calls a second of each caller, over all workers."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from serving import Serve
from test_workers import supervised

import ucall
from harness import HOST, Wire, http, request
from ucall.testing import AsyncTestClient, TestClient

#: So slow that no reserve returns during a test.
RARELY = 1 / 3000


def add(a: int, b: int) -> int:
    return a + b


def limited(burst: int, **options: Any) -> dict[str, Any]:
    return {"limits": ucall.Limits(max_calls_per_s=RARELY, max_burst_calls=burst), **options}


def refused(error: Any) -> bool:
    data = error.data
    assert error.code == -32003 and data["max_calls_per_s"] == pytest.approx(RARELY)
    return 0 < data["retry_after_ms"] <= 3_000_000


@pytest.mark.parametrize("transport", ["http", "ws", "tcp"])
def test_calls_past_the_burst_are_refused(transport: Any) -> None:
    server = ucall.Server(**limited(3))
    server.add(add)
    with TestClient(server, transport=transport) as client:
        assert [client.add(1, b).json for b in range(3)] == [1, 2, 3]
        # The params are not read.
        assert refused(client.add("1").error)
        assert refused(client.absent().error)


def test_the_reserve_returns(serve: Serve) -> None:
    server = serve(add, max_calls_per_s=2.0, max_burst_calls=1)
    with ucall.client.Client(port=server.port) as client:
        served, waits = 0, []
        while served < 3:
            reply = client.add(1, 1)
            if reply.error is not None:
                waits.append(reply.error.data["retry_after_ms"])
            served += reply.error is None
        assert waits and min(waits) > 0 and max(waits) <= 500


def test_without_a_burst_it_is_the_calls_of_a_second() -> None:
    server = ucall.Server(limits=ucall.Limits(max_calls_per_s=0.5))
    server.add(add)
    with TestClient(server) as client:
        assert client.add(1, 1).json == 2
        assert client.add(1, 1).error.data["retry_after_ms"] <= 2000


def test_every_call_of_a_batch_counts() -> None:
    server = ucall.Server(**limited(3))
    server.add(add)
    with TestClient(server) as client:
        with client.batch() as batch:
            replies = [batch.add(1, 1) for _ in range(5)]
        assert [reply.error is not None for reply in replies] == [False] * 3 + [True] * 2
        assert refused(replies[3].error)


def test_users_have_limits_of_their_own() -> None:
    """Wherever they call from; those without a name share that of their address."""

    def auth(ctx: ucall.Context) -> Any:
        return ctx.headers.get("user") or object()

    server = ucall.Server(**limited(2, auth=auth, trusted_proxies=["unix:"]))
    server.add(add)

    def call(user: str, address: str) -> bool:
        headers = {"User": user, "X-Forwarded-For": address}
        return client.with_options(headers=headers).add(1, 1).error is None

    with TestClient(server) as client:
        assert [call("ada", f"192.0.2.{n}") for n in range(3)] == [True, True, False]
        assert [call("bob", "192.0.2.1") for _ in range(3)] == [True, True, False]
        assert [call("", "192.0.2.1") for _ in range(3)] == [True, True, False]
        assert [call("", f"2001:db8::{n}") for n in range(1, 4)] == [True, True, False]
        assert call("", "2001:db8:0:1::1")


def test_connections_of_an_address_share_its_limit(serve: Serve) -> None:
    server = serve(add, max_calls_per_s=RARELY, max_burst_calls=3)
    codes = []
    for _ in range(4):
        with Wire(server.port) as wire:
            wire.send(request("add", [1, 1]))
            codes.append(wire.message().get("error", {}).get("code"))
    assert codes == [None, None, None, -32003]


def test_statuses_have_a_retry_after(serve: Serve) -> None:
    server = serve(add, max_calls_per_s=0.1, max_burst_calls=1)
    body = http(b'{"a":1,"b":1}', "Content-Type: application/json", target="/add")
    with Wire(server.port) as wire:
        wire.send(body)
        assert wire.reply()[0] == 200
        wire.send(body)
        status, head, text = wire.reply()
    assert status == 503 and b"\r\nRetry-After: 10" in head
    assert json.loads(text)["error"]["code"] == -32003


def test_tools_count_once() -> None:
    """Also over raw TCP, where the request of MCP is a call itself."""
    server = ucall.Server(mcp=True, **limited(2))
    server.add(add)
    params = {"name": "add", "arguments": {"a": 1, "b": 2}}
    with TestClient(server, transport="tcp") as client:
        replies = [client.call("tools/call", **params) for _ in range(3)]
    assert [reply.error is not None for reply in replies] == [False, False, True]


def test_routes_and_probes_do_not_count(serve: Serve) -> None:
    server = serve(add, max_calls_per_s=RARELY, max_burst_calls=1)
    with Wire(server.port) as wire:
        for _ in range(3):
            wire.send(http(b"", target="/healthz", method="GET"))
            assert wire.reply()[0] == 200
    with Wire(server.port) as wire:
        assert wire.result("add", [1, 1]) == 2


def test_deferred_calls_count() -> None:
    async def later() -> int:
        await asyncio.sleep(0)
        return 1

    async def run() -> None:
        server = ucall.Server(**limited(5))
        server.add(later)
        async with AsyncTestClient(server) as client:
            replies = await asyncio.gather(*(client.later() for _ in range(9)))
        assert sum(reply.error is None for reply in replies) == 5

    asyncio.run(run())


def test_workers_share_the_limit(tmp_path: Path) -> None:
    source = """
import ucall, os
server = ucall.Server(limits=ucall.Limits(max_calls_per_s=1 / 700, max_burst_calls=40))
@server
def pid() -> int:
    return os.getpid()
"""
    with supervised(tmp_path, "--workers", "2", source=source) as server:
        server.wait_for(2)
        codes, pids = [], set()
        for _ in range(60):
            with Wire(server.port) as wire:
                wire.send(request("pid"))
                reply = wire.message()
                codes.append(reply.get("error", {}).get("code"))
                pids.add(reply.get("result"))
        assert codes == [None] * 40 + [-32003] * 20
        assert len(pids - {None}) == 2
        server.stop()


def test_clients_of_several_servers_do_not_call_another_one(serve: Serve) -> None:
    servers = [serve(add, max_calls_per_s=RARELY, max_burst_calls=1) for _ in range(2)]
    uris = [f"tcp://{HOST}:{server.port}" for server in servers]
    with ucall.client.Client(uris) as client:
        keyed = client.with_options(key="a")
        assert [keyed.add(1, 1).error is None for _ in range(3)] == [True, False, False]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"max_calls_per_s": 0}, "max_calls_per_s: expected a number from 1/28,800 to 100,000"),
        ({"max_calls_per_s": "a"}, "max_calls_per_s: expected a number .* got 'a'"),
        ({"max_calls_per_s": float("nan")}, "max_calls_per_s: .* got nan"),
        ({"max_calls_per_s": 1e7}, "max_calls_per_s: .* got 10000000"),
        ({"max_calls_per_s": 2, "max_burst_calls": 0}, "max_burst_calls: .* 8 hours, 57600, got 0"),
        ({"max_calls_per_s": 2, "max_burst_calls": 57_601}, "max_burst_calls: .* got 57601"),
        ({"max_calls_per_s": 2, "max_burst_calls": 1.5}, "max_burst_calls: .* got 1.5"),
        ({"max_burst_calls": 5}, "max_burst_calls: has no effect without max_calls_per_s"),
    ],
)
def test_options_are_checked(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        ucall.Server(limits=ucall.Limits(**options))
    ucall.Server(limits=ucall.Limits(max_calls_per_s=2, max_burst_calls=57_600))
