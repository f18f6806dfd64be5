"""A worker process: gets a listening socket from its supervisor, and serves.

SIGTERM drains. SIGHUP drains too, but serves further requests on open connections, because a
successor accepts new ones already. When the supervisor dies, the worker drains. If all workers
stop, as the supervisor says, a drain also ends the listening socket that they share, unless another
program has bound it.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from ucall import _core
from ucall._workers import process_role

if TYPE_CHECKING:
    from ucall.options import UDP

__all__ = ["Control", "prepare"]


class Control:
    """The worker's end of the socket to its supervisor."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._socket.set_inheritable(False)

    def listener(
        self, host: str, port: int, uds_mode: int, scheme: str
    ) -> tuple[tuple[int, bool], int, int]:
        """Asks for a listening socket. The supervisor binds the first address that it gets.

        Returns:
            The descriptor of the socket, with whether another program has bound it, that of the
            workers' shared counters, and the index of this worker's page in them.

        Raises:
            OSError: The supervisor cannot bind the address, or has died.
        """
        self._socket.sendall(f"listen {scheme} {port} {uds_mode} {host}\n".encode())
        answer, descriptors, _, _ = socket.recv_fds(self._socket, 1024, 2)
        if len(descriptors) != 2:
            raise OSError(answer.decode() or "the supervisor has died")
        page, is_inherited = map(int, answer.split())
        return (descriptors[0], bool(is_inherited)), descriptors[1], page

    def xdp(self, interface: str, host: str, port: int) -> tuple[int, bool, int, int]:
        """Asks for a share of the queues of an interface.

        Returns:
            The descriptor of the map of sockets, whether the driver runs the program, the number of
            this worker from 0, and the number of workers.

        Raises:
            OSError: The kernel refuses it, there are too few queues, or the supervisor has died.
        """
        self._socket.sendall(f"xdp {interface} {port} {host}\n".encode())
        answer, descriptors, _, _ = socket.recv_fds(self._socket, 1024, 1)
        if not descriptors:
            raise OSError(answer.decode() or "the supervisor has died")
        is_native, worker, workers = map(int, answer.split())
        os.set_inheritable(descriptors[0], False)
        return descriptors[0], bool(is_native), worker, workers

    def connect_host(self, key: str) -> socket.socket:
        """Connects with the pool of this key of the host, which the supervisor starts if need be.

        Raises:
            OSError: The supervisor has died.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._socket, [f"host {key}\n".encode()], [theirs.fileno()])
        return ours

    def ready(self) -> None:
        """Reports that this worker accepts connections."""
        self._socket.sendall(b"ready\n")

    def beat(self) -> None:
        """Reports that this worker takes turns."""
        with suppress(OSError):  # The supervisor may be busy, or have died.
            self._socket.send(b"beat\n", socket.MSG_DONTWAIT)

    def drain_with_supervisor(self, on_all_stop: Callable[[], object]) -> None:
        """Drains when the supervisor dies. Calls ``on_all_stop`` when all workers stop."""

        def wait() -> None:
            # A supervisor that was killed resets the connection if it has not read all beats.
            with suppress(OSError):
                while self._socket.recv(64):
                    on_all_stop()
            on_all_stop()
            os.kill(os.getpid(), signal.SIGTERM)

        threading.Thread(target=wait, name="ucall-supervisor", daemon=True).start()


def _share_sockets(core: _core.Server, page: int) -> None:
    """Connects a server with the other workers, for `Server.publish`."""
    descriptors, process_role.sockets = process_role.sockets, []
    if descriptors:
        receiver, *senders = descriptors
        for descriptor in descriptors:
            if descriptor >= 0:
                os.set_inheritable(descriptor, False)
        core.share_sockets(receiver if receiver >= 0 else None, senders, page or None)


def prepare(core: _core.Server, udp: UDP | None, on_drain: Callable[[], object] | None) -> Control:
    """Prepares the server of a worker process, which calls ``on_drain`` when a drain begins.

    Raises:
        OSError: The supervisor cannot bind the address, or has died.
        SystemExit: This process has run a server already.
    """
    descriptor, process_role.control = process_role.control, -1
    if descriptor < 0:
        # The supervisor of that run starts other workers, if the program gets there.
        raise SystemExit
    control = Control(descriptor)
    listener, counters, page = control.listener(
        core.host, core.port or 0, core.uds_mode, core.scheme
    )
    core.configure(socket=listener)
    if udp is not None and udp.xdp is not None:
        core.share_xdp(*control.xdp(udp.xdp, core.host, core.udp_port or core.port or 0))
    core.share_counters(_core.SharedCounters(counters), page or None)
    _share_sockets(core, page)
    if process_role.heartbeat_s is not None or on_drain is not None:
        core.set_callbacks(on_drain, control.beat, process_role.heartbeat_s)
    signal.signal(signal.SIGHUP, lambda *_: core.drain(serving=True))
    control.drain_with_supervisor(core.stop_with_all)
    return control
