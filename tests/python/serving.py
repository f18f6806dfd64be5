"""Types and options of the servers that the fixtures start."""

from __future__ import annotations

import threading
from collections.abc import Callable

import ucall
import ucall.uring

Serve = Callable[..., ucall.Server]


def run_on_thread(server: ucall.Server, run: Callable[[], object]) -> threading.Thread:
    """Runs a server on a thread; returns when the server listens."""
    listens = threading.Event()
    server.on_startup(listens.set)
    thread = threading.Thread(target=run)
    thread.start()
    assert listens.wait(60)
    return thread


def why_no_uring() -> str | None:
    try:
        ucall.uring.Server(port=0)
    except ucall.EngineError as refused:
        return str(refused)
    return None


NO_URING = why_no_uring()
