"""Descriptors and shared memory of this process."""

from __future__ import annotations

import contextlib
import gc
import os
import time
from collections.abc import Callable
from pathlib import Path

WAIT_S = 60


def descriptors() -> int:
    """The number of sockets and of memory descriptors."""
    kinds = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            kinds.append(os.readlink(f"/proc/self/fd/{name}"))
    return sum(kind.startswith(("socket:", "/memfd:")) for kind in kinds)


def shared_maps(kind: str = "") -> int:
    """The number of shared memory mappings: ``"r--p"`` for sealed memory, ``"r--s"`` for slots.

    The counters of a supervisor do not count: they stay for as long as their process.
    """
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    maps = [line for line in lines if "memfd:" in line and "memfd:ucall-counters" not in line]
    return sum(kind in line for line in maps)


def wait_until(condition: Callable[[], object]) -> None:
    pause_s, end = 0.005, time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end
        gc.collect()
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.5, 0.1)
