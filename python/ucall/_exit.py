"""Servers on other threads when the program ends: they are stopped before the interpreter is."""

from __future__ import annotations

import atexit
import os
from typing import TYPE_CHECKING
from weakref import WeakSet

if TYPE_CHECKING:
    from ucall.server import Server

__all__ = ["running"]

#: How long the end of the program waits for a server in the background, in seconds.
_STOP_TIMEOUT_S = 10

running: WeakSet[Server] = WeakSet()


def _stop_all() -> None:
    for server in list(running):
        server._core.stop(False)
        server._idle.wait(_STOP_TIMEOUT_S)


atexit.register(_stop_all)
if hasattr(os, "register_at_fork"):
    # A forked child has none of its parent's threads, and nothing to wait for.
    os.register_at_fork(after_in_child=running.clear)
