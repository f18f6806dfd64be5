"""Exactly once and in order, over a stream that is cut and delayed at random, and through a broker
that is killed and restarted.

`make test-queue-long` sends 100,000 messages in each direction.
"""

from __future__ import annotations

import hashlib
import os
import random
import threading
import time
import uuid
from pathlib import Path

import numpy as np
import pytest
from broker import BROKERS
from frames import PREAMBLE_BYTES
from pairs import STREAMS, Pairs
from progress import Progress
from proxy import Proxy

from ucall import queue as nq

COUNT = int(os.environ.get("UCALL_QUEUE_MESSAGES", "1900"))
WAIT_S = 120 + COUNT / 500
#: The broker is killed each time after this many messages in each direction.
MESSAGES_A_KILL = 300
#: The number of messages that are acknowledged together.
HELD = 16


def message(number: int, generator: random.Random) -> object:
    """A message with a number and a hash, of any length and kind."""
    lengths = [0, 10, 100, 1000, 10_000, 40_000] if number % 50 else [70_000, 300_000]
    length = generator.choice(lengths)
    data = generator.randbytes(length)
    digest = hashlib.blake2b(data + str(number).encode()).digest()
    kind = number % 3
    if kind == 0:
        return number.to_bytes(8) + digest + data
    return (number, digest, np.frombuffer(data, np.uint8) if kind == 1 else data)


def check(number: int, data: object) -> None:
    if isinstance(data, bytes):
        assert int.from_bytes(data[:8]) == number
        digest, rest = data[8:72], data[72:]
    else:
        assert isinstance(data, tuple)
        assert data[0] == number
        digest, rest = data[1], bytes(data[2])
    assert hashlib.blake2b(rest + str(number).encode()).digest() == digest


def send(communicator: nq.Communicator, failures: list[BaseException]) -> None:
    generator = random.Random(3)
    try:
        futures = [communicator.put(message(number, generator)) for number in range(COUNT)]
        for future in futures:
            future.result(WAIT_S)
    except BaseException as error:
        failures.append(error)


def take(
    communicator: nq.Communicator, taken: dict[uuid.UUID, int], failures: list[BaseException]
) -> None:
    held: list[nq.Message] = []
    try:
        for number in range(COUNT):
            taken[communicator.id] = number
            got = communicator.get(timeout=WAIT_S)
            assert not got.redelivered
            check(number, got.data)
            # Several at a time, the last one first.
            held.append(got)
            if len(held) == HELD or number == COUNT - 1:
                while held:
                    held.pop().ack()
    except BaseException as error:
        failures.append(error)


@pytest.mark.parametrize(
    ("pairs", "trusted"),
    [*((name, False) for name in [*STREAMS, "shm", "mqtt", "grpc", "nats"]), ("shm", True)],
    indirect=["pairs"],
)
@pytest.mark.parametrize("ack", ["received", "taken", "explicit"])
@pytest.mark.slow
def test_each_message_arrives_once_and_in_order(
    pairs: Pairs, tmp_path: Path, ack: str, trusted: bool, request: pytest.FixtureRequest
) -> None:
    given = {"ack": ack, "reconnect": (0.001, 0.01), "full": "block", "queue_size": 1 << 26}
    given["trusted"] = trusted
    server = pairs.server(**given)
    if pairs.protocol in BROKERS:
        proxy = Proxy(("127.0.0.1", server.options.netloc.port))
        netloc = nq.NetworkLocation(*proxy.address)
    elif server.address is None:
        preamble = PREAMBLE_BYTES if pairs.protocol == "shm" else 0
        proxy = Proxy(server.options.netloc.host, str(tmp_path / "proxy.sock"), preamble)
        netloc = nq.NetworkLocation(proxy.address, 0)
    else:
        proxy = Proxy(server.address)
        netloc = nq.NetworkLocation(*proxy.address)
    client = pairs.client(server, netloc=netloc, **given)
    client.put("first")
    server.get(timeout=WAIT_S).ack()
    # gRPC reconnects after a tenth of a second at the earliest.
    proxy.cut_after = 1 << (23 if pairs.protocol == "grpc" else 21)
    failures: list[BaseException] = []
    taken: dict[uuid.UUID, int] = {}
    threads = []
    for side in (server, client):
        threads.append(threading.Thread(target=send, args=(side, failures)))
        threads.append(threading.Thread(target=take, args=(side, taken, failures)))
    for thread in threads:
        thread.start()
    label = f"each way over {request.node.callspec.id}"
    give_up_at, kills = time.monotonic() + 2 * WAIT_S, 0
    with Progress(label, COUNT) as progress:
        while working := [thread for thread in threads if thread.is_alive()]:
            assert time.monotonic() < give_up_at
            working[0].join(0.02)
            done = min(taken.get(side.id, 0) for side in (server, client))
            # Counted in messages and not in time: on a slow machine none may arrive in between.
            if pairs.protocol in BROKERS and done >= (kills + 1) * MESSAGES_A_KILL:
                pairs.broker.kill()
                pairs.broker.start()
                kills += 1
            told = f", {proxy.cuts} cuts" + (f", broker killed {kills} times" if kills else "")
            progress.update(done, told)
        assert not failures, failures[0]
    client.close()
    server.close()
    proxy.close()
    assert proxy.cuts > 3
    assert kills > 3 or pairs.protocol not in BROKERS
