"""What waits costs nothing: nobody looks again and again whether something has come."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from broker import Broker

from harness import program

IDLE = """
import sys, threading
from ucall import queue as nq

protocol, host, port = sys.argv[1:]
place = nq.NetworkLocation(host, int(port))
server = nq.new(protocol, "server", nq.CommunicatorOptions(netloc=place))
if server.address:
    place = nq.NetworkLocation(*server.address)
client = nq.new(protocol, "client", nq.CommunicatorOptions(netloc=place))
for sender, taker in ((client, server), (server, client)):
    sender.put("here").result(20)
    taker.get(timeout=20)
# Threads that wait are told, and do not look.
came = []
for side in (server, client):
    for _ in range(5):
        threading.Thread(target=lambda side=side: came.append(side.get().data), daemon=True).start()
print("idle", flush=True)
sys.stdin.readline()
client.put("still here").result(20)
while not came:
    threading.Event().wait(0.01)
print(*came, flush=True)
"""
IDLE_S = 2.0
# Once a second each side looks at what depends on time. To look every 10 ms is 100 a second.
SWITCHES_A_SECOND_MAX = 30


def switches(process: Any) -> int:
    """How often the threads of a process have gone to sleep."""
    count = 0
    for status in Path(f"/proc/{process.pid}/task").glob("*/status"):
        # A thread may end meanwhile.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            line = next(it for it in status.read_text().splitlines() if it.startswith("voluntary"))
            count += int(line.split()[1])
    return count


@pytest.mark.parametrize("protocol", ["tcp", "unix", "shm", "mqtt", "grpc"])
def test_nobody_polls(protocol: str, tmp_path: Path, shared_broker: Callable[[], Broker]) -> None:
    host, port = "127.0.0.1", 0
    if protocol == "mqtt":
        port = shared_broker().port
    elif protocol in ("unix", "shm"):
        host = str(tmp_path / "idle.sock")
    with program(IDLE, protocol, host, str(port)) as process:
        assert process.stdout.readline() == "idle\n"
        time.sleep(0.3)
        before = switches(process)
        time.sleep(IDLE_S)
        slept = switches(process) - before
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "still here\n"
    assert slept < IDLE_S * SWITCHES_A_SECOND_MAX
