"""The server on io_uring: Linux 5.19 or newer, where it is allowed."""

from __future__ import annotations

from ucall import server

__all__ = ["Server"]


class Server(server.Server):
    """`ucall.Server` on io_uring, and on nothing else.

    Raises:
        ucall.EngineError: The kernel is too old, or forbids io_uring, as containers often do; the
            message says which.
    """

    _ENGINE = "uring"
