"""Queues through a broker: mosquitto, killed at will."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
import trustme
from broker import Broker
from paho.mqtt.enums import CallbackAPIVersion

from ucall import queue as nq

WAIT_S = 20
MESSAGES = int(os.environ.get("UCALL_TEST_MESSAGES", "2000"))


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


def options(at: Broker, **given: Any) -> nq.CommunicatorOptions:
    netloc = nq.NetworkLocation("localhost", at.port)
    return nq.CommunicatorOptions(netloc=netloc, **given)


def numbered(number: int) -> bytes:
    """A message that tells its number and proves its content."""
    body = random.Random(number).randbytes(number % 997)
    return number.to_bytes(8, "little") + hashlib.blake2b(body, digest_size=8).digest() + body


def check(messages: list[bytes]) -> None:
    """Each came exactly once, in order, whole."""
    assert [int.from_bytes(message[:8], "little") for message in messages] == list(range(MESSAGES))
    for message in messages:
        assert hashlib.blake2b(message[16:], digest_size=8).digest() == message[8:16]


def test_a_broker_that_is_killed_loses_nothing(broker: Broker) -> None:
    with (
        nq.new("mqtt", "server", options(broker)) as server,
        nq.new("mqtt", "client", options(broker)) as client,
    ):
        client.put(b"").result(WAIT_S)
        server.get(timeout=WAIT_S)
        got: dict[nq.Communicator, list[bytes]] = {server: [], client: []}

        def put(side: nq.Communicator) -> None:
            for number in range(MESSAGES):
                side.put(numbered(number))
                if number % 100 == 0:
                    time.sleep(0.02)

        def get(side: nq.Communicator) -> None:
            while len(got[side]) < MESSAGES:
                got[side].append(side.get(timeout=60).data)

        threads = [threading.Thread(target=run, args=(side,)) for run in (put, get) for side in got]
        for thread in threads:
            thread.start()
        kills = 0
        while any(thread.is_alive() for thread in threads):
            if kills < 2:
                time.sleep(0.15)
                broker.kill()
                broker.start()
                kills += 1
            threads[-1].join(0.1)
            threads[-2].join(0.1)
        assert kills == 2
        check(got[server])
        check(got[client])


def test_a_client_may_come_before_its_server_and_its_broker() -> None:
    broker = Broker()
    with nq.new("mqtt", "client", options(broker)) as client:
        put = client.put("early")
        with broker, nq.new("mqtt", "server", options(broker)) as server:
            assert server.get(timeout=WAIT_S).data == "early"
            put.result(WAIT_S)
            client.close()


def test_a_broker_that_wants_a_password_gets_it(tmp_path: Path) -> None:
    passwords = tmp_path / "passwords"
    subprocess.run(["mosquitto_passwd", "-b", "-c", passwords, "ann", "secret"], check=True)
    with Broker(f"password_file {passwords}") as broker:
        login = nq.BrokerOptions(user="ann", password="secret")
        with (
            nq.new("mqtt", "server", options(broker, broker=login)) as server,
            nq.new("mqtt", "client", options(broker, broker=login)) as client,
        ):
            client.put("in").result(WAIT_S)
            assert server.get(timeout=WAIT_S).data == "in"
        assert "secret" not in repr(login)


def test_a_wrong_password_is_told_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    passwords = tmp_path / "passwords"
    subprocess.run(["mosquitto_passwd", "-b", "-c", passwords, "ann", "secret"], check=True)
    with Broker(f"password_file {passwords}") as broker:
        login = nq.BrokerOptions(user="ann", password="guess")
        client = nq.new("mqtt", "client", options(broker, broker=login))
        give_up_at = time.monotonic() + WAIT_S
        while "Not authorized" not in caplog.text:
            assert time.monotonic() < give_up_at
            time.sleep(0.01)
        client.close(0)


def test_a_broker_with_tls_is_verified(tmp_path: Path) -> None:
    authority, stranger = trustme.CA(), trustme.CA()
    issued = authority.issue_cert("localhost")
    issued.private_key_pem.write_to_path(tmp_path / "key.pem")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "certificate.pem")
    authority.cert_pem.write_to_path(tmp_path / "authority.pem")
    stranger.cert_pem.write_to_path(tmp_path / "stranger.pem")
    lines = [f"certfile {tmp_path}/certificate.pem", f"keyfile {tmp_path}/key.pem"]
    with Broker(*lines) as broker:
        trusting = nq.SecurityOptions(authority=tmp_path / "authority.pem")
        with (
            nq.new("mqtt", "server", options(broker, security=trusting)) as server,
            nq.new("mqtt", "client", options(broker, security=trusting)) as client,
        ):
            client.put("in").result(WAIT_S)
            assert server.get(timeout=WAIT_S).data == "in"
            wary = nq.SecurityOptions(authority=tmp_path / "stranger.pem")
            other = nq.new("mqtt", "client", options(broker, security=wary))
            with pytest.raises(TimeoutError):
                other.put("out").result(0.5)
            other.close(0)
            with pytest.raises(TimeoutError):
                server.get(timeout=0.1)


def test_what_strangers_publish_changes_nothing(broker: Broker) -> None:
    with (
        nq.new("mqtt", "server", options(broker)) as server,
        nq.new("mqtt", "client", options(broker)) as client,
    ):
        client.put("before").result(WAIT_S)
        stranger = paho.Client(CallbackAPIVersion.VERSION2)
        stranger.connect("localhost", broker.port)
        stranger.loop_start()
        for payload in [b"", b"x", b"\0" * 9, b"\0" * 9 + b"garbage" * 10, os.urandom(500)]:
            stranger.publish("ucall/queue/up/stranger", payload, qos=1).wait_for_publish(WAIT_S)
        stranger.disconnect()
        stranger.loop_stop()
        client.put("after").result(WAIT_S)
        assert [server.get(timeout=WAIT_S).data for _ in range(2)] == ["before", "after"]
