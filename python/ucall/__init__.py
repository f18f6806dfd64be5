"""Serve Python functions over JSON-RPC 2.0, on HTTP and raw TCP, from one port.

    from ucall import Server

    server = Server()

    @server
    def sum(a: int, b: int):
        return a + b

    server.run()

``ucall.Server`` picks the engine; ``ucall.uring.Server`` and ``ucall.posix.Server`` name it. What
happens is logged through ``logging.getLogger("ucall")``.
"""

from __future__ import annotations

from ucall._core import TLS, Certificate, Context
from ucall._core import VERSION as __version__
from ucall._peer import Process
from ucall.errors import ConnectionError, EngineError, HTTPError, RPCError, TimeoutError
from ucall.server import Server

__all__ = [
    "TLS",
    "Certificate",
    "ConnectionError",
    "Context",
    "EngineError",
    "HTTPError",
    "Process",
    "RPCError",
    "Server",
    "TimeoutError",
    "__version__",
]
