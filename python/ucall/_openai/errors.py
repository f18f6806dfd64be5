"""Errors in OpenAI's form."""

from __future__ import annotations

from typing import Any

from ucall._routes.response import HttpResponse
from ucall.errors import ConnectionError, HTTPError, RPCError

__all__ = ["ApiError", "api_error"]

#: The statuses of JSON-RPC's errors, as other routes have them.
_STATUSES = {-32602: 400, -32004: 403, -32003: 503, -32002: 503, -32007: 503, -32001: 504}


class ApiError(Exception):
    """An error for the caller.

    Args:
        message: What is wrong.
        param: The member of the request at fault.
        status: The status of the response.
        code: A word for programs.
        retry_after_ms: When the client should try again.
    """

    def __init__(
        self,
        message: str,
        param: str | None = None,
        status: int = 400,
        code: str | None = None,
        retry_after_ms: float | None = None,
    ) -> None:
        super().__init__(message)
        self.param = param
        self.status = status
        self.code = code
        self.retry_after_ms = retry_after_ms

    @property
    def body(self) -> dict[str, Any]:
        """The object that clients expect."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        error = {"message": str(self), "type": kind, "param": self.param, "code": self.code}
        return {"error": error}

    @property
    def response(self) -> HttpResponse:
        """The response with the error."""
        wait_ms = self.retry_after_ms
        headers = {} if wait_ms is None else {"Retry-After-Ms": str(wait_ms)}
        return HttpResponse(self.body, self.status, headers=headers)


def api_error(error: RPCError | ConnectionError) -> ApiError:
    """The error of a call in OpenAI's form."""
    if isinstance(error, HTTPError):  # A function's own `auth` refuses the key, for instance.
        return ApiError(f"{error.status} {error.reason}", status=error.status)
    if isinstance(error, ConnectionError):  # The server stops.
        return ApiError("the server is not available", status=503)
    data: Any = error.data
    is_status = 400 <= error.code < 600
    status = error.code if is_status else _STATUSES.get(error.code, 500)
    if error.code != -32602 or not isinstance(data, str):
        wait_ms = data.get("retry_after_ms") if isinstance(data, dict) else None
        return ApiError(error.message, status=status, retry_after_ms=wait_ms)
    message = data.removeprefix("params.")
    param = message.partition(":")[0] if message != data else None
    return ApiError(message, param, status)
