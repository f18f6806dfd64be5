"""Processes that are killed, for each kind of acknowledgement."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import forking
import numpy as np
import pytest
from broker import BROKERS, SharedBroker
from certificates import Authority
from pairs import STREAMS, free_location

from ucall import queue as nq

WAIT_S = 60
# Gets a number of messages, prints them, acknowledges some, and then hangs with the rest unread.
READER = """
import dataclasses, sys, time, uuid
from ucall import queue as nq
acknowledged, protocol, purpose, where, port, count, id, *files = sys.argv[1:]
key, certificate, authority = files or (None, None, None)
options = nq.CommunicatorOptions(
    id=uuid.UUID(id),
    netloc=nq.NetworkLocation(where, int(port)),
    connection=nq.ConnectionOptions(reconnect=(0.01, 0.05)),
    security=nq.SecurityOptions(key or None, certificate or None, authority or None),
)
if not files:
    options = dataclasses.replace(options, security=None)
while True:
    try:
        queue = nq.new(nq.Protocol(protocol), nq.Purpose(purpose), options)
        break
    except OSError:
        # The system takes a moment to let go of the ring of a process that was killed.
        time.sleep(0.01)
if purpose == "client":
    queue.put("here")
messages = []
for _ in range(int(count)):
    message = queue.get()
    messages.append(message)
    print(message.data if protocol != "shm" else message.data[0], message.redelivered, flush=True)
for at in acknowledged:
    messages[int(at)].ack()
print("done", flush=True)
time.sleep(60)
"""

Start = Callable[..., "subprocess.Popen[str]"]
Files = tuple[str, ...]


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def run(*arguments: object, acknowledged: str = "") -> subprocess.Popen[str]:
        command = [sys.executable, "-c", READER, acknowledged, *map(str, arguments)]
        process = forking.Python(command, stdout=subprocess.PIPE, text=True)
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


def lines(process: subprocess.Popen[str]) -> list[str]:
    assert process.stdout is not None
    return [line.strip() for line in iter(process.stdout.readline, "done\n")]


def kill(process: subprocess.Popen[str]) -> None:
    os.kill(process.pid, signal.SIGKILL)
    process.wait()


def options(location: nq.NetworkLocation, ack: str, files: Files) -> nq.CommunicatorOptions:
    connection = nq.ConnectionOptions(ack=ack, reconnect=(0.01, 0.05))  # type: ignore[arg-type]
    security = nq.SecurityOptions(*(file or None for file in files)) if files else None
    return nq.CommunicatorOptions(netloc=location, connection=connection, security=security)


def files_for(protocol: str, authority: Authority) -> tuple[Files, Files]:
    """The server's key, certificate and authority, and the client's; none without TLS."""
    if not protocol.endswith("+tls"):
        return (), ()
    signed = authority.sign("localhost", "127.0.0.1")
    return (str(signed.key), str(signed.certificate), ""), ("", "", str(authority.path))


def numbered(protocol: str, number: int) -> object:
    """A number, with enough bytes after it to go through shared memory."""
    return number if protocol != "shm" else np.full(20_000, number)


def location_for(protocol: str, folder: Path, broker: SharedBroker) -> nq.NetworkLocation:
    if protocol in BROKERS:
        return nq.NetworkLocation(port=broker(protocol).port)
    if protocol in ("unix", "shm"):
        return nq.NetworkLocation(str(folder / "kill.sock"), 0)
    return free_location()


@pytest.mark.parametrize("killed", ["server", "client"])
@pytest.mark.parametrize("protocol", [*STREAMS, "shm", "mqtt", "grpc", "nats"])
@pytest.mark.slow
def test_one_that_is_killed_and_its_successor(
    protocol: str,
    killed: str,
    start: Start,
    tmp_path: Path,
    authority: Authority,
    shared_broker: SharedBroker,
) -> None:
    ours, theirs = files_for(protocol, authority)
    if killed == "client":
        ours, theirs = theirs, ours
    protocol = protocol.partition("+")[0]
    for ack in ("taken", "received"):
        where = location_for(protocol, tmp_path, shared_broker)
        id, begin = uuid.uuid4(), functools.partial(start, protocol, killed, *where)
        given = options(where, ack, theirs)
        to: list[uuid.UUID] = []
        if killed == "server":
            first = begin(2, id, *ours)
            alive = nq.new(nq.Protocol(protocol), nq.Purpose.CLIENT, given)
        else:
            alive = nq.new(nq.Protocol(protocol), nq.Purpose.SERVER, given)
            first = begin(2, id, *ours)
            assert alive.get(timeout=WAIT_S).peer == id
            # It will be disconnected, and its queue stays.
            to.append(id)
        futures = [alive.put(numbered(protocol, number)) for number in range(4)]
        assert lines(first) == ["0 False", "1 False"]
        futures[1 if ack == "taken" else 3].result(WAIT_S)
        kill(first)
        futures.append(alive.put(numbered(protocol, 4), *to))
        second = begin(3 if ack == "taken" else 1, id, *ours)
        # The last one may have gone to the dead, too: nobody can tell.
        received = [line.split() for line in lines(second)]
        assert [data for data, _ in received] == (["2", "3", "4"] if ack == "taken" else ["4"])
        assert all(redelivered == "True" for _, redelivered in received[:-1])
        for future in futures:
            future.result(WAIT_S)
        kill(second)
        alive.close(0)


@pytest.mark.parametrize("killed", ["server", "client"])
@pytest.mark.parametrize("protocol", [*STREAMS, "shm", "mqtt", "grpc", "nats"])
@pytest.mark.slow
def test_one_that_is_killed_before_and_after_it_acknowledged(
    protocol: str,
    killed: str,
    start: Start,
    tmp_path: Path,
    authority: Authority,
    shared_broker: SharedBroker,
) -> None:
    ours, theirs = files_for(protocol, authority)
    if killed == "client":
        ours, theirs = theirs, ours
    protocol = protocol.partition("+")[0]
    where = location_for(protocol, tmp_path, shared_broker)
    given = options(where, "explicit", theirs)
    id = uuid.uuid4()

    def begin(count: int, acknowledged: str) -> subprocess.Popen[str]:
        return start(protocol, killed, *where, count, id, *ours, acknowledged=acknowledged)

    def putter(purpose: nq.Purpose) -> nq.Communicator:
        return nq.new(nq.Protocol(protocol), purpose, given)

    if killed == "client":
        queue = putter(nq.Purpose.SERVER)
        # The third message is acknowledged neither with the ones before it nor with the one after.
        first = begin(4, "310")
        assert queue.get(timeout=WAIT_S).peer == id
    else:
        first = begin(4, "310")
        queue = putter(nq.Purpose.CLIENT)
    futures = [queue.put(numbered(protocol, number)) for number in range(6)]
    assert lines(first) == [f"{number} False" for number in range(4)]
    for future in futures[:2]:
        future.result(WAIT_S)
    kill(first)
    assert not any(future.done() for future in futures[2:])
    second = begin(4, "3210")
    assert lines(second) == [f"{number} True" for number in range(2, 6)]
    for future in futures:
        future.result(WAIT_S)
    kill(second)
    # No message is left for a new incarnation.
    futures = [queue.put(numbered(protocol, 6), *([id] if killed == "client" else []))]
    third = begin(1, "0")
    assert [line.split()[0] for line in lines(third)] == ["6"]
    futures[0].result(WAIT_S)
    kill(third)
    queue.close(0)


def test_a_killed_client_expires(start: Start) -> None:
    where = free_location()
    connection = nq.ConnectionOptions(expire_s=0.2, ack="taken")
    given = nq.CommunicatorOptions(netloc=where, connection=connection)
    with nq.new(purpose=nq.Purpose.SERVER, options=given) as server:
        client = start("tcp", "client", *where, 0, uuid.uuid4())
        server.get(timeout=WAIT_S)
        future = server.put("never taken")
        kill(client)
        with pytest.raises(ConnectionError):
            future.result(WAIT_S)
