"""The server on the posix engine: epoll on Linux, kqueue on macOS."""

from __future__ import annotations

from ucall import server

__all__ = ["Server"]


class Server(server.Server):
    """`ucall.Server` on epoll (Linux) or kqueue (macOS)."""

    _ENGINE = "posix"
