"""Log messages for the client of a call."""

from __future__ import annotations

from ucall._core import Context
from ucall._mcp.bus import notification, send
from ucall._mcp.versions import era

__all__ = ["LEVELS", "log"]

#: By their severity (RFC 5424), the least first.
LEVELS = (
    "debug",
    "info",
    "notice",
    "warning",
    "error",
    "critical",
    "alert",
    "emergency",
)

_LEVEL = "io.modelcontextprotocol/logLevel"


def log(ctx: Context, level: str, data: object, logger: str | None) -> None:
    """Sends a message, if the client asks for those of its level.

    A client of an older version gets all: the level that it sets is for a session, and there is
    none.
    """
    if level not in LEVELS:
        raise ValueError(f"level: expected one of {', '.join(LEVELS)}, got {level!r}")
    if ctx._mcp is None:
        return
    params, version = ctx._mcp
    if not era(version).has_handshake:
        meta = params.get("_meta")
        least = meta.get(_LEVEL) if isinstance(meta, dict) else None
        if least not in LEVELS or LEVELS.index(level) < LEVELS.index(least):
            return
    named = {} if logger is None else {"logger": logger}
    send(ctx, notification("notifications/message", {"level": level, **named, "data": data}))
