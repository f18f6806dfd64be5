"""The thread that writes the log of one communicator: connections that were refused, and why."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable

__all__ = ["start"]


def start(lines: Iterable[str], name: str) -> None:
    """Writes each line once it comes, and ends with the communicator."""
    arguments = (lines, name)
    threading.Thread(target=_write, args=arguments, name="ucall-queue-log", daemon=True).start()


def _write(lines: Iterable[str], name: str) -> None:
    log = logging.getLogger("ucall")
    for line in lines:
        log.warning("queue %s: %s", name, line)
