"""The exceptions of the package."""

from __future__ import annotations

__all__ = ["EngineError", "RPCError"]


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
