"""Programs that end while their queues are busy: silently, at once, and without a crash."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pairs import Pairs

from harness import new_interpreter
from ucall import queue as nq

WAIT_S = 60
BEGINNING = """
import os, signal, sys, threading, time
import numpy as np
from ucall import queue as nq

protocol, path = sys.argv[1:]
place = nq.NetworkLocation(path, 0) if path else nq.NetworkLocation(port=0)
connection = nq.ConnectionOptions(queue_size=1 << 21)
options = nq.CommunicatorOptions(netloc=place, connection=connection)
server = nq.new(protocol, "server", options)
if server.address:
    place = nq.NetworkLocation(*server.address)
clients = [
    nq.new(protocol, "client", nq.CommunicatorOptions(netloc=place, connection=connection))
    for _ in range(3)
]
"""
#: Threads that are never stopped use all of the interface.
UNDER_LOAD = """
data = np.zeros(20_000)

def put(side):
    while True:
        try:
            side.put(data).add_done_callback(lambda _: None)
        except nq.FullError:
            time.sleep(0.001)

def get(side):
    while True:
        try:
            side.get()
        except ConnectionError:
            time.sleep(0.001)

for side in (server, *clients):
    side.on_start(lambda peer: None)
    side.on_end(lambda peer: None)
    for work in (put, get):
        threading.Thread(target=work, args=(side,), daemon=True).start()
for client in clients:
    client.put("here").result(60)
time.sleep(0.1)
print("done", flush=True)
"""
#: Threads that run callbacks of a queue while the interpreter is finalised, which takes a while.
WITHIN_CALLS = """
class Lingering:
    def __del__(self, sleep=time.sleep, write=os.write):
        sleep(0.4)
        write(1, b"finalised\\n")

def slowly(data):
    time.sleep(0.3)
    return [b"x"]

def read_slowly(stream):
    time.sleep(0.3)

def until_closed(work, *arguments):
    try:
        work(*arguments)
    except ConnectionError:
        pass

slow = nq.SerializationOptions(dump=slowly, load=read_slowly)
options = nq.CommunicatorOptions(netloc=place, serialization=slow)
late = nq.new(protocol, "client", options)
clients[0].put("here").result(60)
server.put(b"to all").result(60)
for _ in range(8):
    for arguments in ((late.put, None), (late.get,)):
        threading.Thread(target=until_closed, args=arguments, daemon=True).start()
        time.sleep(0.02)
threading.lingering = Lingering()
"""
INTERRUPTED = """
signal.signal(signal.SIGINT, signal.default_int_handler)
futures = [clients[0].put(number) for number in range(3)]
futures[-1].result(60)
try:
    print("waits", flush=True)
    clients[1].get()
except KeyboardInterrupt:
    print("interrupted", flush=True)
print([server.get(timeout=60).data for _ in range(3)])
"""

#: Puts into a queue that is dropped before the program ends.
DROPPED = """
import sys
from ucall import queue as nq

def put():
    protocol, host, port, topic = sys.argv[1:]
    options = nq.CommunicatorOptions(
        netloc=nq.NetworkLocation(host, int(port)), broker=nq.BrokerOptions(topic=topic)
    )
    queue = nq.new(protocol, "client", options)
    return [queue.put(bytes(20_000)) for _ in range(300)]

futures = put()
"""


def places(protocol: str, folder: Path) -> str:
    return str(folder / "exit.sock") if protocol in ("unix", "shm") else ""


def run(source: str, protocol: str, folder: Path) -> str:
    command = [sys.executable, "-c", BEGINNING + source, protocol, places(protocol, folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize("protocol", ["tcp", "shm", "grpc"])
def test_a_program_exits_under_load(protocol: str, tmp_path: Path) -> None:
    assert run(UNDER_LOAD, protocol, tmp_path) == "done\n"


@pytest.mark.parametrize("protocol", ["tcp", "grpc"])
def test_a_program_exits_during_queue_callbacks(protocol: str, tmp_path: Path) -> None:
    assert run(WITHIN_CALLS, protocol, tmp_path) == "finalised\n"


@pytest.mark.parametrize("pairs", ["tcp", "mqtt", "grpc", "nats"], indirect=True)
def test_a_program_delivers_what_a_dropped_queue_has(pairs: Pairs) -> None:
    # Most messages have to wait until `get` has returned others.
    server = pairs.server(transport_size=1 << 16)
    host, port = server.address or server.options.netloc
    options = nq.BrokerOptions() if pairs.protocol in ("tcp", "grpc") else server.options.broker
    with new_interpreter(DROPPED, pairs.protocol, host, str(port), options.topic) as process:
        for _ in range(300):
            assert server.get(timeout=WAIT_S).data == bytes(20_000)
        output = process.communicate(timeout=WAIT_S)
    assert (process.returncode, output) == (0, ("", ""))


def test_ctrl_c_interrupts_only_the_wait(tmp_path: Path) -> None:
    with new_interpreter(BEGINNING + INTERRUPTED, "tcp", "") as process:
        assert process.stdout.readline() == "waits\n"
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=WAIT_S)
    assert (output, errors) == ("interrupted\n[0, 1, 2]\n", "")
