"""`Server.publish` through NATS: subscribers of all servers of a group get each message once."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import forking
import pytest
from brokers import NatsServer, connected, instances, registered

import ucall
from harness import HOST, Wire, eventually

SUBJECT = "models.$publish"


@pytest.fixture
def broker() -> Iterator[NatsServer]:
    with NatsServer() as started:
        yield started


def new_server(**options: Any) -> ucall.Server:
    server = ucall.Server(port=0, **ucall.options.arguments(options))

    @server
    def follow(ctx: ucall.Context, topic: str) -> None:
        ctx.subscribe(topic)

    return server


@contextmanager
def serving(broker: NatsServer, count: int, group: str = "models") -> Iterator[list[ucall.Server]]:
    servers = [new_server() for _ in range(count)]
    for server in servers:
        server.start(
            broker=ucall.Broker(url=broker.url, group=group, options={"reconnect_time_wait": 0.05})
        )
    try:
        assert registered(broker, count, group)
        yield servers
    finally:
        for server in servers:
            server.stop()


@contextmanager
def followers(ports: list[int], topic: str = "news") -> Iterator[list[Wire]]:
    """A client of each server, which has subscribed."""
    with ExitStack() as stack:
        wires = [stack.enter_context(Wire(port)) for port in ports]
        for wire in wires:
            wire.result("follow", [topic])
        yield wires


def message(method: str, params: Any = ...) -> dict[str, Any]:
    members = {} if params is ... else {"params": params}
    return {"jsonrpc": "2.0", "method": method, **members}


def test_subscribers_of_all_servers_get_each_message_once_and_in_order(broker: NatsServer) -> None:
    with (
        serving(broker, 3) as servers,
        followers([server.port for server in servers]) as wires,
    ):
        for number in range(300):
            servers[0].publish("news", "item", [number])
        servers[0].publish("other", "item", [0])
        servers[0].publish("news", "last")
        for wire in wires:
            got = [json.loads(wire.line()) for _ in range(301)]
            assert got == [*(message("item", [it]) for it in range(300)), message("last")]
        # Nothing came twice: this one follows all of them.
        servers[1].publish("news", "end")
        assert all(json.loads(wire.line()) == message("end") for wire in wires)


@pytest.mark.parametrize(
    "params", [None, [], {}, [1, "é", None, 2**70, 0.1], {"a": [1, {"b": "\n"}]}, (1, 2)]
)
@pytest.mark.parametrize("topic", ["news", "a b.*\n>é"])
def test_params_and_topics_arrive_as_they_are(broker: NatsServer, params: Any, topic: str) -> None:
    with (
        serving(broker, 2) as servers,
        followers([server.port for server in servers], topic) as wires,
    ):
        servers[1].publish(topic, "item", params)
        own, other = (json.loads(wire.line()) for wire in reversed(wires))
        assert own == other and own["method"] == "item"
        expected = list(params) if isinstance(params, tuple) else params
        assert own.get("params") == expected and ("params" in own) == (params is not None)


def test_types_that_functions_may_return(broker: NatsServer) -> None:
    numpy = pytest.importorskip("numpy")
    with (
        serving(broker, 2) as servers,
        followers([server.port for server in servers]) as wires,
    ):
        servers[0].publish("news", "item", [numpy.arange(3), b"bytes"])
        own, other = (json.loads(wire.line()) for wire in wires)
        assert own == other
        with pytest.raises(ValueError, match="cannot be"):
            servers[0].publish("news", "item", [object()])


def test_groups_are_apart(broker: NatsServer) -> None:
    with (
        serving(broker, 1) as [one],
        serving(broker, 1, "others") as [other],
        followers([other.port]) as [wire],
    ):
        one.publish("news", "foreign")
        other.publish("news", "own")
        assert json.loads(wire.line()) == message("own")


def test_after_the_end_of_the_broker_messages_arrive_again(broker: NatsServer) -> None:
    with (
        serving(broker, 2) as servers,
        followers([server.port for server in servers]) as wires,
    ):
        broker.kill()
        servers[0].publish("news", "lost")
        assert json.loads(wires[0].line()) == message("lost")  # Its own subscribers get it.
        broker.start()
        assert registered(broker, 2)
        servers[0].publish("news", "last")
        while (got := json.loads(wires[1].line())) != message("last"):
            assert got == message("lost")


def test_messages_above_the_limits_are_dropped_and_counted(
    broker: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        serving(broker, 2) as servers,
        followers([server.port for server in servers]) as wires,
    ):
        monkeypatch.setattr("ucall._nats.publisher._WAITING_BYTES_MAX", 10)
        servers[0].publish("news", "lost")
        monkeypatch.undo()
        servers[0].publish("news", "long", ["x" * 1_048_576])
        servers[0].publish("news", "last")
        assert json.loads(wires[1].line()) == message("last")
        assert servers[0].stats()["dropped_messages"] == 2
        got = [json.loads(wires[0].line())["method"] for _ in range(3)]
        assert got == ["lost", "long", "last"]


@pytest.mark.parametrize("has_room", [True, False])
def test_messages_wait_for_the_broker_up_to_the_limit(
    monkeypatch: pytest.MonkeyPatch, has_room: bool
) -> None:
    broker = NatsServer()
    server = ucall.Server(port=0)
    server.start(broker=ucall.Broker(url=broker.url, group="models"))
    try:
        assert server._registered is not None
        publisher = server._registered.publisher
        assert publisher is not None
        server.publish("news", "first")
        length = publisher._waiting_bytes
        limit = 2 * length - (not has_room)
        monkeypatch.setattr("ucall._nats.publisher._WAITING_BYTES_MAX", limit)
        server.publish("news", "other")
        assert publisher._waiting_bytes == length * (1 + has_room)
        assert server.stats()["dropped_messages"] == (0 if has_room else 1)
    finally:
        server.stop()


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"{",
        b"5",
        b"[" * 100_000,
        b'{"origin": "x", "topic": 5, "message": {"method": "m"}}',
        b'{"origin": "x", "topic": "news", "message": 5}',
        b'{"origin": "x", "topic": "news", "message": {"method": 5}}',
        b'{"origin": "x", "topic": "news", "message": {"method": "m", "params": 5}}',
    ],
)
def test_invalid_messages_are_ignored(broker: NatsServer, payload: bytes) -> None:
    with serving(broker, 1) as [server], followers([server.port]) as [wire]:
        valid = {"origin": "x", "topic": "news", "params": None, "message": {"method": "m"}}

        async def send(connection: Any) -> None:
            await connection.publish(SUBJECT, payload)
            await connection.publish(SUBJECT, json.dumps(valid).encode())
            await connection.flush()

        connected(broker.url, send)
        assert json.loads(wire.line()) == message("m")


APP = """
import os, ucall
server = ucall.Server(port=0)

@server
def follow(ctx: ucall.Context) -> int:
    ctx.subscribe("news")
    return os.getpid()

@server
def publish(number: int) -> int:
    server.publish("news", "item", [number])
    return os.getpid()
"""


def test_every_worker_publishes_to_all_workers_of_all_servers_once(
    broker: NatsServer, tmp_path: Path
) -> None:
    (tmp_path / "app.py").write_text(APP)
    command = [sys.executable, "-m", "ucall", "app:server", "--workers", "2", "--group", "models"]
    command += ["--broker", broker.url]
    processes = [forking.Python(command, cwd=tmp_path) for _ in range(2)]
    try:
        assert registered(broker, 2)
        addresses = [it["metadata"]["address"] for it in instances(broker)]
        ports = [int(address.rpartition(":")[2]) for address in addresses]
        with ExitStack() as stack:
            by_worker: dict[int, Wire] = {}

            def has_all_workers() -> bool:
                wire = Wire(ports[len(by_worker) // 2])
                pid = wire.result("follow", [])
                if pid in by_worker:
                    wire.socket.close()
                else:
                    by_worker[pid] = stack.enter_context(wire)
                return len(by_worker) == 4

            assert eventually(has_all_workers)
            publishers: set[int] = set()
            published: list[int] = []

            def has_published_from_all() -> bool:
                with Wire(ports[len(publishers) // 2]) as wire:
                    publishers.add(wire.result("publish", [len(published)]))
                published.append(len(published))
                return len(publishers) == 4

            assert eventually(has_published_from_all)
            for wire in by_worker.values():
                assert sorted(_number(wire) for _ in published) == published
            # None comes twice.
            for wire in by_worker.values():
                wire.socket.settimeout(0.2)
                with pytest.raises(TimeoutError):
                    wire.line()
        for process in processes:
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _number(wire: Wire) -> int:
    [number] = json.loads(wire.line())["params"]
    return int(number)


def test_messages_wait_for_a_broker_that_comes_late() -> None:
    away = NatsServer()
    servers = [new_server(), new_server()]
    options = {"reconnect_time_wait": 0.05}
    servers[0].start(broker=ucall.Broker(url=away.url, group="models", options=options))
    servers[0].publish("news", "early")
    with away:
        servers[1].start(broker=ucall.Broker(url=away.url, group="models"))
        with followers([servers[1].port]) as [wire]:
            assert registered(away, 2)
            servers[0].publish("news", "last")
            lines = [json.loads(wire.line())["method"]]
            if lines == ["early"]:
                lines.append(json.loads(wire.line())["method"])
            assert lines[-1] == "last"
    for server in servers:
        server.stop()


def test_nothing_waits_for_a_broker_that_is_away() -> None:
    server = new_server()
    server.start(broker=ucall.Broker(url=f"nats://{HOST}:1", group="models"))
    with followers([server.port]) as [wire]:
        server.publish("news", "item", [os.getpid()])
        assert json.loads(wire.line()) == message("item", [os.getpid()])
    server.stop()
