"""What waits costs nothing: nobody looks again and again whether something has come.

A thread beside them does look, every 10 ms, and the others are measured against it: what slows one
of them down slows them all. One window in which nobody looks is enough, since whoever polls does it
in every window, while a library's threads may have something to end first.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest
from broker import Broker

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
# One who polls, in one window. The others look once a second at what depends on time.
POLLS = 100
# A window takes a second where the machine has time.
PATIENCE_S = 60


def sleeps(thread: Path) -> int:
    """How often a thread has gone to sleep."""
    lines = (thread / "status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("voluntary"))


def sleeps_of_all(threads: Path) -> dict[str, int]:
    counts = {}
    for thread in threads.iterdir():
        # One may end meanwhile.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            counts[thread.name] = sleeps(thread)
    return counts


def most_of_others(threads: Path, poller: str) -> int:
    """How often the one of the others slept that slept most, while the poller did ``POLLS``."""
    before = sleeps_of_all(threads)
    enough = before[poller] + POLLS
    assert eventually(lambda: sleeps(threads / poller) >= enough, PATIENCE_S)
    after = sleeps_of_all(threads)
    del after[poller]
    return max(count - before.get(thread, 0) for thread, count in after.items())


@pytest.mark.parametrize("protocol", ["tcp", "unix", "shm", "mqtt", "grpc"])
def test_idle_threads_do_not_poll(
    protocol: str, tmp_path: Path, shared_broker: Callable[[], Broker]
) -> None:
    host, port = "127.0.0.1", 0
    if protocol == "mqtt":
        port = shared_broker().port
    elif protocol in ("unix", "shm"):
        host = str(tmp_path / "idle.sock")
    with program(IDLE, protocol, host, str(port)) as process:
        threads, poller = Path(f"/proc/{process.pid}/task"), process.stdout.readline().strip()
        assert eventually(lambda: most_of_others(threads, poller) < POLLS / 2, PATIENCE_S)
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "still here\n"
