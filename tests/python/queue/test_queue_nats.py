"""Queues through nats-server: credit, lost pieces, credentials and TLS."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import struct
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from brokers import NatsServer, connected, key_file
from certificates import Authority

from harness import eventually
from ucall import queue as nq
from ucall.queue import nats_transport

WAIT_S = 60
HEADER = struct.Struct("<BQ")
PIECE, CREDIT, CLOSE = range(3)


@pytest.fixture
def broker() -> Iterator[NatsServer]:
    with NatsServer() as started:
        yield started


def options(at: NatsServer, **given: Any) -> nq.CommunicatorOptions:
    connection = {
        name: given.pop(name) for name in list(given) if name not in ("broker", "security")
    }
    broker = {"topic": "test", **given.pop("broker", {})}
    return nq.CommunicatorOptions(
        netloc=nq.NetworkLocation("localhost", at.port),
        connection=nq.ConnectionOptions(**{"reconnect": (0.01, 0.05), **connection}),
        broker=nq.BrokerOptions(**broker),
        **given,
    )


def exchange(server: nq.CommunicatorOptions, client: nq.CommunicatorOptions, data: Any) -> None:
    with nq.new("nats", "server", server) as there, nq.new("nats", "client", client) as here:  # type: ignore[call-overload]
        here.put(data).result(WAIT_S)
        assert there.get(timeout=WAIT_S).data == data
        there.put(data).result(WAIT_S)
        assert here.get(timeout=WAIT_S).data == data


def test_messages_survive_lost_pieces(broker: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """As core NATS loses them for a slow reader."""
    receive, count = nats_transport._Link.receive, iter(range(1 << 30))

    def lossy(link: Any, data: bytes) -> None:
        # The handshake of a new link takes fewer messages than this.
        if next(count) % 23 != 22:
            receive(link, data)

    monkeypatch.setattr(nats_transport._Link, "receive", lossy)
    given = {"keepalive_s": 0.1, "ack": "taken"}
    server = nq.new("nats", "server", options(broker, **given))  # type: ignore[call-overload]
    client = nq.new("nats", "client", options(broker, **given))  # type: ignore[call-overload]
    with server, client:
        messages = [os.urandom(50_000) for _ in range(60)]
        futures = [client.put(message) for message in messages]
        assert [server.get(timeout=WAIT_S).data for _ in messages] == messages
        for future in futures:
            future.result(WAIT_S)
        assert next(count) > 22, "one was lost"
        monkeypatch.undo()


def test_pieces_fit_the_brokers_max_payload(tmp_path: Path) -> None:
    configuration = tmp_path / "nats.conf"
    configuration.write_text("max_payload: 4096\n")
    with NatsServer("--config", str(configuration)) as small:
        exchange(options(small), options(small), os.urandom(100_000))


def test_a_killed_peer_is_detected_by_the_next_message(broker: NatsServer) -> None:
    server = nq.new("nats", "server", options(broker, keepalive_s=600))  # type: ignore[call-overload]
    client = nq.new("nats", "client", options(broker, keepalive_s=600))  # type: ignore[call-overload]
    with server, client:
        client.put("here").result(WAIT_S)
        kinds: list[str] = []
        client.on_connection(lambda event: kinds.append(event.kind))
        # As if the process was killed: nothing is sent.
        connection = server._transport._broker
        asyncio.run_coroutine_threadsafe(connection.close(), server._transport._loop).result(WAIT_S)

        def is_lost() -> bool:
            # The broker may not have read the end of the connection when a message comes.
            client.put("to nobody")
            return "lost" in kinds

        assert eventually(is_lost)
        server._close(True)
        client.close(0)


def test_a_link_that_no_session_wants_is_closed(broker: NatsServer) -> None:
    """As one that is dialed while the session ends: it would delay `close` by ``handshake_s``."""
    given = options(broker, handshake_s=600)
    with nq.new("nats", "server", options(broker)), nq.new("nats", "client", given) as client:  # type: ignore[call-overload]
        client.put("x").result(WAIT_S)
        link = client._open_link(True, lambda: None)
        assert eventually(lambda: link.is_closed)


def test_foreign_messages_change_nothing(broker: NatsServer) -> None:
    with (
        nq.new("nats", "server", options(broker)) as server,  # type: ignore[call-overload]
        nq.new("nats", "client", options(broker)) as client,  # type: ignore[call-overload]
    ):
        client.put("before").result(WAIT_S)

        async def publish(connection: Any) -> None:
            payloads = [b"", b"x", HEADER.pack(PIECE, 0), HEADER.pack(PIECE, 7) + b"x"]
            payloads += [HEADER.pack(kind, 1 << 63) for kind in (CREDIT, CLOSE, 9)]
            payloads += [HEADER.pack(PIECE, 0) + b"garbage" * 10, os.urandom(500)]
            for payload in payloads:
                for name in ("stranger", uuid.uuid4().hex):
                    await connection.publish(f"test.up.{name}", payload)
            await connection.flush()

        connected(broker.url, publish)
        client.put("after").result(WAIT_S)
        assert [server.get(timeout=WAIT_S).data for _ in range(2)] == ["before", "after"]


def test_credentials_are_given_as_for_calls(tmp_path: Path) -> None:
    with NatsServer("--auth", "secret") as broker:
        token = options(broker, broker={"options": {"token": "secret"}})
        other = options(broker, broker={"options": {"token": "secret"}})
        exchange(token, other, "by token")
    with NatsServer("--user", "ann", "--pass", "secret") as broker:
        user = options(broker, broker={"user": "ann", "password": "secret"})
        there = f"nats://ann:secret@127.0.0.1:{broker.port}"
        exchange(user, options(broker, broker={"urls": there}), "by password")
    public, seed = key_file(tmp_path)
    configuration = tmp_path / "nats.conf"
    configuration.write_text(f"authorization: {{ users: [ {{ nkey: {public} }} ] }}\n")
    with NatsServer("--config", str(configuration)) as broker:
        given = {"broker": {"options": {"nkeys_seed": str(seed)}}}
        exchange(options(broker, **given), options(broker, **given), "by key")


def test_a_wrong_password_is_logged_without_it(caplog: pytest.LogCaptureFixture) -> None:
    with NatsServer("--user", "ann", "--pass", "secret") as broker:
        there = f"nats://ann:guess@127.0.0.1:{broker.port}"
        client = nq.new("nats", "client", options(broker, expire_s=0.5, broker={"urls": there}))  # type: ignore[call-overload]
        with pytest.raises(nq.ConnectionError):
            client.put("for nobody").result(WAIT_S)
        assert eventually(lambda: "Authorization Violation" in caplog.text)
        assert "guess" not in caplog.text
        client.close(0)
        assert "guess" not in repr(client.options)


def test_tls_is_verified(authority: Authority, caplog: pytest.LogCaptureFixture) -> None:
    files, mine = authority.sign("localhost"), authority.sign("ann")
    arguments = "--tlscert", str(files.certificate), "--tlskey", str(files.key)
    verified = "--tlsverify", "--tlscacert", str(authority.path)
    with NatsServer(*arguments, *verified) as broker:
        shown = nq.SecurityOptions(
            mine.encrypted_key, mine.certificate, authority.path, password=files.PASSWORD
        )
        named = nq.SecurityOptions(mine.key, mine.certificate, authority.path, "localhost")
        at = {"urls": f"nats://127.0.0.1:{broker.port}"}
        exchange(
            options(broker, security=shown), options(broker, security=named, broker=at), "over TLS"
        )
        for security in (
            nq.SecurityOptions(mine.key, mine.certificate, authority.path, "elsewhere"),
            nq.SecurityOptions(mine.key, mine.certificate),
            nq.SecurityOptions(authority=authority.path),
        ):
            caplog.clear()
            refused = nq.new("nats", "client", options(broker, security=security))  # type: ignore[call-overload]
            put = refused.put("out")
            assert eventually(lambda: "trying again" in caplog.text)
            refused.close(0)
            with pytest.raises(nq.ConnectionError):
                put.result(WAIT_S)


@pytest.mark.parametrize("protocol", ["nats", "jetstream"])
def test_a_broker_without_tls_gets_no_credentials(protocol: str, authority: Authority) -> None:
    """An attacker on the network path could remove the offer of TLS."""
    received: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        information = {"server_id": "x", "max_payload": 1 << 20, "proto": 1, "headers": True}

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with connection:
                        connection.sendall(b"INFO " + json.dumps(information).encode() + b"\r\n")
                        received.append(connection.recv(1000))

        serving = threading.Thread(target=serve, daemon=True)
        serving.start()
        given = nq.CommunicatorOptions(
            netloc=nq.NetworkLocation(port=port),
            security=nq.SecurityOptions(authority=authority.path),
            broker=nq.BrokerOptions(topic="test", user="ann", password="secret"),
            connection=nq.ConnectionOptions(reconnect=(0.01, 0.01)),
        )
        client = nq.new(protocol, "client", given)  # type: ignore[call-overload]
        assert eventually(lambda: len(received) > 1)
        client.close(0)
    assert set(received) == {b""}


def test_options_of_nats_are_refused_elsewhere() -> None:
    for given in ({"urls": "nats://a"}, {"options": {"token": "x"}}, {"replicas": 3}):
        with pytest.raises(ValueError, match="are for NATS"):
            nq.new("mqtt", "client", nq.CommunicatorOptions(broker=nq.BrokerOptions(**given)))  # type: ignore[call-overload,arg-type]
    both = nq.CommunicatorOptions(
        security=nq.SecurityOptions(), broker=nq.BrokerOptions(options={"tls": object()})
    )
    with pytest.raises(ValueError, match="TLS in either"):
        nq.new("nats", "client", both)  # type: ignore[call-overload]
    with pytest.raises(FileNotFoundError):
        missing = nq.BrokerOptions(options={"user_credentials": "no-such-file"})
        nq.new("nats", "client", nq.CommunicatorOptions(broker=missing))  # type: ignore[call-overload]
