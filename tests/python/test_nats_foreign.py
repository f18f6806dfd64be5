"""Users of the broker that answer for the servers of a group: what a client takes from them."""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from both_clients import NewClient
from brokers import NatsServer, connected
from certificates import Authority, authority
from scripted import Peer, scripted
from test_nats_client import group, module_broker, serving

import ucall
from harness import HOST
from ucall._client.address import Addresses
from ucall._nats.connection import start
from ucall._nats.group import Group
from ucall.client import Client

# The fixtures, for pytest.
__all__ = ["authority", "group", "module_broker"]


ANSWERS = [
    b"",
    b"{",
    b"[]",
    b'{"metadata": null}',
    b'{"metadata": {"address": 5, "transports": "http"}}',
    b'{"metadata": {"address": "a b", "transports": "http"}}',
    b'{"metadata": {"address": "127.0.0.1:0", "transports": "http"}}',
    b'{"metadata": {"address": "user@127.0.0.1", "transports": "http"}}',
    b'{"metadata": {"address": "127.0.0.1:1", "transports": "https"}}',
    b"[" * 100_000,
]


@contextmanager
def impostor(
    broker: NatsServer,
    group: str,
    *answers: bytes,
    subject: str = "",
    headers: dict[str, str] | None = None,
    is_endless: bool = False,
    ignored: int = 0,
) -> Iterator[list[bytes]]:
    """A client of the broker that answers discoveries, or calls with a subject of a function, after
    the first ``ignored`` ones. Yields what it has received."""
    started, ended = threading.Event(), threading.Event()
    received: list[bytes] = []

    async def answer(connection: Any) -> None:
        async def reply(message: Any) -> None:
            received.append(message.data)
            for text in answers if len(received) > ignored else ():
                await connection.publish(message.reply, text, headers=headers)
            while is_endless and not ended.is_set():
                await connection.publish(message.reply, answers[0])
                await asyncio.sleep(0.01)

        await connection.subscribe(subject or f"$SRV.PING.{group}", cb=reply)
        await connection.flush()
        started.set()
        await asyncio.to_thread(ended.wait)

    thread = threading.Thread(target=connected, args=(broker.url, answer))
    thread.start()
    try:
        assert started.wait(60)
        yield received
    finally:
        ended.set()
        thread.join()


def test_answers_that_are_no_address_are_ignored(
    module_broker: NatsServer, group: str, new_client: NewClient
) -> None:
    with (
        serving(module_broker, group),
        impostor(module_broker, group, *ANSWERS),
        new_client(module_broker.uri(group)) as client,
    ):
        assert all(client.call("through").json is False for _ in range(20))


def answer(number: int) -> bytes:
    metadata = {"address": f"127.0.0.1:{number + 1}", "transports": "http"}
    return json.dumps({"id": f"server {number}", "metadata": metadata}).encode()


def group_of(broker: NatsServer, group: str, **options: Any) -> Group:
    return Group(Addresses(broker.uri(group)), {}, 1000, **options)


def discovered(made: Group) -> list[str]:
    try:
        return [it.name for it in start(made.discover()).result(60)]
    finally:
        made.close()


def test_a_discovery_whose_answers_never_end_is_ended(
    module_broker: NatsServer, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ucall._nats.group._ANSWERS_S", 0.2)
    with impostor(module_broker, group, answer(0), is_endless=True):
        assert discovered(group_of(module_broker, group)) == ["127.0.0.1:1"]


@pytest.mark.parametrize("count", [5, 6])
def test_a_discovery_finds_servers_up_to_its_limit(
    module_broker: NatsServer, group: str, count: int
) -> None:
    with impostor(module_broker, group, *map(answer, range(count))):
        assert len(discovered(group_of(module_broker, group, servers_max=5))) == 5


HOSTILE = [
    b'{"a":1',
    b"1\n2",
    b'1,"id":1}\n{"jsonrpc":"2.0","result":5',
    b"[" * 100_000,
    b"[" * 1000 + b"]" * 1000,
    b"NaN",
    "[1]".encode("utf-16"),
    b"\xff",
]


@pytest.mark.parametrize("payload", HOSTILE, ids=range(len(HOSTILE)))
def test_a_reply_through_nats_that_is_not_json(
    module_broker: NatsServer, group: str, new_client: NewClient, payload: bytes
) -> None:
    with (
        impostor(module_broker, group, payload, subject=f"{group}.add"),
        new_client(module_broker.uri(group)) as client,
        pytest.raises(ucall.ConnectionError, match="not JSON") as raised,
    ):
        client.call("add", 1, 2)
    assert raised.value.may_have_run


@pytest.mark.parametrize("is_idempotent", [True, False])
def test_only_idempotent_calls_are_sent_again_without_a_reply(
    module_broker: NatsServer,
    group: str,
    new_client: NewClient,
    is_idempotent: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """NATS does not report that the server has ended which has a call."""
    monkeypatch.setattr("ucall._nats.group._FIRST_SILENCE_S", 0.1)

    with (
        impostor(module_broker, group, b"3", subject=f"{group}.add", ignored=1) as received,
        new_client(module_broker.uri(group), timeout=60 if is_idempotent else 1) as client,
    ):
        asked = client.with_options(idempotent=is_idempotent)
        if is_idempotent:
            assert asked.call("add", 1, 2).json == 3
        else:
            with pytest.raises(ucall.TimeoutError) as raised:
                asked.call("add", 1, 2)
            assert raised.value.may_have_run
    assert received == [b"[1,2]"] * (2 if is_idempotent else 1)


@pytest.mark.parametrize("payload", [*HOSTILE, b"", b"5", b"{}", b'{"code": true}', b'{"code": 7}'])
def test_an_error_through_nats_of_another_service(
    module_broker: NatsServer, group: str, payload: bytes
) -> None:
    """Its headers are those of ADR-32, and its payload may be anything."""
    headers = {"Nats-Service-Error-Code": "500", "Nats-Service-Error": "failed"}
    with (
        impostor(module_broker, group, payload, subject=f"{group}.add", headers=headers),
        Client(module_broker.uri(group)) as client,
    ):
        error = client.add(1, 2).error
        assert error is not None and (error.code, error.message) == (500, "failed")


def test_a_request_has_no_escapes_that_make_it_longer(
    module_broker: NatsServer, group: str
) -> None:
    with (
        serving(module_broker, group, advertise=""),
        Client(module_broker.uri(group)) as client,
    ):
        # As ASCII with escapes it would be thrice as long, above the broker's limit.
        error = client.add("é" * 500_000, 1).error
        assert error is not None and error.code == -32602


@pytest.mark.parametrize("with_tls", [True, False])
def test_an_impostor_gets_no_credentials(
    module_broker: NatsServer,
    group: str,
    authority: Authority,
    new_client: NewClient,
    with_tls: bool,
) -> None:
    """Neither without TLS nor with a valid certificate for another name."""
    files = authority.sign("models.internal")
    foreign = authority.sign(HOST, "evil.example")
    received: list[bytes] = []

    def collect(peer: Peer) -> None:
        if with_tls:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(foreign.certificate, foreign.key)
            try:
                peer.socket = context.wrap_socket(peer.socket, server_side=True)
            except OSError:
                return
        while data := peer.socket.recv(65_536):
            received.append(data)

    options = {
        "auth": ucall.auth.bearer(["secret"]),
        "allowed_hosts": ["models.internal"],
        "ssl_certfile": files.certificate,
        "ssl_keyfile": files.key,
    }
    client_options: dict[str, Any] = {
        "headers": {"Authorization": "Bearer secret"},
        "verify": authority.path,
        "server_hostname": "models.internal",
        "timeout": 20,
    }
    with serving(module_broker, group, server=options), scripted(collect) as evil:
        metadata = {"address": f"{HOST}:{evil.port}", "transports": "https"}
        with (
            impostor(module_broker, group, json.dumps({"metadata": metadata}).encode()),
            new_client(module_broker.uri(group, "https"), **client_options) as client,
        ):
            assert all(client.call("through").json is False for _ in range(30))
        assert evil.accepted > 0
    assert not any(b"secret" in data or b"HTTP/1.1" in data for data in received)


def test_the_time_limit_includes_the_first_discovery(
    module_broker: NatsServer, group: str, new_client: NewClient
) -> None:
    with (
        impostor(module_broker, group),
        new_client(module_broker.uri(group), timeout=0.1) as client,
        pytest.raises(ucall.TimeoutError) as raised,
    ):
        client.call("add", 1, 2)
    assert not raised.value.may_have_run


@pytest.mark.parametrize(
    ("endpoints", "expected"),
    [
        ('{{"endpoints": [{{"subject": "{group}.add"}}]}}', "takes calls"),
        ('{{"endpoints": [{{"subject": "{group}.other"}}]}}', "Method not found"),
        ('{{"endpoints": [5]}}', "Method not found"),
        ("[", "Method not found"),
    ],
)
def test_a_function_that_nobody_serves_at_the_moment_is_not_unknown(
    module_broker: NatsServer, group: str, new_client: NewClient, endpoints: str, expected: str
) -> None:
    """A server's connection for calls may have ended, while that of its registration has not."""
    info = endpoints.format(group=group).encode()

    with (
        impostor(module_broker, group, info, subject=f"$SRV.INFO.{group}"),
        new_client(module_broker.uri(group)) as client,
        pytest.raises((ucall.ConnectionError, ucall.RPCError), match=expected),
    ):
        _ = client.call("add", 1).json
