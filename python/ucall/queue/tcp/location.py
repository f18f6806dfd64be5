"""Where a queue over TCP is."""

from __future__ import annotations

from ucall.queue import core

__all__ = ["Communicator"]


class Communicator(core.Communicator):
    """Listens at, or connects to, a host and a port. Port 0 is any free one: see `address`."""

    @classmethod
    def _location(cls, options: core.CommunicatorOptions) -> tuple[str, int]:
        return options.netloc.host, options.netloc.port
