"""Functions that report progress, for servers and for the processes of their pools."""

from __future__ import annotations

import time
from pathlib import Path

import ucall


def plain(ctx: ucall.Context, n: int) -> int:
    for step in range(1, n + 1):
        ctx.progress(step, n, f"step {step}")
    return n


def loop(ctx: ucall.Context, path: str) -> None:
    """Runs until it is cancelled, and makes a file then."""
    ctx.progress(0.5)
    while not ctx.cancelled:
        time.sleep(0.001)
    Path(path).touch()


def peek(ctx: ucall.Context) -> str:
    return ctx.method
