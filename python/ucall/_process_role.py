"""Who runs the servers of this process: the program itself, or who has started it for that.

``python -m ucall`` imports a module whose server it runs, workers are started by a supervisor, and
the processes of a pool import the module of the function that they run. In all of these a server
that is made does not bind at once, and one that is told to run while its module is imported does
not.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

__all__ = [
    "POOL",
    "TICKETS",
    "UNIX",
    "WORKER",
    "defers_bind",
    "importing",
    "is_importing",
    "unix_host",
    "url",
]

#: In the environment of a worker: the descriptor of the socket that leads to its supervisor.
WORKER: Final = "UCALL_WORKER_CONTROL"
#: In the environment of a worker: what its tickets are sealed with, so that it resumes the sessions
#: of the others.
TICKETS: Final = "UCALL_WORKER_TICKETS"
#: In the environment of a process of a pool, while it imports the module of its functions.
POOL: Final = "UCALL_POOL_PROCESS"

#: The descriptor of the socket to the supervisor, in a worker. Children of it are none themselves.
control: Final = int(os.environ.pop(WORKER, "-1"))

#: What tickets are sealed with; ``None``: a secret of this process.
tickets: Final = bytes.fromhex(os.environ.pop(TICKETS, "")) or None

#: How many threads a server has that is told nothing else, by ``--threads``.
threads: int | None = None

#: In front of the path of a Unix socket, where the core takes a host.
UNIX: Final = "unix:"

_importing = False


def is_worker() -> bool:
    """Whether a supervisor has started this process."""
    return control >= 0


def is_importing() -> bool:
    """Whether a module is being imported only for what it defines."""
    return _importing or POOL in os.environ


def defers_bind() -> bool:
    """Whether a server that is made now is to bind when it runs, rather than at once."""
    return is_worker() or is_importing()


@contextmanager
def importing() -> Iterator[None]:
    """Keeps servers from running while their module is imported."""
    global _importing
    before, _importing = _importing, True
    try:
        yield
    finally:
        _importing = before


def unix_host(path: str | os.PathLike[str]) -> str:
    """What the core takes for a host. An empty path stays empty, for the core to refuse."""
    path = os.fspath(path)
    return UNIX + (os.path.abspath(path) if path else "")


def url(scheme: str, host: str, port: int) -> str:
    """Where a server is, as clients take it."""
    if host.startswith(UNIX):
        return f"unix://{host.removeprefix(UNIX)}"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
