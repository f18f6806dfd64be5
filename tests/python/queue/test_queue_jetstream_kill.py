"""A queue over JetStream whose producers, consumers and brokers are killed at random.

`make test-queue-long` runs it with 100,000 messages over a cluster of three, and else with few over
one broker, because a cluster takes seconds to elect leaders.
"""

from __future__ import annotations

import collections
import contextlib
import os
import random
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from brokers import NatsServer, cluster, jetstream, version
from progress import Progress

from harness import eventually

LONG = bool(os.environ.get("UCALL_QUEUE_LONG"))
COUNT = int(os.environ.get("UCALL_QUEUE_MESSAGES", "1500"))
KILLS = 30 if LONG else 3
WAIT_S = 60 + COUNT / 500
#: Seconds after which the messages of a killed consumer go to another one.
EXPIRE_S = 2
OPTIONS = """
import collections, json, os, sys, time
from ucall import queue as nq

urls, topic, replicas, *rest = sys.argv[1:]
def options(**given):
    return nq.CommunicatorOptions(
        connection=nq.ConnectionOptions(reconnect=(0.02, 0.1), **given),
        broker=nq.BrokerOptions(topic=topic, urls=urls, replicas=int(replicas)),
    )
"""
# Puts (number, life), and prints each number that is stored. A new process is another life: what it
# puts is another message, because it does not know whether the one before was stored.
PRODUCER = (
    OPTIONS
    + """
first, last, life = map(int, rest)
queue = nq.new("jetstream", "client", options(full="block", queue_size=200_000, expire_s=600))
futures = collections.deque()
for number in range(first, last):
    futures.append((number, queue.put((number, life))))
    while futures and (futures[0][1].done() or number == last - 1):
        number_stored, future = futures.popleft()
        future.result()
        os.write(1, b"%d\\n" % number_stored)
queue.close()
"""
)
# Prints what it gets, and then acknowledges it. One that was not connected when a node was killed
# does not know that the node may have forgotten what it had delivered.
CONSUMER = (
    OPTIONS
    + """
queue = nq.new("jetstream", "server", options(ack="explicit", expire_s=float(rest[0])))
while queue.state != "connected":
    time.sleep(0.01)
os.write(1, b"connected\\n")
while True:
    message = queue.get()
    os.write(1, b"%d %d %d\\n" % (*message.data, message.redelivered))
    message.ack()
"""
)


class Process:
    """A process that is killed and started again, and whose lines of numbers are read."""

    def __init__(self, source: str, *arguments: str) -> None:
        #: The first numbers of all lines.
        self.numbers: set[int] = set()
        self.lines: list[tuple[int, ...]] = []
        self.lives = 0
        #: Of the process that runs.
        self.is_connected = False
        self._command = [sys.executable, "-c", source, *arguments]
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None

    def start(self, *more: int) -> None:
        command = [*self._command, *map(str, more)]
        self.is_connected = False
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        self.lives += 1

    def kill(self) -> None:
        """Kills it, and reads what it has written before."""
        assert self._process is not None
        assert self._reader is not None
        self._process.kill()
        self._reader.join()
        self._process.wait()

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                # The last line of a killed process may be cut.
                if line == "connected\n":
                    self.is_connected = True
                elif line.endswith("\n"):
                    self.lines.append(tuple(map(int, line.split())))
                    self.numbers.add(self.lines[-1][0])


class Producer(Process):
    """Puts its numbers; a killed one is followed by one that puts the numbers not stored."""

    def __init__(self, first: int, last: int, *arguments: str) -> None:
        super().__init__(PRODUCER, *arguments)
        self._first, self._last = first, last

    def start_again(self) -> None:
        while self._first in self.numbers:
            self._first += 1
        self.start(self._first, self._last, self.lives)


@contextlib.contextmanager
def brokers(folder: Path) -> Iterator[list[NatsServer]]:
    if LONG:
        with cluster(store=folder) as nodes:
            yield nodes
    else:
        with NatsServer(*jetstream(folder / "node")) as node:
            yield [node]


def test_no_message_is_lost_and_repeats_are_marked(tmp_path: Path) -> None:
    if version() < (2, 10):
        pytest.skip("nats-server before 2.10 may stop delivering stored messages")
    generator = random.Random(17)
    with brokers(tmp_path) as nodes, contextlib.ExitStack() as stack:
        urls = ",".join(node.url for node in nodes)
        arguments = urls, f"kill-{uuid.uuid4()}", str(len(nodes))
        half = COUNT // 2
        producers = [Producer(*it, *arguments) for it in ((0, half), (half, COUNT))]
        consumers = [Process(CONSUMER, *arguments, str(EXPIRE_S)) for _ in range(2)]
        for process in (*producers, *consumers):
            stack.callback(process.kill)
        for producer in producers:
            producer.start_again()
        for consumer in consumers:
            consumer.start()

        def received() -> set[int]:
            return set().union(*(consumer.numbers.copy() for consumer in consumers))

        def until(count: int) -> bool:
            return eventually(lambda: len(received()) >= count, timeout_s=WAIT_S)

        kinds = ["producer", "consumer", "node"]
        killed: collections.Counter[str] = collections.Counter()
        with Progress(f"{COUNT:,} messages, killed at random", COUNT) as progress:
            for number in range(KILLS):
                enough = (number + 1) * COUNT // (KILLS + 2)
                assert until(enough)
                # Each kind at first, so that a short test has all of them.
                kind = kinds[number] if number < 3 else generator.choice(kinds)
                if kind == "producer":
                    running = [it for it in producers if it.is_running]
                    if running:
                        producer = generator.choice(running)
                        producer.kill()
                        producer.start_again()
                elif kind == "consumer":
                    consumer = generator.choice(consumers)
                    consumer.kill()
                    consumer.start()
                else:
                    node = generator.choice(nodes)
                    assert eventually(lambda: all(it.is_connected for it in consumers))
                    node.kill()
                    time.sleep(1 if LONG else 0)
                    node.start()
                killed[kind] += 1
                progress.update(enough, f", killed {dict(killed)}")
            until(COUNT)
            lost = set(range(COUNT)) - received()
            assert not lost, f"{len(lost)} of {COUNT} are lost: {sorted(lost)[:10]}"
        eventually(lambda: not any(it.is_running for it in producers), timeout_s=WAIT_S)
        # What killed consumers had got, and not acknowledged.
        time.sleep(EXPIRE_S + 1 if LONG else 0)
        lines = [line for consumer in consumers for line in consumer.lines]
        unmarked = collections.Counter(it[:2] for it in lines if not it[2])
        repeated = [key for key, count in unmarked.items() if count > 1]
        assert not repeated, f"{len(repeated)} came again and were not marked: {repeated[:10]}"
        assert min(killed[kind] for kind in kinds) > 0
        if LONG:
            repeats, marked = len(lines) - len({it[:2] for it in lines}), sum(it[2] for it in lines)
            print(f"\n{COUNT:,} messages, {repeats:,} repeats, {marked:,} marked; {dict(killed)}")
