"""`ucall.uring.Server` under the name that ucall 0.5 had for a server of rich types."""

from __future__ import annotations

from ucall.uring import Server

__all__ = ["Server"]
