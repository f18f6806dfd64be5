"""Waiting costs no CPU time: no thread polls.

A test thread polls every 10 ms, and the other threads are compared with it, because a slow machine
slows all of them down. One window without polling is enough: a thread that polls does so in every
window, while a library's threads may have work to finish first.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from broker import BROKERS, SharedBroker

from harness import eventually, program

IDLE = """
import sys, threading, time
from ucall import queue as nq

protocol, host, port = sys.argv[1:]
place = nq.NetworkLocation(host, int(port))
server = nq.new(protocol, "server", nq.CommunicatorOptions(netloc=place))
if server.address:
    place = nq.NetworkLocation(*server.address)
client = nq.new(protocol, "client", nq.CommunicatorOptions(netloc=place))
for sender, taker in ((client, server), (server, client)):
    sender.put("here").result(60)
    taker.get(timeout=60)
# Threads that wait are told, and do not look.
came = []
for side in (server, client):
    for _ in range(5):
        threading.Thread(target=lambda side=side: came.append(side.get().data), daemon=True).start()
def poll():
    print(threading.get_native_id(), flush=True)
    while True:
        time.sleep(0.01)
threading.Thread(target=poll, daemon=True).start()
sys.stdin.readline()
client.put("still here").result(60)
while not came:
    threading.Event().wait(0.01)
print(*came, flush=True)
"""
# The polls of the test thread in one window. Other threads wake once a second for time limits.
POLLS = 100
# A window takes a second on an idle machine.
PATIENCE_S = 60


def sleeps(thread: Path) -> int:
    """The number of times that a thread has gone to sleep."""
    lines = (thread / "status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("voluntary"))


def sleeps_of_all(threads: Path) -> dict[str, int]:
    counts = {}
    for thread in threads.iterdir():
        # A thread may end meanwhile.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            counts[thread.name] = sleeps(thread)
    return counts


def most_of_others(threads: Path, poller: str) -> int:
    """The most sleeps of any other thread while the polling thread made ``POLLS``."""
    before = sleeps_of_all(threads)
    enough = before[poller] + POLLS
    assert eventually(lambda: sleeps(threads / poller) >= enough, PATIENCE_S)
    after = sleeps_of_all(threads)
    del after[poller]
    return max(count - before.get(thread, 0) for thread, count in after.items())


@pytest.mark.parametrize("protocol", ["tcp", "unix", "shm", "mqtt", "grpc", "nats"])
@pytest.mark.slow
def test_idle_threads_do_not_poll(
    protocol: str, tmp_path: Path, shared_broker: SharedBroker
) -> None:
    host, port = "127.0.0.1", 0
    if protocol in BROKERS:
        port = shared_broker(protocol).port
    elif protocol in ("unix", "shm"):
        host = str(tmp_path / "idle.sock")
    with program(IDLE, protocol, host, str(port)) as process:
        threads, poller = Path(f"/proc/{process.pid}/task"), process.stdout.readline().strip()
        assert eventually(lambda: most_of_others(threads, poller) < POLLS / 2, PATIENCE_S)
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "still here\n"
