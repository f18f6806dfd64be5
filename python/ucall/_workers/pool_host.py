"""The host of the processes that all workers of a server share, for functions that take batches.

So a model is loaded once a device, and not once a worker. The host runs the program as a worker
does, and starts the pools of its server when a worker first asks for them; it serves nobody else.
The supervisor passes it a socket of each worker, through which the core forwards batches. When the
supervisor closes the control socket, or dies, the host ends with the last of these.

| event | action |
|---|---|
| a process dies | the host starts its successor, as a server without workers does |
| a worker dies | the batches that it had waiting do not run |
| the host dies | its processes end, too; the workers have the supervisor start another one |
| SIGHUP, a changed source | the next worker gets a new host; the old one ends with its workers |
"""

from __future__ import annotations

import os
import socket
import threading
from typing import TYPE_CHECKING, NoReturn

from ucall import _core
from ucall._functions import pool_process
from ucall._workers import process_role

if TYPE_CHECKING:
    from ucall._functions.batch_processes import BatchPool
    from ucall._functions.table import Functions

__all__ = ["run"]

_MESSAGE_BYTES = 4096
_DESCRIPTORS = 64


def run(functions: Functions) -> NoReturn:
    """Runs the processes of these functions for the workers, and ends the program."""
    descriptor, process_role.control = process_role.control, -1
    if descriptor >= 0:
        pool_process.outlast_signals()
        with socket.socket(fileno=descriptor) as control:
            control.set_inheritable(False)
            _Host(functions).serve(control)
    raise SystemExit


class _Host:
    def __init__(self, functions: Functions) -> None:
        self._functions = functions
        #: Locked while a pool starts, which the other workers wait for.
        self._starting = threading.Lock()

    def serve(self, control: socket.socket) -> None:
        """Serves the workers whose sockets come over ``control``, a line with its key for each."""
        received = b""
        descriptors: list[int] = []
        threads: list[threading.Thread] = []
        while True:
            data, passed, _, _ = socket.recv_fds(control, _MESSAGE_BYTES, _DESCRIPTORS)
            if not data:
                break
            for descriptor in passed:
                os.set_inheritable(descriptor, False)
                descriptors.append(descriptor)
            *keys, received = (received + data).split(b"\n")
            for key in keys:
                arguments = key.decode(), descriptors.pop(0)
                thread = threading.Thread(target=self._serve_worker, args=arguments, daemon=True)
                thread.start()
                threads = [*filter(threading.Thread.is_alive, threads), thread]
        for thread in threads:
            thread.join()
        self._functions.pools.close()

    def _serve_worker(self, key: str, descriptor: int) -> None:
        pool = self._functions.pools.find(key)
        if pool is None:
            reason = (
                "the host of the workers' processes has other functions: register them before "
                "run(), in each worker; after a change of the program send SIGHUP to the "
                "supervisor"
            )
            return _core.refuse_worker(descriptor, reason)
        try:
            self._start(pool)
        except RuntimeError as failure:
            return _core.refuse_worker(descriptor, str(failure))
        return pool.core.serve_worker(descriptor)

    def _start(self, pool: BatchPool) -> None:
        with self._starting:
            try:
                self._functions.pools.start_batches(pool)
            except BaseException:
                pool.close()
                raise
