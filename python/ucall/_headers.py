"""Names of HTTP headers that client and server agree on."""

from __future__ import annotations

from typing import Final

__all__ = ["TIMEOUT_MS"]

#: How long the caller waits for the reply, in milliseconds: decimal digits. Past it, -32001.
TIMEOUT_MS: Final = "Ucall-Timeout-Ms"
