"""Connections on which nobody says who they are, and the file of a Unix socket."""

from __future__ import annotations

import socket
import stat
from pathlib import Path

import pytest
from held import wait_until
from pairs import Pairs, sockets

from harness import refuses_descriptors
from ucall import queue as nq

WAIT_S = 60
streams = pytest.mark.parametrize("pairs", ["tcp", "unix"], indirect=True)


def connect(server: nq.Communicator) -> socket.socket:
    """A connection that says nothing."""
    stranger = socket.socket(socket.AF_INET if server.address else socket.AF_UNIX)
    stranger.settimeout(WAIT_S)
    stranger.connect(server.address or server.options.netloc.host)
    return stranger


def is_open(stranger: socket.socket) -> bool:
    stranger.settimeout(0.1)
    try:
        return bool(stranger.recv(1))
    except TimeoutError:
        return True


@streams
def test_the_oldest_silent_connection_makes_room(pairs: Pairs) -> None:
    server = pairs.server(handshakes=3)
    strangers = [connect(server) for _ in range(3)]
    assert all(map(is_open, strangers))
    newcomer = connect(server)
    strangers[0].settimeout(WAIT_S)
    assert strangers[0].recv(1) == b""
    assert all(map(is_open, [*strangers[1:], newcomer]))
    client = pairs.client(server)
    client.put("still here").result(WAIT_S)
    assert server.get(timeout=WAIT_S).data == "still here"
    for stranger in [*strangers, newcomer]:
        stranger.close()


@streams
def test_silent_connections_are_closed_in_time(pairs: Pairs) -> None:
    server = pairs.server(handshake_s=0.3)
    before = sockets()
    strangers = [connect(server) for _ in range(200)]
    client = pairs.client(server)
    client.put("at once").result(WAIT_S)
    assert server.get(timeout=WAIT_S).data == "at once"
    client.close()
    for stranger in strangers:
        stranger.settimeout(WAIT_S)
        assert stranger.recv(1) == b""
        stranger.close()
    wait_until(lambda: sockets() <= before)


@pytest.mark.parametrize("pairs", ["unix", "shm"], indirect=True)
def test_descriptors_of_strangers_are_refused(pairs: Pairs) -> None:
    with connect(pairs.server()) as stranger:
        assert refuses_descriptors(stranger)


def test_the_file_of_a_socket_is_its_owners_and_its_servers(tmp_path: Path) -> None:
    path = tmp_path / "queue.sock"
    options = nq.CommunicatorOptions(netloc=nq.NetworkLocation(str(path), 0))
    # A dead server's is replaced, one that is used is not, and neither is anything else.
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with nq.new("unix", "server", options):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        with pytest.raises(OSError, match="listens there already"):
            nq.new("unix", "server", nq.CommunicatorOptions(netloc=options.netloc))
    assert not path.exists()
    path.write_text("precious")
    with pytest.raises(OSError, match="no socket"):
        nq.new("unix", "server", options)
    assert path.read_text() == "precious"
