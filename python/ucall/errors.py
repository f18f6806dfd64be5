"""The exceptions of the package."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any, overload

__all__ = [
    "ConnectionError",
    "EngineError",
    "HTTPError",
    "NoChannelError",
    "RPCError",
    "TimeoutError",
]


class RPCError(Exception):
    """An error for the caller (JSON-RPC 2.0, section 5.1).

    A served function raises it. Any other exception is answered with -32603, "Internal error", and
    logged. A client raises it for a reply with an error. A derived class may have its code as an
    attribute, and is raised without it::

        class SoldOut(ucall.RPCError):
            code = 4004

        raise SoldOut("none left")

    Args:
        code: The kind of error. JSON-RPC and ucall reserve -32768 to -32000.
        message: One short sentence.
        data: Details, of any type that a served function may return. ``None`` omits them.

    Raises:
        TypeError: The code is not an int, or the message is not a str.
    """

    code: int
    message: str
    data: object

    @overload
    def __init__(self, code: int, message: str, data: object = None) -> None: ...

    # For derived classes whose code is an attribute.
    @overload
    def __init__(self, message: str, data: object = None) -> None: ...

    def __init__(self, *args: Any, **options: Any) -> None:
        own = getattr(type(self), "code", None)
        if own is not None and "code" not in options and not (args and isinstance(args[0], int)):
            args = (own, *args)
        self._set(*args, **options)

    def _set(self, code: int, message: str, data: object = None) -> None:
        if not isinstance(code, int) or isinstance(code, bool):
            raise TypeError(f"code: expected int, got {type(code).__name__}")
        if not isinstance(message, str):
            raise TypeError(f"message: expected str, got {type(message).__name__}")
        super().__init__(code, message, data)
        self.code = code
        self.message = message
        self.data = data

    def __str__(self) -> str:
        line = f"{self.message} [{self.code}]"
        if isinstance(self.data, str) and "\n" in self.data:  # Such as the errors of params.
            return "\n  ".join((line, *self.data.splitlines()))
        return line if self.data is None else f"{line} ({self.data!r})"

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...], dict[str, object]]:
        # Does not call `__init__`: that of a derived class may take other arguments.
        return _new, (type(self), *self.args), self.__dict__


def find_rpc_error(error: BaseException) -> RPCError | None:
    """The exception if it is for the caller, also if a ``TaskGroup`` has made a group of it."""
    error = single(error)
    return error if isinstance(error, RPCError) else None


def single(error: BaseException) -> BaseException:
    """The only exception of a group, or the exception itself."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


class EngineError(OSError):
    """The requested engine is unavailable; the message is the reason.

    Many containers forbid io_uring. ``ucall.Server`` then uses the posix engine.
    """


class NoChannelError(RPCError, RuntimeError):
    """The client cannot take messages of the server: it called over HTTP.

    Messages that answer no call need a WebSocket or raw TCP. The client gets the error if the
    function does not catch it, and the server logs it.
    """

    code = -32600


class ConnectionError(builtins.ConnectionError):
    """A client got no reply: it could not connect, the connection broke, or the reply is invalid.

    The message is the reason.
    """

    #: Whether the call may have run. It has not if the server cannot have read the request.
    may_have_run: bool = True


class HTTPError(ConnectionError):
    """A client got an HTTP status other than success, without a JSON-RPC reply.

    Args:
        status: The status code, such as 413.
        reason: The reason phrase (RFC 9112, section 4).
        text: The beginning of the body.
        retry_after_s: The seconds of the header Retry-After; ``None`` without one.
        location: Where a redirect leads, by the header Location. No client goes there by itself:
            headers with credentials would go along.
    """

    status: int
    reason: str
    text: str
    retry_after_s: int | None
    location: str | None
    #: Whether the request was compressed.
    _was_compressed: bool = False

    def __init__(
        self,
        status: int,
        reason: str = "",
        text: str = "",
        retry_after_s: int | None = None,
        location: str | None = None,
    ) -> None:
        line = f"HTTP status {status} {reason}".rstrip()
        detail = text
        if location is not None:
            detail = (
                f"the server redirects to {location}; clients follow no redirects: use that URI"
            )
        super().__init__(f"{line}: {detail}" if detail else line)
        self.status = status
        self.reason = reason
        self.text = text
        self.retry_after_s = retry_after_s
        self.location = location

    def __reduce__(self) -> tuple[type[HTTPError], tuple[object, ...], dict[str, object]]:
        # Whether the call may have run is in the state.
        arguments = self.status, self.reason, self.text, self.retry_after_s, self.location
        return type(self), arguments, self.__dict__


class TimeoutError(builtins.TimeoutError):
    """A client got no reply in time. The call may have run, or may be running."""

    #: Whether the call may have run. It has not if the client could not connect or send it.
    may_have_run: bool = True
    #: Whether no server took the connection in time.
    _was_connecting: bool = False


def _new(kind: type[RPCError], *arguments: object) -> RPCError:
    return kind.__new__(kind, *arguments)
