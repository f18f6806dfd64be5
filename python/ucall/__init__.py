"""Serve Python functions over JSON-RPC 2.0: HTTP, WebSocket and raw TCP on one port.

    from ucall import Server

    server = Server()

    @server
    def sum(a: int, b: int):
        return a + b

    server.run()

``ucall.Server`` picks the engine; ``ucall.uring.Server`` and ``ucall.posix.Server`` require one.
Clients are in ``ucall.client`` and ``ucall.aio``, queues in ``ucall.queue``, key-value stores in
``ucall.store``. The logger is ``logging.getLogger("ucall")``.
"""

from __future__ import annotations

from collections.abc import Iterable
from os.path import exists as _exists
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

from ucall._core import (
    END,
    Call,
    Certificate,
    Connection,
    Context,
    EndType,
    HttpRequest,
    Slot,
    Slots,
    TLSConnection,
)
from ucall._core import VERSION as __version__
from ucall._routes.response import HttpResponse
from ucall._submodules import on_demand
from ucall.errors import (
    ConnectionError,
    EngineError,
    HTTPError,
    NoChannelError,
    RPCError,
    TimeoutError,
)
from ucall.group import Group
from ucall.options import TLS, UDP, Broker, Compression, Limits, Observability, Timeouts
from ucall.server import Server

if TYPE_CHECKING:
    from ucall import aio as aio
    from ucall import auth as auth
    from ucall import client as client
    from ucall import mcp as mcp
    from ucall import openai as openai
    from ucall import posix as posix
    from ucall import queue as queue
    from ucall import rich_posix as rich_posix
    from ucall import rich_uring as rich_uring
    from ucall import store as store
    from ucall import testing as testing
    from ucall import uring as uring
else:  # With `__getattr__`, type checkers would accept any name.
    __getattr__, __dir__ = on_demand(
        __name__,
        "aio",
        "auth",
        "client",
        "mcp",
        "openai",
        "posix",
        "queue",
        "rich_posix",
        "rich_uring",
        "store",
        "testing",
        "uring",
    )

__all__ = [
    "END",
    "TLS",
    "UDP",
    "Broker",
    "Call",
    "Certificate",
    "Compression",
    "Connection",
    "ConnectionError",
    "Context",
    "EngineError",
    "Group",
    "HTTPError",
    "HttpRequest",
    "HttpResponse",
    "Limits",
    "NoChannelError",
    "Observability",
    "Process",
    "RPCError",
    "Server",
    "Slot",
    "SlotItems",
    "Slots",
    "TLSConnection",
    "TimeoutError",
    "Timeouts",
    "__version__",
]


_Item = TypeVar("_Item")

SlotItems: TypeAlias = Iterable[tuple[Slot[Any], _Item | EndType | BaseException]]
"""What a step of a generator with slots yields: pairs of a slot and an item, `END` or an exception.
See `Server.batch`."""


# Two calls of `stat`, because importing `importlib.metadata` takes longer than all of ucall.
if _exists(f"{__path__[0]}/_server.py") or _exists(f"{__path__[0]}/../ujrpc"):
    from ucall import _predecessors

    _predecessors.warn(__path__[0])


class Process(NamedTuple):
    """The process at the other end of a Unix socket, as the kernel reports it.

    Attributes:
        pid: The process id; 0 if the process is in a PID namespace that is not visible here.
        uid: The effective user id.
        gid: The effective group id.
    """

    pid: int
    uid: int
    gid: int
