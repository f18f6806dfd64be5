"""Errors for callers of the exceptions that functions raise: `ucall.Server.on_exception`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ucall._functions import signatures
from ucall.errors import RPCError, find_rpc_error, single

__all__ = ["ExceptionHandlers"]

Handler = Callable[[Any], RPCError]


class ExceptionHandlers:
    """The handlers of one server, which its processes need as well."""

    def __init__(self) -> None:
        self._handlers: dict[type[Exception], Handler] = {}

    def add(self, kind: type[Exception], handler: Handler) -> None:
        """Has `handler` make the errors of exceptions of a class, in place of an earlier one.

        Raises:
            TypeError: It is no class of exceptions for the server, or no plain function.
        """
        if not isinstance(kind, type) or not issubclass(kind, Exception):
            raise TypeError(f"on_exception: expected a class of exceptions, got {kind!r}")
        if issubclass(kind, RPCError):
            name = kind.__qualname__
            raise TypeError(f"on_exception: {name} is a ucall.RPCError, which callers get as it is")
        if not callable(handler) or signatures.is_async(handler) or signatures.yields(handler):
            raise TypeError(f"on_exception: expected a plain function, got {handler!r}")
        self._handlers[kind] = handler

    def find(self, error: BaseException) -> RPCError | None:
        """The error for the caller: `ucall.errors.find_rpc_error`, or what the handler of the most
        specific class makes. `None` if there is no handler.

        Raises:
            BaseException: The handler has raised something else than an error for the caller.
        """
        found = find_rpc_error(error)
        if found is not None:
            return found
        error = single(error)
        kinds = (kind for kind in type(error).__mro__ if kind in self._handlers)
        kind = next(kinds, None)
        if kind is None:
            return None
        try:
            return _checked(self._handlers[kind](error))
        except RPCError as raised:
            return raised
        except BaseException as raised:
            if raised is error:  # As if there were no handler.
                return None
            if raised.__context__ is None:  # The log shows both.
                raised.__context__ = error
            raise


def _checked(made: object) -> RPCError:
    if not isinstance(made, RPCError):
        got = type(made).__name__
        raise TypeError(f"on_exception: expected the handler to return a ucall.RPCError, got {got}")
    return made
