"""Lifetimes of communicators: forks, reference cycles, and the ends of threads and programs."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import os
import random
import signal
import subprocess
import sys
import threading
import time
import uuid
import weakref
from pathlib import Path
from typing import Any

import forking
import pytest
from pairs import Pairs, free_location

from harness import eventually, in_asyncio
from ucall import queue as nq
from ucall.aio import queue as anq

WAIT_S = 60
FORKS = """
import os, sys
from ucall import queue as nq

here = nq.CommunicatorOptions(netloc=nq.NetworkLocation(port=0))
server = nq.new(purpose=nq.Purpose.SERVER, options=here)
there = nq.CommunicatorOptions(netloc=nq.NetworkLocation(*server.address))
client = nq.new(options=there)
client.put("before").result(60)
lost = nq.new(options=nq.CommunicatorOptions(netloc=nq.NetworkLocation(port=1)))
pending = lost.put("never")
child = os.fork()
if child == 0:
    for use in (lambda: client.put("x"), server.get, client.peers, pending.result):
        try:
            use()
        except RuntimeError:
            print("refused")
    client.close()
    sys.exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
client.put("after").result(60)
print([server.get(timeout=60).data for _ in range(2)])
lost.close(0)
"""
FORKS_UNDER_LOAD = """
import os, signal, threading
import numpy as np
from ucall import queue as nq

def pair():
    here = nq.CommunicatorOptions(netloc=nq.NetworkLocation(port=0))
    server = nq.new(purpose=nq.Purpose.SERVER, options=here)
    there = nq.CommunicatorOptions(netloc=nq.NetworkLocation(*server.address))
    return server, nq.new(options=there)

def put_and_get(server, client):
    called = threading.Event()
    client.put(np.ones(20_000)).add_done_callback(lambda future: called.set())
    server.get(timeout=60)
    assert called.wait(60)

def repeat(server, client):
    array = np.ones(20_000)
    while True:
        client.put(array)
        server.get()

def call_back(server, client):
    future = client.put(np.ones(1))
    while True:
        future.add_done_callback(lambda future: None)

used = pair()
for use in (USES):
    threading.Thread(target=use, args=used, daemon=True).start()
for _ in range(30):
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        put_and_get(*pair())
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
print("done", flush=True)
os._exit(0)
"""
FORKS_AFTER_GRPC = """
import os, signal, sys
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
from ucall import queue as nq

def new(purpose):
    options = nq.CommunicatorOptions(netloc=nq.NetworkLocation(port=0))
    return nq.new("grpc", purpose, options)

new("server").close()
child = os.fork()
if child == 0:
    signal.alarm(60)
    for purpose in ("server", "client"):
        try:
            new(purpose)
        except RuntimeError as error:
            print(error)
    sys.exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
new("server").close()
"""
EXITS = """
import threading, time
from ucall import queue as nq

here = nq.CommunicatorOptions(netloc=nq.NetworkLocation(port=0))
server = nq.new(purpose=nq.Purpose.SERVER, options=here)
there = nq.NetworkLocation(*server.address)
clients = [nq.new(options=nq.CommunicatorOptions(netloc=there)) for _ in range(3)]
server.on_start(lambda peer: None)
for client in clients:
    client.on_end(lambda peer: None)
    client.put("x").add_done_callback(lambda future: None)
def get():
    try:
        while True:
            server.get()
    except ConnectionError:
        pass
threading.Thread(target=get, daemon=True).start()
# Nobody answers these: the program waits for all of them together.
lost = [
    nq.new(options=nq.CommunicatorOptions(netloc=nq.NetworkLocation("192.0.2.1", 1)))
    for _ in range(20)
]
for client in lost:
    client.put("x")
print("done", flush=True)
"""


#: What the end of a program logs of a queue with one message for nobody.
LOST = "this side has closed: 1 message was not acknowledged"


def run(program: str, timeout_s: float, lost: int = 0) -> str:
    # From 3.12 on Python warns of a fork beside threads, which one of these programs does.
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == lost and all(it.endswith(LOST) for it in lines), done.stderr
    return done.stdout


def test_a_forked_child_has_no_queue_and_exits() -> None:
    assert run(FORKS, WAIT_S, 1).split() == ["refused"] * 4 + ["7", "['before',", "'after']"]


@pytest.mark.parametrize("uses", ["repeat, repeat", "call_back,"])
def test_a_child_that_is_forked_under_load_has_queues_of_its_own(uses: str) -> None:
    assert run(FORKS_UNDER_LOAD.replace("USES", uses), 3 * WAIT_S) == "done\n"


def test_a_forked_child_has_no_grpc_if_its_parent_has() -> None:
    first, second, code = run(FORKS_AFTER_GRPC, 2 * WAIT_S).splitlines()
    assert first == second and first.startswith("grpcio does not work in a forked child")
    assert code == "7"


def test_a_program_exits_with_open_communicators() -> None:
    # Peers that never answer take 5 seconds together, not each.
    assert run(EXITS, 90, 20) == "done\n"


@pytest.mark.parametrize("pairs", ["tcp"], indirect=True)
def test_a_communicator_in_a_cycle_is_collected(pairs: Pairs) -> None:
    class Owner:
        def __init__(self) -> None:
            serialization = nq.SerializationOptions(load=self.load, dump=lambda it: [it])
            options = nq.CommunicatorOptions(
                netloc=nq.NetworkLocation(port=0), serialization=serialization
            )
            self.queue = nq.new(purpose=nq.Purpose.SERVER, options=options)

        def load(self, stream: nq.Stream) -> Any:
            return stream.read()

    owner = Owner()
    port = owner.queue.address[1]  # type: ignore[index]
    gone = weakref.ref(owner)
    del owner
    gc.collect()
    assert gone() is None
    # Its thread ends too, and closes the port.
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end:
        try:
            pairs.server(netloc=nq.NetworkLocation("127.0.0.1", port))
            return
        except OSError:
            time.sleep(0.01)
    raise AssertionError("the port is still in use")


@pytest.mark.parametrize("pairs", ["tcp", "mqtt", "grpc", "nats"], indirect=True)
@pytest.mark.parametrize("is_cycle", [False, True])
def test_a_dropped_communicator_delivers_and_is_released(pairs: Pairs, is_cycle: bool) -> None:
    class Pause:
        def __del__(self) -> None:
            # Lets other threads run while the weak references to its cycle are cleared.
            time.sleep(0.05)

    server, pause = pairs.server(), Pause()
    others = set(nq.Communicator._running)
    client = pairs.client(server)
    gone = weakref.ref(client)
    put = client.put("x")
    if is_cycle:
        client.cycle = client, pause  # type: ignore[attr-defined]
    del client, pause
    pairs.made.pop()
    gc.collect()
    assert server.get(timeout=WAIT_S).data == "x"
    put.result(WAIT_S)
    assert eventually(lambda: gone() is None and nq.Communicator._running <= others)


@pytest.mark.parametrize("pairs", ["tcp"], indirect=True)
def test_concurrent_puts_cancels_and_closes_lose_nothing(pairs: Pairs) -> None:
    server = pairs.server()
    client = pairs.client(server, transport_size=100_000)
    kept: list[list[int]] = [[] for _ in range(4)]

    def work(number: int) -> None:
        choices = random.Random(number)
        for place in range(3000):
            name = number * 10_000 + place
            data = (name, b"x" * choices.choice([0, 100, 20_000]))
            future = client.put(data)
            if choices.random() > 0.2 or not future.cancel():
                kept[number].append(name)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    received: list[int] = []
    closing = threading.Thread(target=lambda: ([it.join() for it in threads], client.close()))
    closing.start()
    while True:
        try:
            received.append(server.get(timeout=1).data[0])
        except TimeoutError:
            if not closing.is_alive():
                break
    for number in range(4):
        assert [name for name in received if name // 10_000 == number] == kept[number]


@pytest.mark.parametrize("pairs", ["tcp"], indirect=True)
def test_a_future_callback_added_late_is_called(pairs: Pairs) -> None:
    for _ in range(20):
        server = pairs.server()
        client = pairs.client(server)
        future = client.put("x")
        future.result(WAIT_S)
        client.on_end(lambda _: None)
        closing = [threading.Thread(target=it.close) for it in (client, server)]
        for thread in closing:
            thread.start()
        called = threading.Event()
        client.put("late").add_done_callback(lambda _, called=called: called.set())  # type: ignore[misc]
        assert called.wait(WAIT_S)
        for thread in closing:
            thread.join()


@pytest.mark.parametrize("pairs", ["tcp"], indirect=True)
@in_asyncio
async def test_a_cancelled_get_loses_no_message(pairs: Pairs) -> None:
    async with anq.Communicator(pairs.server()) as server:
        client = pairs.client(server._queue)
        client.put(0)
        assert (await server.get(timeout=WAIT_S)).data == 0
        received: list[int] = []
        choices = random.Random(7)
        sent = 0
        while sent < 300:
            getting = asyncio.create_task(server.get())
            await asyncio.sleep(0)
            sent += 1
            await asyncio.wrap_future(client.put(sent))
            # Before, as, or after it comes.
            for _ in range(choices.randrange(4)):
                await asyncio.sleep(0)
            getting.cancel()
            try:
                received.append((await getting).data)
            except asyncio.CancelledError:
                received.append((await server.get(timeout=WAIT_S)).data)
        assert received == list(range(1, 301))
        with pytest.raises(TimeoutError):
            await server.get(timeout=0)


# A server or a client that forks; the child continues without the queue.
PARENT = """
import os, subprocess, sys, time, uuid
from ucall import queue as nq
protocol, purpose, host, port, topic = sys.argv[1:]
options = nq.CommunicatorOptions(
    id=uuid.UUID(int=7), netloc=nq.NetworkLocation(host, int(port)),
    **({"broker": nq.BrokerOptions(topic=topic)} if topic else {}),
)
queue = nq.new(protocol, purpose, options)
if purpose == "client":
    queue.put("here")
queue.get()
listing, null = ["ls", "-l", "/proc/self/fd"], subprocess.DEVNULL
executed = subprocess.run(listing, close_fds=False, stdin=null, stdout=-1, text=True)
assert "/dev/null" in executed.stdout and "socket:" not in executed.stdout, executed.stdout
child = os.fork()
if child == 0:
    time.sleep(600)
    os._exit(0)
print(child, flush=True)
time.sleep(600)
"""


def server_once_free(pairs: Pairs, options: nq.CommunicatorOptions) -> nq.Communicator:
    """Waits until the system has released a ring, and with it the address."""
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            return pairs._new("server", options)
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.02)


@pytest.mark.parametrize("purpose", ["server", "client"])
@pytest.mark.parametrize("pairs", ["tcp", "unix", "shm", "mqtt"], indirect=True)
def test_a_killed_parent_expires_while_its_child_lives(
    pairs: Pairs, purpose: str, tmp_path: Path
) -> None:
    netloc, topic = free_location(), ""
    if pairs.protocol in ("unix", "shm"):
        netloc = nq.NetworkLocation(str(tmp_path / "fork.sock"), 0)
    if pairs.protocol == "mqtt":
        netloc, topic = nq.NetworkLocation(port=pairs.broker.port), f"test/{uuid.uuid4()}"
    broker = nq.BrokerOptions(topic=topic) if topic else nq.BrokerOptions()
    # Without the end of the connection the peer would notice only much later.
    expire_s = 600.0 if purpose == "server" else 0.1
    place = pairs.options(
        netloc=netloc,
        broker=broker,
        expire_s=expire_s,
        keepalive_s=600.0,
        reconnect=(0.01, 0.05),
    )
    ours = pairs._new("client" if purpose == "server" else "server", place)
    arguments = [sys.executable, "-c", PARENT, pairs.protocol, purpose, *map(str, netloc), topic]
    with forking.Python(arguments, stdout=subprocess.PIPE, text=True) as parent:
        if purpose == "client":
            assert ours.get(timeout=WAIT_S).data == "here"
        ours.put("begin").result(WAIT_S)
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        try:
            parent.kill()
            parent.wait()
            if purpose == "client":
                with pytest.raises(ConnectionError):
                    ours.put("to the dead").result(WAIT_S)
            else:
                # The address is free, and the client connects to it at once.
                again = server_once_free(pairs, dataclasses.replace(place, id=uuid.uuid4()))
                ours.put("again").result(WAIT_S)
                assert again.get(timeout=WAIT_S).data in ("begin", "again")
        finally:
            os.kill(child, signal.SIGKILL)
