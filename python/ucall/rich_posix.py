"""`ucall.posix.Server` under the name that ucall 0.5 had for a server of rich types."""

from __future__ import annotations

from ucall.posix import Server

__all__ = ["Server"]
