"""Many clients, and large messages."""

from __future__ import annotations

import contextlib
import os
import resource
import uuid
from pathlib import Path

import pytest
from broker import BROKERS, SharedBroker
from pairs import Pairs, free_location
from progress import Progress

from harness import program
from ucall import queue as nq

WAIT_S = 60
LONG = bool(os.environ.get("UCALL_QUEUE_LONG"))
THOUSAND = ["tcp", "unix", "shm", *(["tcp+tls", "mqtt", "grpc", "nats"] if LONG else [])]
ONE_LARGE_OVER = ["tcp", "unix", "shm", "mqtt", "grpc", "nats"] if LONG else ["tcp"]
# In a process of its own, so that its peak memory is its own.
ONE_LARGE = """
import sys
from ucall import queue as nq
protocol, purpose, host, port, size, topic = sys.argv[1:]
size = int(size)
connection = nq.ConnectionOptions(message_size=size + 1000, queue_size=size + 2000)
options = nq.CommunicatorOptions(
    netloc=nq.NetworkLocation(host, int(port)),
    connection=connection,
    broker=nq.BrokerOptions(topic=topic),
)
with nq.new(protocol, purpose, options) as queue:
    if purpose == "server":
        data = queue.get().data
        assert len(data) == size and data[0] == data[-1] == data[size // 2] == 7
    elif protocol == "shm":
        import numpy
        queue.put(numpy.full(size, 7, numpy.uint8)).result()
    else:
        queue.put(b"\\7" * size).result()
# The peak of this program: ru_maxrss begins with that of whoever started it.
peak = [line for line in open("/proc/self/status") if line.startswith("VmHWM")]
print(int(peak[0].split()[1]) * 1024)
"""


@pytest.mark.parametrize("pairs", THOUSAND, indirect=True)
@pytest.mark.slow
def test_a_server_has_a_thousand_clients(pairs: Pairs) -> None:
    # Each client of this process has its own descriptor and its thread's.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        server = pairs.server(engine="posix")
        clients = [pairs.client(server, engine="posix") for _ in range(1000)]
        for client in clients:
            client.put("here")
        received = {server.get(timeout=WAIT_S).peer for _ in clients}
        assert received == {client.id for client in clients}
        everyone = server.put("all")
        last = server.put("you", clients[-1].id)
        everyone.result(WAIT_S)
        last.result(WAIT_S)
        assert [client.get(timeout=WAIT_S).data for client in clients] == ["all"] * 1000
        assert clients[-1].get(timeout=WAIT_S).data == "you"
        for client in clients:
            client._close(False)
        server.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("protocol", ONE_LARGE_OVER)
def test_a_large_message_takes_at_most_twice_its_size(
    protocol: str, tmp_path: Path, shared_broker: SharedBroker
) -> None:
    size = 4 << 30 if LONG else 256 << 20
    netloc = free_location()
    if protocol in BROKERS:
        netloc = nq.NetworkLocation("127.0.0.1", shared_broker(protocol).port)
    elif protocol in ("unix", "shm"):
        netloc = nq.NetworkLocation(str(tmp_path / "large.sock"), 0)
    arguments = [str(it) for it in (*netloc, size, f"test/{uuid.uuid4()}")]
    with contextlib.ExitStack() as stack:
        told = stack.enter_context(Progress(f"{size >> 20:,} MiB over {protocol}", 1))
        sides = [
            stack.enter_context(program(ONE_LARGE, protocol, purpose, *arguments))
            for purpose in ("server", "client")
        ]
        output = [side.communicate(timeout=4 * WAIT_S) for side in sides]
        assert [errors for _, errors in output] == ["", ""]
        peaks = [int(peak) for peak, _ in output]
        told.write("peaks of {:,} and {:,} MiB".format(*(peak >> 20 for peak in peaks)))
    # Plus the interpreter's memory, and over gRPC the bytes that its library has read ahead.
    own = 512 << 20 if protocol == "grpc" else 64 << 20
    assert max(peaks) < 2 * size + own


def test_a_message_may_be_exactly_message_size(pairs: Pairs) -> None:
    server = pairs.server(message_size=1000)
    client = pairs.client(server, message_size=1000)
    client.put(b"x" * 1000)
    assert server.get(timeout=WAIT_S).data == b"x" * 1000
    with pytest.raises(ValueError, match="message_size"):
        client.put(b"x" * 1001)


def test_a_message_past_the_peers_limit_fails_alone(pairs: Pairs) -> None:
    server = pairs.server(message_size=1000)
    client = pairs.client(server)
    for length in (1001, 100_000):
        futures = [client.put(b"x" * size) for size in (1000, length, 5)]
        with pytest.raises(ValueError, match="message_size, 1000 bytes"):
            futures[1].result(WAIT_S)
        futures[2].result(WAIT_S)
        assert [len(server.get(timeout=WAIT_S).data) for _ in range(2)] == [1000, 5]


def test_a_full_queue_refuses_by_default(pairs: Pairs) -> None:
    server = pairs.server()
    server.close()
    client = pairs.client(server, queue_size=2 * (1000 + 128))
    client.put(b"x" * 1000)
    client.put(b"x" * 1000)
    with pytest.raises(nq.FullError):
        client.put(b"")
