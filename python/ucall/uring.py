"""The server on io_uring: Linux 5.19 or newer, if the system allows it."""

from __future__ import annotations

from ucall import server

__all__ = ["Server"]


class Server(server.Server):
    """`ucall.Server` on io_uring.

    Raises:
        ucall.EngineError: The kernel is too old, or io_uring is forbidden, as in many containers.
            The message is the reason.
    """

    _ENGINE = "uring"
