"""A peer whose bytes arrive slowly is not disconnected."""

from __future__ import annotations

import concurrent.futures
import contextlib
import socket
import threading
import time

import pytest
from pairs import Pairs

from ucall import queue as nq

SIZE = 3 << 20


def relay_slowly(source: socket.socket, target: socket.socket, bytes_a_second: int) -> None:
    piece = bytes_a_second // 100
    # Runs until one end is closed.
    with contextlib.suppress(OSError):
        while data := source.recv(piece):
            target.sendall(data)
            time.sleep(0.01)


@pytest.mark.parametrize("engine", ["auto", "posix"])
@pytest.mark.parametrize("pairs", ["tcp"], indirect=True)
def test_a_long_message_arrives_over_a_slow_link(pairs: Pairs, engine: str) -> None:
    # A process that gets no CPU time is silent too, so the next attempt has more time.
    assert any(is_arriving(pairs, engine, scale) for scale in (1, 4, 16))


def is_arriving(pairs: Pairs, engine: str, scale: int) -> bool:
    # The message takes 2 seconds, and a silent peer expires after 0.6; or multiples of both.
    given = {"keepalive_s": 0.2 * scale, "engine": engine}
    server = pairs.server(**given)
    assert server.address is not None
    with socket.socket() as listener:
        # Small windows, or the kernel would buffer all of it at once.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16_384)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        client = pairs.client(server, netloc=nq.NetworkLocation(*listener.getsockname()), **given)
        put = client.put(b"x" * SIZE)
        listener.settimeout(60)
        client_side, _ = listener.accept()
        with client_side, socket.create_connection(server.address) as server_side:
            back = threading.Thread(
                target=relay_slowly, args=(server_side, client_side, 1 << 20), daemon=True
            )
            back.start()
            speed = SIZE // 2 // scale
            there = threading.Thread(
                target=relay_slowly, args=(client_side, server_side, speed), daemon=True
            )
            there.start()
            # Over this one connection: another is not accepted.
            done = concurrent.futures.wait([put], timeout=10 * scale).done
            is_there = bool(done) and put.exception() is None
            assert not is_there or len(server.get(timeout=60).data) == SIZE
            client.close(1)
            server.close(1)
            return is_there
