"""Queues through mosquitto, which is killed and restarted."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import socket
import subprocess
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
import trustme
from broker import Mosquitto
from paho.mqtt.enums import CallbackAPIVersion
from programs import require
from proxy import Proxy

from ucall import queue as nq

WAIT_S = 60
MESSAGES = 2000


@pytest.fixture
def broker() -> Iterator[Mosquitto]:
    with Mosquitto() as broker:
        yield broker


def options(at: Mosquitto, **given: Any) -> nq.CommunicatorOptions:
    netloc = nq.NetworkLocation("localhost", at.port)
    return nq.CommunicatorOptions(netloc=netloc, **given)


def numbered(number: int) -> bytes:
    """A message with its number and a hash of its content."""
    body = random.Random(number).randbytes(number % 997)
    return number.to_bytes(8, "little") + hashlib.blake2b(body, digest_size=8).digest() + body


def check(messages: list[bytes]) -> None:
    """Each message arrived exactly once, in order and unchanged."""
    assert [int.from_bytes(message[:8], "little") for message in messages] == list(range(MESSAGES))
    for message in messages:
        assert hashlib.blake2b(message[16:], digest_size=8).digest() == message[8:16]


def test_a_killed_broker_loses_nothing(broker: Mosquitto) -> None:
    with (
        nq.new("mqtt", "server", options(broker)) as server,
        nq.new("mqtt", "client", options(broker)) as client,
    ):
        client.put(b"").result(WAIT_S)
        server.get(timeout=WAIT_S)
        got: dict[nq.Communicator, list[bytes]] = {server: [], client: []}
        was_killed = threading.Event()

        def put(side: nq.Communicator) -> None:
            for number in range(MESSAGES):
                if number == MESSAGES - 100:
                    assert was_killed.wait(60)
                side.put(numbered(number))
                if number % 100 == 0:
                    time.sleep(0.02)

        def get(side: nq.Communicator) -> None:
            while len(got[side]) < MESSAGES:
                got[side].append(side.get(timeout=60).data)

        threads = [threading.Thread(target=run, args=(side,)) for run in (put, get) for side in got]
        for thread in threads:
            thread.start()
        for _ in range(2):
            time.sleep(0.15)
            broker.kill()
            broker.start()
        was_killed.set()
        for thread in threads:
            thread.join()
        check(got[server])
        check(got[client])


def test_a_client_may_start_before_its_server_and_its_broker() -> None:
    broker = Mosquitto()
    with nq.new("mqtt", "client", options(broker)) as client:
        put = client.put("early")
        with broker, nq.new("mqtt", "server", options(broker)) as server:
            assert server.get(timeout=WAIT_S).data == "early"
            put.result(WAIT_S)
            client.close()


def test_the_broker_does_not_acknowledge_for_a_peer(broker: Mosquitto) -> None:
    with nq.new("mqtt", "client", options(broker)) as client:
        puts = [client.put(data) for data in ("short", b"x" * 1_000_000)]
        # The broker runs and accepts all messages; the server does not run.
        with pytest.raises(TimeoutError):
            puts[0].result(0.5)
        with nq.new("mqtt", "server", options(broker)) as server:
            assert server.get(timeout=WAIT_S).data == "short"
            for put in puts:
                put.result(WAIT_S)
            client.close()


@pytest.fixture
def passwords(tmp_path: Path) -> Path:
    """mosquitto's file with the password of one user."""
    require("mosquitto")
    path = tmp_path / "passwords"
    subprocess.run(["mosquitto_passwd", "-b", "-c", path, "ann", "secret"], check=True)
    return path


def test_a_broker_with_a_password_is_authenticated_to(passwords: Path) -> None:
    with Mosquitto(f"password_file {passwords}") as broker:
        login = nq.BrokerOptions(user="ann", password="secret")
        with (
            nq.new("mqtt", "server", options(broker, broker=login)) as server,
            nq.new("mqtt", "client", options(broker, broker=login)) as client,
        ):
            client.put("in").result(WAIT_S)
            assert server.get(timeout=WAIT_S).data == "in"
        assert "secret" not in repr(login)


def test_a_wrong_password_is_reported(passwords: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Mosquitto(f"password_file {passwords}") as broker:
        proxy = Proxy(("127.0.0.1", broker.port))
        login = nq.BrokerOptions(user="ann", password="guess")
        netloc = nq.NetworkLocation(*proxy.address)
        # A slow machine may need more time for two attempts.
        for expire_s in (1, 5, 25):
            caplog.clear()
            proxy.openings.clear()
            began = time.monotonic()
            connection = nq.ConnectionOptions(expire_s=expire_s)
            given = nq.CommunicatorOptions(netloc=netloc, broker=login, connection=connection)
            client = nq.new("mqtt", "client", given)
            with pytest.raises(ConnectionError, match="the broker refuses us: not authorized"):
                client.put("for nobody").result(WAIT_S)
            took_s = time.monotonic() - began
            client.close(0)
            assert caplog.text.count("the broker refuses us: not authorized") == 1
            if len(proxy.openings) > 1:
                break
        # It has retried a few times, with pauses.
        assert 1 < len(proxy.openings) < 12 * max(took_s, 1)
        proxy.close()


@dataclass
class Certificates:
    """Certificates of a broker and a client by one authority, and another authority."""

    folder: Path

    def __post_init__(self) -> None:
        authority, other_ca = trustme.CA(), trustme.CA()
        for name in ("broker", "client"):
            issued = authority.issue_cert("localhost")
            issued.private_key_pem.write_to_path(self.folder / f"{name}.key")
            issued.cert_chain_pems[0].write_to_path(self.folder / f"{name}.pem")
        authority.cert_pem.write_to_path(self.folder / "authority.pem")
        other_ca.cert_pem.write_to_path(self.folder / "stranger.pem")
        self.lines = [f"certfile {self.folder}/broker.pem", f"keyfile {self.folder}/broker.key"]


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


def test_a_broker_with_tls_is_verified(
    certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    folder = certificates.folder
    with Mosquitto(*certificates.lines) as broker:
        trusting = nq.SecurityOptions(authority=folder / "authority.pem")
        with (
            nq.new("mqtt", "server", options(broker, security=trusting)) as server,
            nq.new("mqtt", "client", options(broker, security=trusting)) as client,
        ):
            large = os.urandom(5_000_000)
            client.put(large).result(WAIT_S)
            assert server.get(timeout=WAIT_S).data == large
            distrusting = nq.SecurityOptions(authority=folder / "stranger.pem")
            connection = nq.ConnectionOptions(expire_s=0.5)
            given = options(broker, security=distrusting, connection=connection)
            other = nq.new("mqtt", "client", given)
            with pytest.raises(ConnectionError, match="TLS with the broker"):
                other.put("out").result(WAIT_S)
            other.close(0)
            assert "TLS with the broker" in caplog.text
            with pytest.raises(TimeoutError):
                server.get(timeout=0.1)


def test_a_broker_may_require_a_certificate(certificates: Certificates) -> None:
    folder = certificates.folder
    lines = [*certificates.lines, f"cafile {folder}/authority.pem", "require_certificate true"]
    with Mosquitto(*lines) as broker:
        shown = nq.SecurityOptions(
            folder / "client.key", folder / "client.pem", folder / "authority.pem"
        )
        with (
            nq.new("mqtt", "server", options(broker, security=shown)) as server,
            nq.new("mqtt", "client", options(broker, security=shown)) as client,
        ):
            client.put("in").result(WAIT_S)
            assert server.get(timeout=WAIT_S).data == "in"


class Mqtt3Broker:
    """A broker that knows only MQTT 3.1.1: mosquitto behind a proxy that refuses other versions.

    Args:
        refusal: The reply to other versions before it closes.
    """

    def __init__(self, broker: Mosquitto, refusal: bytes) -> None:
        self._broker, self._refusal = broker, refusal
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        #: The requested versions.
        self.asked: list[int] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client_side, _ = self._listener.accept()
                threading.Thread(target=self._open, args=(client_side,), daemon=True).start()

    def _open(self, client_side: socket.socket) -> None:
        # One byte of length, because the packet is short; then the protocol's name and version.
        beginning = client_side.recv(9, socket.MSG_WAITALL)
        self.asked.append(beginning[8])
        if beginning[8] > 4:
            client_side.sendall(self._refusal)
            client_side.close()
            return
        server_side = socket.create_connection(("127.0.0.1", self._broker.port))
        server_side.sendall(beginning)
        for source, target in ((client_side, server_side), (server_side, client_side)):
            threading.Thread(target=self._relay, args=(source, target), daemon=True).start()

    def _relay(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._listener.close()


@pytest.mark.parametrize(
    "refusal", [b"\x20\x02\x00\x01", b"\x20\x03\x00\x84\x00", b""], ids=["3.1.1", "5", "silent"]
)
def test_an_mqtt_3_broker_is_supported(broker: Mosquitto, refusal: bytes) -> None:
    mqtt3_broker = Mqtt3Broker(broker, refusal)
    netloc = nq.NetworkLocation("127.0.0.1", mqtt3_broker.port)
    with (
        nq.new("mqtt", "server", nq.CommunicatorOptions(netloc=netloc)) as server,
        nq.new("mqtt", "client", nq.CommunicatorOptions(netloc=netloc)) as client,
    ):
        large = os.urandom(300_000)
        client.put(large).result(WAIT_S)
        assert server.get(timeout=WAIT_S).data == large
        server.put("back").result(WAIT_S)
        assert client.get(timeout=WAIT_S).data == "back"
    assert sorted(mqtt3_broker.asked) == [4, 4, 5, 5]
    mqtt3_broker.close()


@pytest.mark.parametrize("limit", ["message_size_limit 10000", "max_packet_size 20000"])
@pytest.mark.parametrize("version", [5, 4])
def test_a_brokers_packet_limit_is_respected(limit: str, version: int) -> None:
    with Mosquitto(limit) as broker:
        mqtt3_broker = Mqtt3Broker(broker, b"\x20\x02\x00\x01") if version == 4 else None
        netloc = nq.NetworkLocation("127.0.0.1", mqtt3_broker.port if mqtt3_broker else broker.port)
        connection = nq.ConnectionOptions(keepalive_s=0.2, reconnect=(0.01, 0.1))
        given = nq.CommunicatorOptions(netloc=netloc, connection=connection)
        with (
            nq.new("mqtt", "server", given) as server,
            nq.new("mqtt", "client", replace(given, id=uuid.uuid4())) as client,
        ):
            large = os.urandom(3_000_000)
            puts = [client.put(large), client.put("behind")]
            assert server.get(timeout=WAIT_S).data == large
            assert server.get(timeout=WAIT_S).data == "behind"
            for put in puts:
                put.result(WAIT_S)
        if mqtt3_broker:
            mqtt3_broker.close()


def test_foreign_publications_change_nothing(broker: Mosquitto) -> None:
    with (
        nq.new("mqtt", "server", options(broker)) as server,
        nq.new("mqtt", "client", options(broker)) as client,
    ):
        client.put("before").result(WAIT_S)
        other_ca = paho.Client(CallbackAPIVersion.VERSION2)
        other_ca.connect("localhost", broker.port)
        other_ca.loop_start()
        for payload in [b"", b"x", b"\0" * 9, b"\0" * 9 + b"garbage" * 10, os.urandom(500)]:
            other_ca.publish("ucall/queue/up/stranger", payload, qos=1).wait_for_publish(WAIT_S)
        other_ca.disconnect()
        other_ca.loop_stop()
        client.put("after").result(WAIT_S)
        assert [server.get(timeout=WAIT_S).data for _ in range(2)] == ["before", "after"]
