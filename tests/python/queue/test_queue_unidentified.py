"""Unidentified connections, and the file of a Unix socket."""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from frames import hello
from pairs import Pairs, sockets
from resources import wait_until

from harness import HOST, program, refuses_descriptors
from ucall import queue as nq

WAIT_S = 60
streams = pytest.mark.parametrize("pairs", ["tcp", "unix"], indirect=True)


def connect(server: nq.Communicator) -> socket.socket:
    """A connection that sends nothing."""
    return _connected(server.address or server.options.netloc.host)


def _connected(address: tuple[str, int] | str) -> socket.socket:
    unknown = socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET)
    unknown.settimeout(WAIT_S)
    unknown.connect(address)
    return unknown


def is_open(unknown: socket.socket) -> bool:
    unknown.settimeout(0.1)
    try:
        return bool(unknown.recv(1))
    except TimeoutError:
        return True


@streams
def test_the_oldest_unidentified_connection_is_evicted(pairs: Pairs) -> None:
    server = pairs.server(handshakes=3)
    unidentified = [connect(server) for _ in range(3)]
    assert all(map(is_open, unidentified))
    newcomer = connect(server)
    unidentified[0].settimeout(WAIT_S)
    assert unidentified[0].recv(1) == b""
    assert all(map(is_open, [*unidentified[1:], newcomer]))
    client = pairs.client(server)
    client.put("still here").result(WAIT_S)
    assert server.get(timeout=WAIT_S).data == "still here"
    for unknown in [*unidentified, newcomer]:
        unknown.close()


@streams
def test_unidentified_connections_time_out(pairs: Pairs) -> None:
    server = pairs.server(handshake_s=0.3)
    before = sockets()
    unidentified = [connect(server) for _ in range(200)]
    client = pairs.client(server)
    client.put("at once").result(WAIT_S)
    assert server.get(timeout=WAIT_S).data == "at once"
    client.close()
    for unknown in unidentified:
        unknown.settimeout(WAIT_S)
        assert unknown.recv(1) == b""
        unknown.close()
    wait_until(lambda: sockets() <= before)


#: A server with at most 200 descriptors, which opens files on request.
LIMITED = """
import resource, sys
from ucall import queue as nq

resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
protocol, engine, host = sys.argv[1:]
options = nq.CommunicatorOptions(netloc=nq.NetworkLocation(host, 0), engine=engine)
server = nq.new(protocol, "server", options)
print(server.address[1] if server.address else 0)
for line in sys.stdin:
    files = [open("/dev/null") for _ in range(20)]
    print("opened", len(files))
"""


class Limited:
    """A server with few descriptors, in a process of its own."""

    def __init__(self, process: Any, protocol: str, host: str) -> None:
        self._process = process
        self._protocol = protocol
        self._location = nq.NetworkLocation(host, int(process.stdout.readline()))

    def connect(self) -> socket.socket:
        host, port = self._location
        return _connected((host, port) if port else host)

    def opens_files(self) -> bool:
        self._process.stdin.write("open\n")
        self._process.stdin.flush()
        return bool(self._process.stdout.readline() == "opened 20\n")

    def serves(self) -> bool:
        with nq.new(self._protocol, "client", nq.CommunicatorOptions(netloc=self._location)) as one:
            one.put("still here").result(WAIT_S)
        return True


@contextlib.contextmanager
def limited(protocol: str, engine: str, folder: Path) -> Iterator[Limited]:
    host = HOST if protocol == "tcp" else str(folder / "limited.sock")
    with program(LIMITED, protocol, engine, host) as process:
        yield Limited(process, protocol, host)


@pytest.mark.parametrize("protocol", ["tcp", "unix", "shm"])
def test_silent_connections_leave_descriptors(protocol: str, engine: str, tmp_path: Path) -> None:
    if protocol == "shm" and os.geteuid() != 0:
        pytest.skip("Linux counts unread descriptors against the limit of a user, but not of root")
    with limited(protocol, engine, tmp_path) as server:
        # More than the server may have: the oldest one is evicted.
        unidentified = [server.connect() for _ in range(300)]
        assert server.serves()
        assert server.opens_files()
        for unknown in unidentified:
            unknown.close()


def test_peers_leave_descriptors_and_new_connections_wait(engine: str, tmp_path: Path) -> None:
    with limited("tcp", engine, tmp_path) as server, selectors.DefaultSelector() as selector:
        unidentified = [server.connect() for _ in range(190)]
        for unknown in unidentified:
            unknown.sendall(hello(os.urandom(16)))
            selector.register(unknown, selectors.EVENT_READ)
        # 64 descriptors are reserved, and not for peers.
        wait_until(lambda: len(selector.select(0)) >= 200 - 64)
        assert server.opens_files()
        for unknown in unidentified:
            unknown.close()
        assert server.serves()


@pytest.mark.parametrize("pairs", ["unix", "shm"], indirect=True)
def test_descriptors_of_unidentified_peers_are_refused(pairs: Pairs) -> None:
    with connect(pairs.server()) as unknown:
        assert refuses_descriptors(unknown)


def test_a_unix_socket_is_private_to_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "queue.sock"
    options = nq.CommunicatorOptions(netloc=nq.NetworkLocation(str(path), 0))
    # A server replaces the file of a killed server, but not one in use, nor another kind of file.
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with nq.new("unix", "server", options):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        with pytest.raises(OSError, match="listens there already"):
            nq.new("unix", "server", nq.CommunicatorOptions(netloc=options.netloc))
    assert not path.exists()
    path.write_text("precious")
    with pytest.raises(OSError, match="not a socket"):
        nq.new("unix", "server", options)
    assert path.read_text() == "precious"
