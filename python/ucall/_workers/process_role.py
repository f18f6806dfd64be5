"""The role of this process: the program itself, ``python -m ucall``, a worker, or one of a pool.

``python -m ucall`` imports a module and runs its server, a supervisor starts workers, and the
processes of a pool import the module of the function that they run. While a module is imported,
`run` returns at once.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final, ParamSpec, TypeVar

from ucall.options import arguments, variable

__all__ = [
    "ALL_STOP",
    "COUNT",
    "DEVICE",
    "FD",
    "HEARTBEAT",
    "HOST",
    "INDEX",
    "MULTIPROCESSING_MAIN",
    "POOL",
    "SOCKETS",
    "TICKETS",
    "UNIX",
    "WORKER",
    "WorkerPlace",
    "imported_module",
    "importing",
    "is_host",
    "is_importing",
    "listen_host",
    "overridable",
    "url",
]

P = ParamSpec("P")
H = TypeVar("H", str, str | None)

#: In the environment of a worker: the descriptor of the socket to its supervisor.
WORKER: Final = "UCALL_WORKER_CONTROL"
#: In the environment of a worker: the secret that seals TLS tickets, shared by all workers so that
#: they resume each other's sessions.
TICKETS: Final = "UCALL_WORKER_TICKETS"
#: In the environment of a worker: the descriptors of the socket that it receives the messages of
#: other workers from, or -1, and of the sockets that lead to each worker.
SOCKETS: Final = "UCALL_WORKER_SOCKETS"
#: In the environment of a worker: the seconds between its reports to the supervisor that it serves;
#: absent without a watchdog.
HEARTBEAT: Final = "UCALL_WORKER_HEARTBEAT"
#: In the environment of a worker, and of the processes of its pools: its index, from 0, which its
#: successor has, too.
INDEX: Final = "UCALL_WORKER_INDEX"
#: Beside `INDEX`: the number of workers.
COUNT: Final = "UCALL_WORKER_COUNT"
#: In the environment of a worker that hosts the processes which all workers share, and no clients.
HOST: Final = "UCALL_WORKER_HOST"
#: Sent by a supervisor to each worker before SIGTERM: all workers stop.
ALL_STOP: Final = b"stop\n"
#: In the environment of a process of a pool, while it imports the module of its functions.
POOL: Final = "UCALL_POOL_PROCESS"
#: In the environment of a process of a pool with ``devices=``: the name of its device.
DEVICE: Final = "UCALL_DEVICE"

_is_worker: Final = WORKER in os.environ
_is_host: Final = os.environ.pop(HOST, None) is not None

#: The descriptor of the socket to the supervisor, until the server of a worker takes it over; -1 in
#: other processes. A worker's children are no workers.
control: int = int(os.environ.pop(WORKER, "-1"))

#: The secret that seals TLS tickets; ``None``: a secret of this process.
tickets: Final = bytes.fromhex(os.environ.pop(TICKETS, "")) or None

#: The descriptors of `SOCKETS`, until the server takes them over.
sockets: list[int] = [int(number) for number in os.environ.pop(SOCKETS, "").split()]

#: The interval of `HEARTBEAT`; ``None``: no reports.
heartbeat_s: Final = float(os.environ.pop(HEARTBEAT, 0)) or None


class WorkerPlace:
    """The place of a worker process among those of its server.

    Attributes:
        index: From 0. The worker that replaces one has the same.
        count: The number of workers; 1 without ``workers``.
    """

    __slots__ = ("count", "index")

    def __init__(self, index: int, count: int) -> None:
        self.index: Final = index
        self.count: Final = count

    def __repr__(self) -> str:
        return f"<worker {self.index} of {self.count}>"


def _worker_place() -> WorkerPlace:
    """That of this process, whose variables other children of a worker do not keep."""
    if _is_worker or POOL in os.environ:
        return WorkerPlace(int(os.environ.get(INDEX, "0")), int(os.environ.get(COUNT, "1")))
    for name in (INDEX, COUNT):
        os.environ.pop(name, None)
    return WorkerPlace(0, 1)


#: The worker that this process is, or that has started it for a pool.
worker: Final = _worker_place()

#: The device that this process of a pool has by ``devices=``; ``None`` in other processes. Its
#: children are none of the pool.
device: Final = os.environ.get(DEVICE) if POOL in os.environ else None
if device is None:
    os.environ.pop(DEVICE, None)

#: The number of threads of a server that sets none, from ``--threads``.
threads: int | None = None

#: Options that override those of each server that is made, from variables of ``python -m ucall``.
options: dict[str, Any] = {}

#: The prefix of a Unix socket's path, where the core takes a host.
UNIX: Final = "unix:"

#: The prefix of an inherited socket's descriptor, where the core takes a host.
FD: Final = "fd:"

#: The name under which a child of `multiprocessing` imports the program again.
MULTIPROCESSING_MAIN: Final = "__mp_main__"

_importing = False


class StartupError(Exception):
    """The server cannot start; the message is the reason."""


def is_worker() -> bool:
    """Whether a supervisor started this process."""
    return _is_worker


def is_host() -> bool:
    """Whether this is the worker that hosts the processes of all others."""
    return _is_host


def is_importing() -> bool:
    """Whether a module is being imported for its definitions only."""
    return _importing or POOL in os.environ


def imported_module() -> str | None:
    """The module whose import makes this call; None within the program itself.

    As for ``if __name__ == "__main__"``, the name of a module tells. Code of other namespaces, such
    as that of doctest, is no module.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "<module>":
            name = frame.f_globals.get("__name__", "__main__")
            module = sys.modules.get(name)
            if name != "__main__" and getattr(module, "__dict__", None) is frame.f_globals:
                return str(name)
        frame = frame.f_back
    return None


def overridable(init: Callable[P, None]) -> Callable[P, None]:
    """Makes a constructor take its keyword arguments from `options` first.

    Raises:
        StartupError: One of them is invalid; the message names its variable.
    """

    @functools.wraps(init)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            init(*args, **arguments(options, kwargs))
        except ValueError as failure:
            name, _, problem = str(failure).partition(": ")
            name = variable(name)
            if name not in options:
                raise
            raise StartupError(f"UCALL_{name.upper()}: {problem}") from None

    return wrapped


@contextmanager
def importing() -> Iterator[None]:
    """Keeps servers from running while their module is imported."""
    global _importing
    before, _importing = _importing, True
    try:
        yield
    finally:
        _importing = before


def listen_host(host: H, uds: str | os.PathLike[str] | None, fd: int | None) -> str | H:
    """The host that the core takes. It rejects an empty path of a Unix socket.

    Raises:
        TypeError: ``fd`` is no number.
        ValueError: It is negative, or beside ``uds``.
    """
    if fd is not None:
        if uds is not None:
            raise ValueError("fd: expected no uds beside it")
        if not isinstance(fd, int) or isinstance(fd, bool):
            raise TypeError(f"fd: expected the number of a descriptor, got {type(fd).__name__}")
        if fd < 0:
            raise ValueError(f"fd: expected the number of a descriptor, got {fd}")
        return f"{FD}{fd}"
    if uds is None:
        return host
    path = os.fspath(uds)
    return UNIX + (os.path.abspath(path) if path else "")


def url(scheme: str, host: str, port: int | None) -> str:
    """The address of a server, as clients take it."""
    if host.startswith(UNIX):
        return f"unix://{host.removeprefix(UNIX)}"
    return f"{scheme}://[{host}]:{port or 0}" if ":" in host else f"{scheme}://{host}:{port or 0}"
