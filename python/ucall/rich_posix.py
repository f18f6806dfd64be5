"""`ucall.posix.Server` by another name: every server serves rich types."""

from __future__ import annotations

from ucall.posix import Server

__all__ = ["Server"]
