"""`ucall.uring.Server` by another name: every server serves rich types."""

from __future__ import annotations

from ucall.uring import Server

__all__ = ["Server"]
