"""A worker process: asks its supervisor for a listening socket, serves, and leaves when told.

SIGTERM drains, as everywhere. SIGHUP retires: a successor accepts already, so what comes on open
connections is still served. When the supervisor is gone, the worker drains and ends too.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from typing import TYPE_CHECKING

from ucall import _core, _process_role

if TYPE_CHECKING:
    from ucall.server import Server

__all__ = ["Control", "prepare"]


class Control:
    """The worker's end of the socket to its supervisor."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._socket.set_inheritable(False)

    def listener(self, host: str, port: int, uds_mode: int, scheme: str) -> tuple[int, int, int]:
        """A socket that listens on that address, unless the supervisor has another in mind; the
        file that all workers count in, and the page there that is this one's.

        Raises:
            OSError: The supervisor cannot bind it, or is gone.
        """
        self._socket.sendall(f"listen {scheme} {port} {uds_mode} {host}\n".encode())
        answer, descriptors, _, _ = socket.recv_fds(self._socket, 1024, 2)
        if len(descriptors) != 2:
            raise OSError(answer.decode() or "the supervisor is gone")
        return descriptors[0], descriptors[1], int(answer)

    def ready(self) -> None:
        """Tells that connections are being accepted."""
        self._socket.sendall(b"ready\n")

    def drain_with_supervisor(self) -> None:
        """Drains when the supervisor is gone."""

        def wait() -> None:
            while self._socket.recv(64):
                pass
            os.kill(os.getpid(), signal.SIGTERM)

        threading.Thread(target=wait, name="ucall-supervisor", daemon=True).start()


def prepare(server: Server) -> Control:
    """Gets a server of a worker process ready to run."""
    control = Control(_process_role.control)
    core = server._core
    listener, counters, page = control.listener(core.host, core.port, core.uds_mode, core.scheme)
    core.configure(descriptor=listener)
    core.share_counters(_core.SharedCounters(counters), page or None)
    signal.signal(signal.SIGHUP, lambda *_: core.drain(serving=True))
    control.drain_with_supervisor()
    return control
