"""Shared memory: views, their lifetimes, and the fallback without shared memory."""

from __future__ import annotations

import logging
import os
import resource
import socket
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import forking
import numpy as np
import pytest
from frames import PREAMBLE_BYTES
from pairs import Pairs
from resources import descriptors, shared_maps, wait_until

from ucall import queue as nq

WAIT_S = 60
# The lengths of an array that is copied out of shared memory, and of one that is viewed there.
LONG = 100_000
VIEWED = 600_000
COPIED_BYTES_MAX = 4 << 20
pytestmark = pytest.mark.parametrize("pairs", ["shm"], indirect=True)

# A client to which the system refuses shared memory or descriptors. It prints each message and
# sends it back.
REFUSED = """
import ctypes, logging, resource, os, platform, struct, sys
import numpy as np
from ucall import queue as nq
logging.basicConfig(format="%(name)s: %(message)s")
path, refuse, engine = sys.argv[1:]
if refuse == "memory":
    number = {"x86_64": 319, "aarch64": 279}[platform.machine()]
    steps = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (6, 0, 0, 0x50001), (6, 0, 0, 0x7FFF0000)]
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    told = struct.pack("HxxxxxxP", len(steps), ctypes.addressof(program))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(38, 1, 0, 0, 0) == 0
    assert libc.prctl(22, 2, told, 0, 0) == 0
options = nq.CommunicatorOptions(netloc=nq.NetworkLocation(path, 0), engine=engine)
with nq.new("shm", "client", options) as queue:
    queue.put("here")
    if refuse == "descriptors":
        assert queue.get(timeout=60).data == "begin"
        most = max(map(int, os.listdir("/proc/self/fd")))
        held = [os.open("/dev/null", os.O_RDONLY) for _ in range(most)]
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(held) + 1, max(held) + 1))
        queue.put(np.arange(600_000)).result(60)
        print("put", flush=True)
        for descriptor in held:
            os.close(descriptor)
    array = queue.get(timeout=60).data
    print(array.flags.writeable, flush=True)
    queue.put(array + 1).result(60)
"""


def test_arrays_are_views_that_keep_their_memory(pairs: Pairs, engine: str) -> None:
    server = pairs.server(engine=engine)
    client = pairs.client(server, engine=engine)
    client.put("here")
    server.get(timeout=WAIT_S)
    before = descriptors()
    held = []
    for number in range(10):
        client.put({"a": np.full(VIEWED, number), "b": np.full(VIEWED, -number)}).result(WAIT_S)
        held.append(server.get(timeout=WAIT_S).data)
    assert descriptors() <= before
    assert shared_maps("r--p") == 10
    for number, data in enumerate(held):
        assert (data["a"] == number).all()
        assert (data["b"] == -number).all()
        with pytest.raises(ValueError, match="WRITEABLE"):
            data["a"].flags.writeable = True
    last = held[7]["b"][5:10]
    del held, data
    wait_until(lambda: shared_maps() == 1)
    client.close()
    server.close()
    assert last.tolist() == [-7] * 5
    del last
    wait_until(lambda: shared_maps() == 0)


def test_viewed_messages_start_past_the_copy_limit(pairs: Pairs, engine: str) -> None:
    server = pairs.server(engine=engine)
    client = pairs.client(server, engine=engine)
    for more in (0, 1):
        # The stream precedes the array, which starts at a multiple of 64 bytes.
        stream = nq.PickleSerializer().dump(np.zeros(COPIED_BYTES_MAX, np.uint8)).nbytes
        count = COPIED_BYTES_MAX - -(-stream // 64) * 64 + more
        array = np.random.default_rng(more).integers(0, 256, count, np.uint8)
        client.put(array).result(WAIT_S)
        got = server.get(timeout=WAIT_S).data
        assert np.array_equal(got, array)
        assert got.flags.writeable == (not more)
        assert (shared_maps("r--s"), shared_maps("r--p")) == (1, more)


def test_copies_survive_slot_reuse(pairs: Pairs, engine: str) -> None:
    server = pairs.server(engine=engine)
    client = pairs.client(server, engine=engine)
    held = []
    for burst in range(5):
        numbers = range(burst * 40, burst * 40 + 40)
        futures = [client.put(np.full(LONG, number)) for number in numbers]
        held += [server.get(timeout=WAIT_S).data for _ in futures]
        for future in futures:
            future.result(WAIT_S)
    for number, array in enumerate(held):
        assert (array == number).all()
        array[:] = -1
    # At most 16 MiB of slots.
    assert 0 < shared_maps("r--s") <= 20
    assert shared_maps("r--p") == 0
    client.close()
    server.close()
    wait_until(lambda: shared_maps() == 0)


def test_messages_fall_back_to_the_socket_without_slots(pairs: Pairs, engine: str) -> None:
    server = pairs.server(engine=engine)
    client = pairs.client(server, engine=engine, transport_size=1 << 16)
    for number in range(3):
        client.put(np.full(LONG, number))
        assert (server.get(timeout=WAIT_S).data == number).all()
    assert shared_maps() == 0


@pytest.mark.parametrize("trusting", ["both", "server", "client"])
def test_slots_are_reused_only_between_trusted_peers(
    pairs: Pairs, engine: str, trusting: str
) -> None:
    server = pairs.server(engine=engine, trusted=trusting != "client")
    client = pairs.client(server, engine=engine, trusted=trusting != "server")
    held = []
    for number in range(100):
        client.put(np.full(LONG, number)).result(WAIT_S)
        array = server.get(timeout=WAIT_S).data
        assert (array == number).all()
        if number % 10 == 0:
            held.append(array)
        del array
    if trusting == "both":
        # The held slots, and a few in transit.
        assert shared_maps("r--p") == 0
        assert len(held) <= shared_maps("r--s") <= len(held) + 5
    else:
        assert shared_maps("r--p") == 0
        assert 0 < shared_maps("r--s") <= 3
    for position, array in enumerate(held):
        assert (array == 10 * position).all()
        assert array.flags.writeable == (trusting != "both")


def test_trusted_views_start_at_256_kib(pairs: Pairs, engine: str) -> None:
    server = pairs.server(engine=engine, trusted=True)
    client = pairs.client(server, engine=engine, trusted=True)
    for more in (-1, 0):
        # A table of two lengths, the stream and the array.
        stream = nq.PickleSerializer().dump(np.zeros(256 << 10, np.uint8)).nbytes
        array = np.full((256 << 10) - 16 - stream + more, 7, np.uint8)
        client.put(array).result(WAIT_S)
        got = server.get(timeout=WAIT_S).data
        assert (got == 7).all()
        assert got.flags.writeable == (more < 0)


def test_more_messages_in_flight_than_slots(pairs: Pairs, engine: str) -> None:
    given = {"engine": engine, "trusted": True, "transport_size": 1 << 20}
    server = pairs.server(**given)
    client = pairs.client(server, **given)
    futures = [client.put(np.full(LONG, number)) for number in range(10)]
    held = [server.get(timeout=WAIT_S).data for _ in futures]
    assert 0 < shared_maps("r--s") <= 2
    assert shared_maps("r--p") >= 8
    for number, array in enumerate(held):
        assert (array == number).all()
    futures[-1].result(WAIT_S)


def test_unviewable_objects_arrive_unchanged(pairs: Pairs, engine: str) -> None:
    server = pairs.server(engine=engine, trusted=True)
    client = pairs.client(server, engine=engine, trusted=True)
    for data in (b"b" * LONG, "t" * LONG, "\N{SNOWMAN}" * LONG, ["x" * LONG, b"y" * LONG]):
        for _ in range(3):
            client.put(data)
            assert server.get(timeout=WAIT_S).data == data
    assert shared_maps("r--s") > 0


def test_broadcasts_reach_all_clients(pairs: Pairs, engine: str) -> None:
    server = pairs.server(engine=engine)
    clients = [pairs.client(server, engine=engine) for _ in range(5)]
    for client in clients:
        client.put("here")
        server.get(timeout=WAIT_S)
    future = server.put(np.arange(LONG))
    for client in clients:
        assert (client.get(timeout=WAIT_S).data == np.arange(LONG)).all()
    future.result(WAIT_S)


@pytest.mark.parametrize("count", [10 << 20, 40 << 20])
def test_a_message_longer_than_one_turn(pairs: Pairs, engine: str, count: int) -> None:
    server = pairs.server(engine=engine)
    client = pairs.client(server, engine=engine)
    array = np.resize(np.arange(251, dtype=np.uint8), count)
    client.put(array)
    after = client.put("after")
    assert np.array_equal(server.get(timeout=WAIT_S).data, array)
    assert server.get(timeout=WAIT_S).data == "after"
    after.result(WAIT_S)


@pytest.mark.parametrize("refuse", ["memory", "descriptors"])
def test_refused_shared_memory_falls_back_to_the_socket(
    pairs: Pairs, engine: str, refuse: str
) -> None:
    server = pairs.server(engine=engine)
    command = [sys.executable, "-c", REFUSED, server.options.netloc.host, refuse, engine]
    process = forking.Python(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert server.get(timeout=WAIT_S).data == "here"
        if refuse == "descriptors":
            server.put("begin")
            array = server.get(timeout=WAIT_S).data
            assert array.flags.writeable
            assert (array == np.arange(VIEWED)).all()
        server.put(np.arange(VIEWED))
        array = server.get(timeout=WAIT_S).data
        assert (array == np.arange(VIEWED) + 1).all()
        assert array.flags.writeable == (refuse == "memory")
        printed, logged = process.communicate(timeout=WAIT_S)
    finally:
        process.kill()
        process.wait()
    # It can still receive shared memory.
    assert printed.split()[-1] == "False"
    assert logged.startswith("ucall: no shared memory (") == (refuse == "memory"), logged
    del array


@pytest.fixture
def reachable() -> Iterator[str]:
    """A folder that other users may open; pytest's folders are private."""
    with tempfile.TemporaryDirectory() as folder:
        yield folder


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_another_user_gets_no_channel(pairs: Pairs, reachable: str) -> None:
    folder, path = reachable, f"{reachable}/q.sock"
    server = pairs.server(netloc=nq.NetworkLocation(path, 0))
    for reached in (folder, path):
        os.chmod(reached, 0o777)
    client_side, server_side = socket.socketpair()
    stranger = socket.socket(socket.AF_UNIX)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        try:
            os.setuid(65534)
            stranger.connect(path)
            data, descriptors, _, _ = socket.recv_fds(stranger, PREAMBLE_BYTES, 2)
            server_side.sendall(bytes([len(data), len(descriptors)]))
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    client_side.settimeout(WAIT_S)
    assert client_side.recv(2) == bytes([PREAMBLE_BYTES, 0])
    client = pairs.client(server)
    client.put(np.arange(LONG))
    assert (server.get(timeout=WAIT_S).data == np.arange(LONG)).all()
    server.close(0.2)


def test_viewed_memory_is_counted_once(pairs: Pairs) -> None:
    server = pairs.server(message_size=1 << 30)
    client = pairs.client(server, message_size=1 << 30)
    array = np.ones(64 << 20, np.uint8)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    client.put(array).result(WAIT_S)
    got = server.get(timeout=WAIT_S).data
    assert got.sum() == 64 << 20
    # Sender and receiver are one process here, which has the memory once.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000


@pytest.mark.parametrize(("ours", "theirs"), [("unix", "shm"), ("shm", "unix")])
def test_a_shm_mismatch_is_reported(
    pairs: Pairs, ours: str, theirs: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "ucall")
    options = nq.CommunicatorOptions(netloc=nq.NetworkLocation(str(tmp_path / "mixed.sock"), 0))
    server = nq.new(nq.Protocol(theirs), nq.Purpose.SERVER, options)
    began: list[object] = []
    server.on_start(began.append)
    client = nq.new(
        nq.Protocol(ours), nq.Purpose.CLIENT, nq.CommunicatorOptions(netloc=options.netloc)
    )
    reason = "the other side says Protocol.{}, and this one Protocol.{}: both have to say the same"
    with pytest.raises(ConnectionError, match=reason.format(theirs.upper(), ours.upper())):
        client.put("x").result(WAIT_S)
    told = reason.format(ours.upper(), theirs.upper())
    wait_until(lambda: any(told in line for line in caplog.messages))
    assert began == []
    client.close()
    server.close()
