"""Who runs the servers of this process: the program itself, or a supervisor that has bound for it.

``python -m ucall`` and ``server.run(workers=N)`` set this before a server is made.
"""

from __future__ import annotations

import os

__all__ = ["POOL", "WORKER", "binds_later"]

#: In the environment of a worker: the descriptors of its listening socket and of its supervisor.
WORKER = "UCALL_WORKER_DESCRIPTORS"
#: In the environment of a process that only runs functions, while it imports their module.
POOL = "UCALL_POOL_PROCESS"

later = False


def binds_later() -> bool:
    """Whether a server that is made now is to bind when it runs, rather than at once."""
    return later or WORKER in os.environ or POOL in os.environ
