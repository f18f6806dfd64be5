"""`ucall.uring.Server` under the name that its rich types once had to be asked for by."""

from __future__ import annotations

from ucall.uring import Server

__all__ = ["Server"]
