"""A peer that is killed and does not return: its futures fail, and its memory is freed."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
import uuid
import weakref

import numpy as np
import pytest
from pairs import Pairs
from resources import descriptors, shared_maps, wait_until

from harness import new_interpreter, program

WAIT_S = 60
CLIENT = """
import sys, time
from ucall import queue as nq

protocol, host, port, topic = sys.argv[1:]
place, broker = nq.NetworkLocation(host, int(port)), nq.BrokerOptions(topic=topic)
queue = nq.new(protocol, "client", nq.CommunicatorOptions(netloc=place, broker=broker))
queue.put("first")
queue.put("second").result(60)
print(queue.id, flush=True)
sys.stdin.readline()
"""
STANDS_STILL = """
for number in range(200):
    queue.put(number)
    if number % 10 == 0:
        time.sleep(0.01)
queue.close(20)
"""


@pytest.mark.parametrize("pairs", ["tcp", "unix", "shm", "mqtt", "grpc", "nats"], indirect=True)
def test_an_expired_peer_fails_and_frees_its_messages(pairs: Pairs) -> None:
    server = pairs.server(expire_s=0.5, ack="taken")
    other = pairs.client(server)
    other.put("here").result(WAIT_S)
    assert server.get(timeout=WAIT_S).peer == other.id
    ended: list[uuid.UUID] = []
    over = threading.Event()
    server.on_end(lambda peer: (ended.append(peer), over.set()))
    at = server.options.netloc if server.address is None else server.address
    before = descriptors(), shared_maps()
    arguments = [str(it) for it in (*at, server.options.broker.topic)]
    with program(CLIENT, str(pairs.protocol), *arguments) as process:
        gone = uuid.UUID(process.stdout.readline().strip())
        assert set(server.peers()) == {gone, other.id}
        arrays = [np.zeros(50_000) for _ in range(20)]
        kept = [weakref.ref(array) for array in arrays]
        # It gets none of them: some are in flight, some are queued.
        futures = [server.put(array, gone) for array in arrays[:10]]
        process.kill()
        process.wait()
        futures += [server.put(array, gone) for array in arrays[10:]]
        del arrays
    for future in futures:
        with pytest.raises(ConnectionError) as caught:
            future.result(WAIT_S)
        assert caught.value.peer == gone  # type: ignore[attr-defined]
    assert over.wait(WAIT_S)
    assert (ended, server.peers()) == ([gone], [other.id])
    with pytest.raises(ConnectionError):
        server.put("late", gone).result(WAIT_S)
    # Other peers are not affected, and the messages that it had put are there.
    server.put("on")
    assert other.get(timeout=WAIT_S).data == "on"
    assert [server.get(timeout=WAIT_S).data for _ in range(2)] == ["first", "second"]

    def is_free() -> bool:
        server.put("let go", other.id)
        return all(array() is None for array in kept)

    del futures, future, caught
    gc.collect()
    wait_until(is_free)
    wait_until(lambda: (descriptors(), shared_maps()) <= before)


@pytest.mark.parametrize("pairs", ["tcp", "shm", "mqtt", "nats"], indirect=True)
@pytest.mark.parametrize("expire_s", [30, 0.4])
@pytest.mark.slow
def test_a_stopped_peer_resumes_or_expires(pairs: Pairs, expire_s: float) -> None:
    server = pairs.server(expire_s=expire_s, keepalive_s=0.1)
    at = server.options.netloc if server.address is None else server.address
    arguments = [str(it) for it in (*at, server.options.broker.topic)]
    with new_interpreter(CLIENT + STANDS_STILL, str(pairs.protocol), *arguments) as process:
        peer = uuid.UUID(process.stdout.readline().strip())
        process.stdin.write("\n")
        process.stdin.flush()
        received = [server.get(timeout=WAIT_S).data for _ in range(10)]
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        futures = [server.put(number, peer) for number in range(10)]
        if expire_s < 1:
            # The connection is closed first, with all messages that wait.
            for future in futures:
                with pytest.raises(ConnectionError):
                    future.result(WAIT_S)
        else:
            time.sleep(0.5)
        process.send_signal(signal.SIGCONT)
        # Its messages arrive in order and once. Only if the session expired before it had read the
        # acknowledgements, it sends those messages again, marked `redelivered`.
        while received[-1] != 199:
            message = server.get(timeout=WAIT_S)
            assert expire_s < 1 or not message.redelivered
            if not (message.redelivered and message.data in received):
                received.append(message.data)
        assert received == ["first", "second", *range(200)]
        if expire_s > 1:
            for future in futures:
                future.result(WAIT_S)
