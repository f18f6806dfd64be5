"""The decorators of a server for what runs around its functions."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, overload

if TYPE_CHECKING:
    from ucall._core import Call, Context
    from ucall._functions.table import Functions
    from ucall.errors import RPCError

__all__ = ["HookDecorators"]

Hook = TypeVar("Hook", bound=Callable[["Context", "Call"], object])
Error = TypeVar("Error", bound=Exception)


class HookDecorators:
    """The part of `ucall.Server` that registers what runs around functions."""

    _functions: Functions

    @overload
    def middleware(self, hook: Hook) -> Hook: ...

    @overload
    def middleware(self, *, native: bool = False) -> Callable[[Hook], Hook]: ...

    def middleware(self, hook: Any = None, *, native: bool = False) -> Any:
        """Registers a function to run around the calls of all functions::

            @server.middleware
            def timed(ctx: ucall.Context, call: ucall.Call) -> object:
                began = time.perf_counter()
                try:
                    return call()
                finally:
                    print(call.method, time.perf_counter() - began)

        ``call()`` checks the params and runs the function; an async hook has ``await call()``. What
        the hook returns or raises is the answer. The hook that was added first is outermost. See
        docs/hooks.md.

        Args:
            native: Whether it runs around the methods of stores and relays, too; it is async then.

        Raises:
            RuntimeError: The server runs already.
            TypeError: It is no function of the context and the call, or it is a plain function and
                one of the server's functions, or a native procedure, has to be awaited.
        """
        if hook is None:
            return functools.partial(self._add_hook, native=native)
        return self._add_hook(hook, native=native)

    def _add_hook(self, hook: Hook, *, native: bool) -> Hook:
        self._functions.add_hook(hook, native=native)
        return hook

    def on_exception(
        self, kind: type[Error]
    ) -> Callable[[Callable[[Error], RPCError]], Callable[[Error], RPCError]]:
        """Registers a function that makes the errors of an exception's class for callers::

            @server.on_exception(KeyError)
            def missing(error: KeyError) -> ucall.RPCError:
                return ucall.RPCError(404, f"there is no {error}")

        It is called for exceptions of functions and hooks that would otherwise be answered with
        -32603 and logged. The handler of the most specific class is called. It returns the error or
        raises it; if it raises anything else, the call is answered with -32603, and the log shows
        both. With traces it is called for the span, too. It may run on any thread, and for batches
        in processes there: then it must be defined at the top of a module.

        Raises:
            RuntimeError: The server runs already.
            TypeError: It is no class of exceptions, or one of `ucall.RPCError`; or the handler is
                no plain function.
        """

        def add(handler: Callable[[Error], RPCError]) -> Callable[[Error], RPCError]:
            self._functions.add_exception_handler(kind, handler)
            return handler

        return add
