"""Where a queue over shared memory is."""

from __future__ import annotations

import logging

from ucall._core import check_shared_memory
from ucall.queue import core
from ucall.queue.unix import location as unix

__all__ = ["Communicator"]

log = logging.getLogger("ucall")


class Communicator(core.Communicator):
    """Listens at, or connects to, a socket in the file system, beside which long messages go
    through memory. Where the system gives none that can be shared, all goes through the socket.
    """

    has_tls = False

    @classmethod
    def _location(cls, options: core.CommunicatorOptions) -> tuple[str, str]:
        try:
            check_shared_memory()
        except OSError as error:
            log.warning("no shared memory (%s): all goes through the Unix socket", error)
        return unix.socket_path(options.netloc), "shared"
