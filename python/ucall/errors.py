"""The exceptions of the package."""

from __future__ import annotations

import builtins

__all__ = ["ConnectionError", "EngineError", "HTTPError", "RPCError", "TimeoutError"]


class RPCError(Exception):
    """An error to be told to the caller, just as it is (JSON-RPC 2.0, section 5.1).

    Raise it in a served function. Any other exception becomes -32603, "Internal error", and only
    the log learns more.

    Args:
        code: What kind of error. -32768 to -32000 are reserved for JSON-RPC and ucall itself.
        message: One short sentence.
        data: More about it: whatever a served function may return. ``None`` leaves it out.

    Raises:
        TypeError: The code is no int, or the message is no str.
    """

    code: int
    message: str
    data: object

    def __init__(self, code: int, message: str, data: object = None) -> None:
        if not isinstance(code, int) or isinstance(code, bool):
            raise TypeError(f"code: expected int, got {type(code).__name__}")
        if not isinstance(message, str):
            raise TypeError(f"message: expected str, got {type(message).__name__}")
        # Exception keeps the arguments, so that a copy or a pickle of it is whole.
        super().__init__(code, message, data)
        self.code = code
        self.message = message
        self.data = data

    def __str__(self) -> str:
        detail = "" if self.data is None else f" ({self.data!r})"
        return f"{self.message} [{self.code}]{detail}"


class EngineError(OSError):
    """The engine that was asked for cannot run here; the message says why.

    Containers often forbid io_uring. ``ucall.Server`` then runs on the posix engine.
    """


class ConnectionError(builtins.ConnectionError):
    """A client got no reply: no server, a connection that broke, or an answer that is none.

    The message says which. Unless nothing could be sent, the call may have run.
    """


class HTTPError(ConnectionError):
    """A client got an HTTP status other than success, and no JSON-RPC reply with it.

    Args:
        status: Such as 413.
        reason: The words that came with it.
        text: The start of the page that came instead of a reply.
    """

    status: int
    reason: str
    text: str

    def __init__(self, status: int, reason: str = "", text: str = "") -> None:
        line = f"HTTP status {status} {reason}".rstrip()
        super().__init__(f"{line}: {text}" if text else line)
        self.status = status
        self.reason = reason
        self.text = text

    def __reduce__(self) -> tuple[type[HTTPError], tuple[int, str, str]]:
        return type(self), (self.status, self.reason, self.text)


class TimeoutError(builtins.TimeoutError):
    """A client got no reply in time. The call may have run, or may still be running."""
