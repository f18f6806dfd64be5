"""Functions that the servers of many tests have."""

from __future__ import annotations

from typing import Any

import ucall


def sum(a: int, b: int) -> int:
    return a + b


def add(a: int, b: int) -> int:
    return a + b


def echo(value: Any = None) -> Any:
    return value


def whoami(ctx: ucall.Context) -> Any:
    return ctx.user


def text(length: int) -> str:
    return "x" * length
