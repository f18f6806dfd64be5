"""Processes that are killed at any moment, under load: lost, kept and redelivered messages.

`make test-queue-long` runs it over every protocol, with 100,000 messages.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
import threading
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from broker import BROKERS, SharedBroker
from certificates import Authority
from pairs import PROTOCOLS, free_location
from progress import Progress

from ucall import queue as nq

LONG = bool(os.environ.get("UCALL_QUEUE_LONG"))
COUNT = int(os.environ.get("UCALL_QUEUE_MESSAGES", "2000"))
KILLS = 10 if LONG else 2
PATIENCE_S = 4 if LONG else 2
WAIT_S = 60 + COUNT / 500
# Prints each number once its `get` has returned, and whether it is marked `redelivered`. Then it
# acknowledges the message.
READER = """
import json, os, sys, time, uuid
from ucall import queue as nq

given = json.loads(sys.argv[1])
options = nq.CommunicatorOptions(
    id=uuid.UUID(given["id"]),
    netloc=nq.NetworkLocation(*given["netloc"]),
    connection=nq.ConnectionOptions(reconnect=(0.01, 0.05), transport_size=65_536),
    security=nq.SecurityOptions(**given["security"]) if given["security"] else None,
    broker=nq.BrokerOptions(topic=given["topic"]),
)
while True:
    try:
        queue = nq.new(given["protocol"], given["purpose"], options)
        break
    except OSError:
        # The system takes a moment to let go of the ring of a process that was killed.
        time.sleep(0.01)
if given["purpose"] == "client":
    queue.put("here")
number = -1
while number != given["last"]:
    message = queue.get()
    number = int(message.data if isinstance(message.data, int) else message.data[0])
    os.write(1, b"%d %d\\n" % (number, message.redelivered))
    message.ack()
queue.close(10)
"""
#: The numbers that one incarnation has read, and which of them were marked.
Incarnation = list[tuple[int, bool]]


class Killed:
    """A reader in a process of its own, which is killed and restarted."""

    def __init__(self, given: dict[str, Any], progress: Progress) -> None:
        self._command = [sys.executable, "-c", READER, json.dumps(given)]
        self._progress = progress
        self._random = random.Random(11)
        self.incarnations: list[Incarnation] = []
        #: Whether the reader is no longer killed.
        self.is_safe = threading.Event()

    def run(self) -> None:
        """Runs all incarnations; the last one is not killed, and reads until the last number."""
        for kills in range(KILLS + 1):
            self.incarnations.append([])
            if kills == KILLS:
                self.is_safe.set()
            # The last incarnation may have to read all of them.
            self._live(self._random.randrange(1, COUNT // KILLS) if kills < KILLS else COUNT + 1)

    def _live(self, count: int) -> None:
        process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        # The message that it waits for may be lost with the incarnation before.
        select_timeout = threading.Timer(
            PATIENCE_S, lambda: self.is_safe.is_set() or process.kill()
        )
        select_timeout.start()
        for line in process.stdout:
            number, repeated = map(int, line.split())
            self.incarnations[-1].append((number, bool(repeated)))
            self._progress.update(number)
            if len(self.incarnations[-1]) == count:
                # SIGKILL. The lines printed before it count.
                process.kill()
        process.wait()
        select_timeout.cancel()


def check(incarnations: list[Incarnation], ack: str) -> None:
    """Checks the promises over consecutive incarnations."""
    read_up_to = -1
    for incarnation in incarnations:
        numbers = [number for number, _ in incarnation]
        if not numbers:
            continue
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers))), "out of order"
        for number, repeated in incarnation:
            assert repeated or number > read_up_to, f"{number} came again, and was not marked"
        if ack == "taken":
            # A process may have been killed after `get` returned and before it printed the number.
            assert numbers[0] <= read_up_to + 2, f"lost before {numbers[0]}, after {read_up_to}"
        if ack == "explicit":
            assert numbers[0] <= read_up_to + 1, f"lost before {numbers[0]}, after {read_up_to}"
        read_up_to = max(read_up_to, numbers[-1])
    assert incarnations[-1][-1][0] == read_up_to == COUNT - 1


@pytest.mark.parametrize("protocol", PROTOCOLS if LONG else ["tcp", "shm"])
@pytest.mark.parametrize("ack", ["received", "taken", "explicit"])
@pytest.mark.parametrize("killed", ["client", "server"])
@pytest.mark.slow
def test_either_side_may_be_killed_under_load(
    protocol: str,
    ack: str,
    killed: str,
    tmp_path: Path,
    authority: Authority,
    shared_broker: SharedBroker,
) -> None:
    name, _, tls = protocol.partition("+")
    if name in BROKERS:
        netloc = nq.NetworkLocation("127.0.0.1", shared_broker(name).port)
    elif name in ("unix", "shm"):
        netloc = nq.NetworkLocation(str(tmp_path / "kill.sock"), 0)
    else:
        netloc = free_location()
    server_files: dict[str, str] | None = None
    client_files: dict[str, str] | None = None
    if tls:
        files = authority.sign("localhost", "127.0.0.1")
        server_files = {"key": str(files.key), "certificate": str(files.certificate)}
        client_files = {"authority": str(authority.path)}
    ours, theirs = (client_files, server_files)
    if killed == "client":
        ours, theirs = theirs, ours
    id, topic = uuid.uuid4(), f"test/{uuid.uuid4()}"
    given = {
        "protocol": name,
        "purpose": killed,
        "id": str(id),
        "netloc": netloc,
        "topic": topic,
        "security": theirs,
        "last": COUNT - 1,
    }
    connection = nq.ConnectionOptions(
        ack=ack,  # type: ignore[arg-type]
        reconnect=(0.01, 0.05),
        full="block",
        queue_size=1 << 24,
    )
    options = nq.CommunicatorOptions(
        netloc=netloc,
        connection=connection,
        security=nq.SecurityOptions(**ours) if ours else None,  # type: ignore[arg-type]
        broker=nq.BrokerOptions(topic=topic),
    )
    side = nq.new(nq.Protocol(name), "client" if killed == "server" else "server", options)  # type: ignore[arg-type]
    with contextlib.closing(side), Progress(f"{protocol} {ack}, {killed} killed", COUNT) as told:
        reader = Killed(given, told)
        reading = threading.Thread(target=reader.run)
        reading.start()
        if killed == "client":
            side.get(timeout=WAIT_S)
        peers = [id] if killed == "client" else []
        futures = [side.put(numbered(name, number), *peers) for number in range(COUNT - 1)]
        # Otherwise it could be lost with an incarnation, and the test would wait in vain.
        assert reader.is_safe.wait(WAIT_S)
        futures.append(side.put(numbered(name, COUNT - 1), *peers))
        for future in futures:
            future.result(WAIT_S)
        reading.join(WAIT_S)
        assert not reading.is_alive()
        side.close(1)
    check(reader.incarnations, ack)
    assert len(reader.incarnations) > 1


def numbered(protocol: str, number: int) -> object:
    """A number, sometimes with enough bytes after it to go through shared memory."""
    return number if protocol != "shm" or number % 10 else np.full(10_000, number)
