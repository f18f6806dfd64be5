"""Publications across worker processes, and the memory that slow clients cost."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from message_client import Client
from test_workers import Supervised, supervised

from harness import Wire, eventually, program

APP = """
import os, ucall
server = ucall.Server(port=0)
@server
def subscribe(ctx: ucall.Context, topic: str) -> int:
    ctx.subscribe(topic)
    return os.getpid()
@server
def publish(topic: str, number: int, length: int = 0) -> int:
    server.publish(topic, "m", [number, "x" * length])
    return os.getpid()
@server
def stats() -> dict:
    return server.stats()
"""


class Workers:
    """A subscriber at each worker process, and a caller."""

    def __init__(self, stack: ExitStack, app: Supervised, count: int) -> None:
        self._stack = stack
        self._app = app
        self.subscribers: dict[int, Client] = {}
        self.subscribe_all(count)

    def subscribe_all(self, count: int) -> None:
        assert eventually(lambda: bool(self.subscribe()) and len(self.subscribers) == count)

    def subscribe(self) -> int:
        """Subscribes a new client at any worker; returns that worker's process id."""
        client = self._stack.enter_context(Client("raw", self._app.port))
        pid: int = client.call("subscribe", "t")
        if pid in self.subscribers:
            client.close()
        else:
            self.subscribers[pid] = client
        return pid

    def publish(self, number: int, length: int = 0) -> int:
        pid: int = self._app.call("publish", ["t", number, length])
        return pid

    def reaches_all(self, number: int, length: int = 0) -> bool:
        """Publishes from each of the workers."""
        publishers: set[int] = set()
        while publishers != self.subscribers.keys():
            publishers.add(self.publish(number, length))
            for client in self.subscribers.values():
                assert client.message() == ("m", [number, "x" * length])
        return True


def test_publish_reaches_the_clients_of_all_workers(tmp_path: Path) -> None:
    with supervised(tmp_path, "--workers", "3", source=APP) as app, ExitStack() as stack:
        app.wait_for(3)
        workers = Workers(stack, app, 3)
        for number, length in enumerate([0, 100, 15_000, 20_000, 3_000_000]):
            assert workers.reaches_all(number, length)
        app.stop()


def test_a_worker_that_is_started_again_gets_publications(tmp_path: Path) -> None:
    with supervised(tmp_path, "--workers", "2", source=APP) as app, ExitStack() as stack:
        app.wait_for(2)
        workers = Workers(stack, app, 2)
        assert workers.reaches_all(1)
        for round in range(2):
            killed = min(workers.subscribers)
            del workers.subscribers[killed]
            os.kill(killed, signal.SIGKILL)
            # For nobody: the next subscriber must not get it.
            app.wait_for(3 + round)
            workers.publish(-1)
            assert next(iter(workers.subscribers.values())).message() == ("m", [-1, ""])
            workers.subscribe_all(2)
            assert workers.reaches_all(2 + round, 50_000)
        app.stop()


def test_workers_that_are_replaced_get_publications(tmp_path: Path) -> None:
    with supervised(tmp_path, "--workers", "2", source=APP) as app, ExitStack() as stack:
        app.wait_for(2)
        workers = Workers(stack, app, 2)
        app.process.send_signal(signal.SIGHUP)
        pids = app.wait_for(4)[2:]
        for client in workers.subscribers.values():
            # The worker that is replaced closes what has no call.
            assert client.wire.rest() == b""
        workers.subscribers.clear()
        assert eventually(lambda: workers.subscribe() in pids and len(workers.subscribers) == 2)
        assert workers.reaches_all(1)
        app.stop()


def test_a_worker_that_takes_nothing_blocks_no_publisher(tmp_path: Path) -> None:
    with supervised(tmp_path, "--workers", "2", source=APP) as app, ExitStack() as stack:
        app.wait_for(2)
        workers = Workers(stack, app, 2)
        stopped, running = sorted(workers.subscribers)
        slow, quick = workers.subscribers[stopped], workers.subscribers[running]
        caller = stack.enter_context(Wire(app.port))
        while caller.result("publish", ["other", 0]) != running:
            caller = stack.enter_context(Wire(app.port))
        os.kill(stopped, signal.SIGSTOP)
        try:
            for number in range(2_000):
                assert caller.result("publish", ["t", number, 5_000]) == running
                assert quick.message()[1][0] == number
        finally:
            os.kill(stopped, signal.SIGCONT)
        assert app.call("stats")["dropped_messages"] > 0
        # The worker goes on where it was stopped, and gets later publications.
        assert slow.message()[1][0] == 0

        def is_received() -> bool:
            caller.result("publish", ["t", -1])
            return bool(slow.message()[1][0] == -1)

        assert eventually(is_received)
        app.stop()


MEMORY = """
import os, resource, sys, threading
import ucall, ucall.posix, ucall.uring
server = getattr(ucall, sys.argv[1]).Server(port=0)
@server
def subscribe(ctx: ucall.Context, overflow: str) -> None:
    ctx.subscribe("t", overflow)
@server
def resident() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGESIZE")
server.start()
print(server.port, flush=True)
for line in sys.stdin:
    for _ in range(int(line)):
        server.publish("t", "m", ["x" * 100_000])
    print("published", flush=True)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_is_flat_when_subscribers_never_read(engine: str) -> None:
    with program(MEMORY, engine) as process, ExitStack() as stack:
        port = int(process.stdout.readline())
        for number in range(100):
            slow = stack.enter_context(Client("raw", port))
            slow.call("subscribe", ["drop_oldest", "drop_newest"][number % 2])
        caller = stack.enter_context(Client("raw", port))

        def publish(count: int) -> int:
            process.stdin.write(f"{count}\n")
            process.stdin.flush()
            process.stdout.readline()
            resident: int = caller.call("resident")
            return resident

        publish(200)
        before = publish(200)
        after = publish(2_000)
        # Each subscriber has one message that is sent, and eleven that wait; they share most.
        assert after - before < 8 << 20, (before, after)
