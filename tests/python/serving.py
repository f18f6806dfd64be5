"""Types and options of the servers that the fixtures start."""

from __future__ import annotations

from collections.abc import Callable

import ucall
import ucall.uring

Serve = Callable[..., ucall.Server]


def why_no_uring() -> str | None:
    try:
        ucall.uring.Server(port=0)
    except ucall.EngineError as refused:
        return str(refused)
    return None


NO_URING = why_no_uring()
