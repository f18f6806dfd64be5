"""Clients that find servers by NATS, call them directly, and through NATS while they cannot."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from both_clients import NewClient
from brokers import NatsServer, cluster, registered, request

import ucall
from harness import HOST, eventually, free_port
from ucall import aio
from ucall._client.address import Addresses
from ucall._nats.group import Group
from ucall.client import Client

#: Less than any limit of what is tested, so that none of them hides a fault.
WAIT_S = 50
SCHEMES = pytest.mark.parametrize("scheme", ["", "http", "tcp", "ws"])


@pytest.fixture(scope="module")
def module_broker() -> Iterator[NatsServer]:
    with NatsServer() as started:
        yield started


_groups = iter(range(1_000_000))


@pytest.fixture
def group() -> str:
    """A group of this test's own, so that tests share a broker."""
    return f"group{next(_groups)}"


@contextmanager
def serving(broker: NatsServer, group: str, count: int = 1, **options: Any) -> Iterator[Any]:
    """Registered servers; ``server`` has options of the servers."""
    servers = [
        ucall.Server(port=0, **ucall.options.arguments(options.get("server", {})))
        for _ in range(count)
    ]
    arguments = {name: value for name, value in options.items() if name != "server"}
    cancelled = threading.Event()
    began: list[int] = []
    for server in servers:

        @server
        def add(a: int, b: int) -> int:
            began.append(a)
            return a + b

        @server(idempotent=True)
        def through(ctx: ucall.Context) -> bool:
            return ctx.broker is not None

        @server
        def fail() -> None:
            raise ucall.RPCError(7, "no such item", {"item": 3})

        @server
        def generate(count: int) -> Iterator[int]:
            yield from range(count)

        @server
        async def wait() -> None:
            began.append(-1)
            try:
                await asyncio.sleep(10 * WAIT_S)
            except asyncio.CancelledError:
                cancelled.set()
                raise

        server.start(broker=ucall.Broker(url=broker.url, group=group, **arguments))
    try:
        assert registered(broker, count, group)
        servers[0].cancelled, servers[0].began = cancelled, began
        yield servers[0] if count == 1 else servers
    finally:
        for server in servers:
            server.stop()


def requests_through(broker: NatsServer, group: str) -> int:
    stats = json.loads(request(broker, f"$SRV.STATS.{group}").data)
    return sum(it["num_requests"] for it in stats["endpoints"])


@SCHEMES
def test_servers_are_found_and_called_directly(
    module_broker: NatsServer, group: str, new_client: NewClient, scheme: str
) -> None:
    with serving(module_broker, group, 2) as servers:
        with new_client(module_broker.uri(group, scheme)) as client:
            assert all(client.call("add", number, 1).json == number + 1 for number in range(50))
            assert client.call("through").json is False
        assert all(server.stats()["calls"] > 0 for server in servers)
        assert requests_through(module_broker, group) == 0


@SCHEMES
def test_calls_go_through_nats_if_no_address_can_be_reached(
    module_broker: NatsServer, group: str, new_client: NewClient, scheme: str
) -> None:
    with serving(module_broker, group, advertise=f"{HOST}:{free_port()}") as server:
        with new_client(module_broker.uri(group, scheme)) as client:
            assert client.call("add", 1, 2).json == 3
            assert client.call("through").json is True
            assert client.call("fail").error.code == 7
            with pytest.raises(ucall.RPCError) as raised:
                client.call("fail").raise_for_status()
            assert (raised.value.message, raised.value.data) == ("no such item", {"item": 3})
            assert client.call("nobody").error.code == -32601
            assert client.call("add", 1).error.code == -32602
        assert server.began == [1]


def test_a_deadline_holds_through_nats(
    module_broker: NatsServer, group: str, new_client: NewClient
) -> None:
    with serving(module_broker, group, advertise="") as server:
        with new_client(module_broker.uri(group), timeout=0.5) as client:
            client.call("add", 1, 2)
            with pytest.raises((ucall.TimeoutError, ucall.RPCError)) as raised:
                client.call("wait").raise_for_status()
            assert getattr(raised.value, "code", -32001) == -32001
        assert server.cancelled.wait(WAIT_S)


def test_a_cancelled_call_is_cancelled_at_the_server(module_broker: NatsServer, group: str) -> None:
    async def main(server: Any) -> None:
        # Past its time limit the server would cancel the call itself.
        async with aio.Client(module_broker.uri(group), timeout=10 * WAIT_S) as client:
            await client.add(1, 2)
            task = asyncio.ensure_future(client.call("wait"))
            while not server._core.stats()["calls"] >= 2:
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await asyncio.to_thread(server.cancelled.wait, WAIT_S)

    with serving(module_broker, group, advertise="") as server:
        asyncio.run(main(server))


def test_batches_and_notifications_go_through_nats(
    module_broker: NatsServer, group: str, new_client: NewClient
) -> None:
    with (
        serving(module_broker, group, advertise="") as server,
        new_client(module_broker.uri(group)) as client,
    ):
        with client.batch() as batch:
            three, wrong = batch.add(1, 2), batch.add("x", 2)
            batch.notify("add", 5, 6)
        assert three.json == 3 and wrong.error is not None and wrong.error.code == -32602
        client.notify("add", 8, 9)
        assert eventually(lambda: sorted(server.began) == [1, 5, 8])


def test_a_long_request_goes_directly(
    module_broker: NatsServer, group: str, new_client: NewClient
) -> None:
    with serving(module_broker, group), new_client(module_broker.uri(group)) as client:
        error = client.call("add", "x" * 2_000_000, 1).error
        assert error is not None and error.code == -32602


def test_streams_go_directly(module_broker: NatsServer, group: str, new_client: NewClient) -> None:
    def items(uri: str) -> list[int]:
        with new_client(uri) as client:
            return list(client.stream.generate(3))

    with serving(module_broker, group):
        for scheme in ("", "tcp", "ws"):
            assert items(module_broker.uri(group, scheme)) == [0, 1, 2]
    with (
        serving(module_broker, group, advertise=""),
        pytest.raises(ucall.ConnectionError, match="as streams need"),
    ):
        items(module_broker.uri(group))


def test_a_group_without_servers(
    module_broker: NatsServer, group: str, new_client: NewClient
) -> None:
    with pytest.raises(ucall.ConnectionError, match=f"no server of the group {group}") as raised:
        new_client(module_broker.uri(group)).call("add", 1, 2)
    assert raised.value.may_have_run is False


def test_no_broker(new_client: NewClient) -> None:
    with pytest.raises(ucall.ConnectionError, match="cannot connect to NATS at") as raised:
        uri = f"nats://ann:secret@{HOST}:{free_port()}/models"
        new_client(uri).call("add", 1, 2)
    assert raised.value.may_have_run is False and "secret" not in str(raised.value)


def test_known_servers_are_called_without_the_broker(group: str, new_client: NewClient) -> None:
    with (
        NatsServer() as broker,
        serving(broker, group),
        new_client(broker.uri(group)) as client,
    ):
        assert client.call("add", 1, 2).json == 3
        broker.kill()
        assert all(client.call("add", number, 1).json == number + 1 for number in range(50))
        broker.start()


def test_a_new_server_is_found_when_the_old_one_ends(
    module_broker: NatsServer, group: str, new_client: NewClient
) -> None:
    with serving(module_broker, group) as old, new_client(module_broker.uri(group)) as client:
        assert client.call("add", 1, 2).json == 3
        with _second(module_broker, group):
            old.stop()
            # At first through NATS, then directly again.
            assert all(client.call("add", number, 1).json == number + 1 for number in range(50))
            assert eventually(lambda: client.call("through").json is False)


@contextmanager
def _second(broker: NatsServer, group: str) -> Iterator[None]:
    server = ucall.Server(port=0)
    server.add(lambda a, b: a + b, name="add")

    @server(idempotent=True)
    def through(ctx: ucall.Context) -> bool:
        return ctx.broker is not None

    server.start(broker=ucall.Broker(url=broker.url, group=group))
    assert registered(broker, 2, group)
    try:
        yield
    finally:
        server.stop()


def test_an_address_is_called_directly_again_when_it_can_be_reached(
    module_broker: NatsServer, group: str, new_client: NewClient
) -> None:
    """As a firewall that is opened."""
    port = free_port()
    with (
        serving(module_broker, group, advertise=f"{HOST}:{port}") as server,
        new_client(module_broker.uri(group)) as client,
    ):
        assert client.through().json is True
        direct = ucall.Server(port=port)
        direct.add(lambda: "direct", name="through")
        with direct:
            assert eventually(lambda: client.through().json == "direct")
        assert eventually(lambda: client.through().json is True)
        assert server.stats()["calls"] > 0


def test_a_forked_child_has_a_connection_of_its_own(module_broker: NatsServer, group: str) -> None:
    with (
        serving(module_broker, group, advertise=""),
        Client(module_broker.uri(group)) as client,
    ):
        assert client.add(1, 2).json == 3
        child = os.fork()
        if child == 0:
            status = 1
            try:
                status = 0 if client.add(2, 3).json == 5 else 2
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        assert client.add(3, 4).json == 7


def test_a_call_that_waits_for_the_connection_to_a_broker_has_not_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def connect(_: Group) -> None:
        await asyncio.sleep(WAIT_S)

    monkeypatch.setattr(Group, "_connected", connect)
    with Client(f"nats://{HOST}:1/models") as client:
        request = client._options.writer.call("add", (1, 2), None, 1)
        with pytest.raises(ucall.TimeoutError) as raised:
            asyncio.run(client._pool._servers.group.exchange(request, (1,), 0.01))
    assert not raised.value.may_have_run


def test_a_connection_that_a_time_limit_has_cut_off_is_closed(new_client: NewClient) -> None:
    """A broker that accepts it, and says nothing."""
    with socket.create_server((HOST, 0)) as silent:
        port = silent.getsockname()[1]

        with new_client(f"nats://{HOST}:{port}/models", timeout=0.2) as client:
            with pytest.raises(ucall.TimeoutError) as raised:
                client.call("add", 1, 2)
            assert not raised.value.may_have_run
        accepted, _ = silent.accept()
        with accepted:
            accepted.settimeout(60)
            assert accepted.recv(1) == b""


@pytest.mark.parametrize(
    ("uri", "options"),
    [
        ("nats://a/g", {}),
        ("nats+ws://a/g", {}),
        ("nats+https://a/g", {}),
        ("nats+wss://a/g", {}),
    ],
)
def test_headers_need_tls_with_an_expected_name(
    uri: str, options: dict[str, Any], new_client: NewClient
) -> None:
    with pytest.raises(ValueError, match="only under TLS with a name that is expected"):
        new_client(uri, headers={"Authorization": "Bearer secret"}, **options)
    if "w" not in uri:
        with pytest.raises(ValueError, match="only under TLS with a name that is expected"):
            new_client(uri, **options).with_options(headers={"X-Key": "secret"})
    new_client("nats+https://a/g", headers={"X-Key": "secret"}, server_hostname="b")


@pytest.mark.parametrize(
    ("uri", "options", "message"),
    [
        ("nats://a", {}, "expected nats://host:port/group"),
        ("nats://a/", {}, "expected nats://host:port/group"),
        ("nats://a,nats://b", {}, "expected nats://host:port"),
        ("nats://a/b.c", {}, "expected nats://host:port/group"),
        ("nats://u:secret@a/b.c", {}, "'nats://a/b.c': expected"),
        ("nats:///g", {}, "broker: expected"),
        ("nats+udp://a/g", {}, "expected direct calls over"),
        ("nats+unix://a/g", {}, "expected"),
        ("nats+x://a/g", {}, "expected http://"),
        ("nats://a/g", {"port": 4222}, "port: servers"),
        ("nats://a/g", {"server_hostname": "b"}, "server_hostname: expected nats+https"),
        ("nats://a/g", {"broker_options": {"servers": []}}, "broker_options: expected"),
        ("nats://a/g", {"reconnect": True}, "reconnect"),
        ("http://a", {"broker_options": {}}, "broker_options: are for"),
        (["a", "b"], {"broker_options": {}}, "broker_options: are for"),
        ("dns://a", {"server_hostname": "b"}, "server_hostname: is for"),
        ("https://a", {"server_hostname": "b"}, "server_hostname: is for"),
    ],
)
def test_arguments_that_are_refused(
    uri: Any, options: dict[str, Any], message: str, new_client: NewClient
) -> None:
    with pytest.raises(ValueError) as raised:
        new_client(uri, **options)
    assert message in str(raised.value) and "secret" not in str(raised.value)


def test_several_brokers() -> None:
    addresses = Addresses("nats+tcp://ann:x@a:1,b,nats://[::1]:2/models")
    assert addresses.brokers == ["nats://ann:x@a:1", "nats://b", "nats://[::1]:2"]
    assert (addresses.group, str(addresses)) == ("models", "the group models")
    found = addresses.found("10.0.0.1:5", ["http", "tcp"])
    assert str(found) == "tcp://10.0.0.1:5"
    assert addresses.found("10.0.0.1:5", ["https"]) is None
    named = Addresses("nats+https://a/models", None, "models.internal")
    found = named.found("10.0.0.1:5", ["https"])
    assert found is not None
    assert (found.host, found.connect_host, found.port) == ("models.internal", "10.0.0.1", 5)


def test_a_node_of_the_cluster_ends(group: str, new_client: NewClient) -> None:
    with cluster() as nodes, serving(nodes[0], group, advertise="") as server:
        urls = ",".join(f"{HOST}:{node.port}" for node in nodes)

        with new_client(f"nats://{urls}/{group}", timeout=2) as client:
            for number in range(3):
                assert client.call("add", number, 1).json == number + 1
            for node in nodes:
                node.kill()

                def answers() -> bool:
                    try:
                        return bool(client.call("add", 1, 2).json == 3)
                    except (ucall.ConnectionError, ucall.TimeoutError):
                        return False

                assert eventually(answers)
                node.start()
        assert server.stats()["calls"] > 0
