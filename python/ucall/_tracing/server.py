"""The spans of a server's calls.

A function is wrapped when it is registered, so a server without ``trace=True`` runs no code of this
module. The wrapper needs the `ucall.Context` of the call: it gets that of a function that takes it,
and otherwise registers a parameter of its own in front.

The core runs each call with a context in variables (`contextvars`) of its own. So a span stays
active in them, and nothing has to restore the variables.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import inspect
import weakref
from collections.abc import AsyncIterator, Callable, Generator
from typing import TYPE_CHECKING, Any, Protocol, Self

from opentelemetry import trace
from opentelemetry.context import Context as Variables
from opentelemetry.context import attach

from ucall import _core
from ucall._functions.registration import Address
from ucall._tracing import PROPAGATOR, Attributes, attributes_of, record_error, tracer
from ucall._workers import process_role
from ucall._workers.process_role import UNIX
from ucall.errors import RPCError, find_rpc_error

if TYPE_CHECKING:
    from ucall._asgi.mount import Application
    from ucall._core import Context
    from ucall._functions.registration import Hooks, Registration
    from ucall._functions.signatures import Parameter

__all__ = ["CallSpans"]

Function = Callable[..., Any]
#: Finds the error that the caller of a function gets for an exception.
FindError = Callable[[BaseException], RPCError | None]
TraceHeaders = dict[str, str]
#: Splits the arguments of a wrapper: the context of the call, or of a batch's calls, and the
#: function's own positional arguments.
Split = Callable[[tuple[Any, ...], dict[str, Any]], tuple[Any, tuple[Any, ...]]]

_DEADLINE_PASSED, _CANCELLED, _INTERNAL = -32001, -32800, -32603
#: The parameters of a builtin without a signature.
_ANY: list[Parameter] = [
    ("args", int(inspect.Parameter.VAR_POSITIONAL), "any", False, None),
    ("kwargs", int(inspect.Parameter.VAR_KEYWORD), "any", False, None),
]
_OWN_CONTEXT: Parameter = ("", int(inspect.Parameter.POSITIONAL_ONLY), "context", True, None)


class HasAddress(Protocol):
    """A server, as its spans name it."""

    @property
    def host(self) -> str: ...

    @property
    def port(self) -> int | Any: ...


class CallSpans:
    """Wraps the functions of a server, so that each call has a span."""

    def __init__(self, server: HasAddress) -> None:
        #: Weak: the core refers to the wrapped functions, and the server to the core. The collector
        #: does not see references of the core, so it would never free a cycle through it.
        self._server = weakref.ref(server)
        self._tracer = tracer()
        self.find_error: FindError = find_rpc_error

    def wrap(self, registration: Registration) -> Registration:
        """The registration of a function with its spans."""
        if registration.hooks is not None:
            return self._wrap_hooks(registration, registration.hooks)
        if registration.batch is not None and registration.batch.slots is not None:
            from ucall._tracing import slots

            function = slots.wrap(registration.function, registration.mode, self.call)
            return dataclasses.replace(registration, function=function)
        if isinstance(registration.function, _core.ProcessFunction):
            # Its processes make the spans: of the contexts that they are sent.
            signature = [_OWN_CONTEXT, *(registration.signature or [])]
            return dataclasses.replace(registration, signature=signature)
        signature, split = _with_context(registration.signature)
        begin = self.call if registration.batch is None else self.batch
        wrapper = _WRAPPERS[registration.mode](registration.function, split, begin)
        return dataclasses.replace(registration, function=wrapper, signature=signature)

    def _wrap_hooks(self, registration: Registration, hooks: Hooks) -> Registration:
        """The registration of a function whose span is around its hooks, too."""
        outermost = _WRAPPERS[hooks.mode](hooks.outermost, _by_position(0), self.call)
        hooks = dataclasses.replace(hooks, outermost=outermost)
        function = registration.function
        if registration.mode == "future":
            function = _with_headers(function)
        return dataclasses.replace(registration, function=function, hooks=hooks)

    def in_process(self, function: Function) -> Function:
        """The function as a pool of processes runs it."""
        return _CallInProcess(function)

    def address(self) -> Address:
        """The address of the server, for the spans that other processes make."""
        server = self._server()
        return Address("", None) if server is None else Address(server.host, server.port)

    def mounted(self, app: Application, prefix: str) -> Application:
        """The application at a path with spans of its requests."""
        from ucall._tracing.mounted import TracedApplication

        return TracedApplication(app, prefix, self._tracer)

    def call(self, ctx: Context) -> CallSpan:
        """The span of one call."""
        return CallSpan(self._start(ctx), ctx, self.find_error)

    def batch(self, contexts: list[Context]) -> BatchSpan | _NoSpan:
        """The span of a batch, with links to the spans of its calls."""
        if contexts[0] is None:  # In a process; the server has the spans, around hooks.
            return _NoSpan()
        calls = [self.call(ctx) for ctx in contexts]
        attributes: Attributes = {
            "rpc.method": contexts[0].method,
            "ucall.batch.size": len(calls),
        }
        if process_role.device is not None:
            attributes["ucall.device"] = process_role.device
        span = self._tracer.start_span(
            f"{contexts[0].method} batch",
            Variables(),
            attributes=attributes,
            links=[trace.Link(call.span.get_span_context()) for call in calls],
        )
        return BatchSpan(span, calls)

    def _start(self, ctx: Context) -> trace.Span:
        headers = _headers_of(ctx.traceparent, ctx.tracestate)
        # Without a caller's span it begins a trace: the program's own spans are not its parents.
        parent = PROPAGATOR.extract(headers, Variables())
        attributes = attributes_of(ctx.method, ctx.id) | self._addresses(ctx)
        return self._tracer.start_span(ctx.method, parent, trace.SpanKind.SERVER, attributes)

    def _addresses(self, ctx: Context) -> Attributes:
        server = self._server()
        if server is None:  # A thread begins this call after the end of its server.
            return {}
        host = server.host
        if host.startswith(UNIX):
            return {"server.address": host.removeprefix(UNIX), "network.transport": "unix"}
        addresses: Attributes = {"server.address": host, "network.transport": "tcp"}
        if server.port is not None:  # The host of the workers' processes does not listen.
            addresses["server.port"] = server.port
        if isinstance(ctx.peer, tuple):
            address, port = ctx.peer[0], ctx.peer[1]
            for name in ("client", "network.peer"):
                addresses |= {f"{name}.address": address, f"{name}.port": port}
        return addresses


class CallSpan:
    """The span of a call, active and then ended as a context manager."""

    def __init__(self, span: trace.Span, ctx: Context, find_error: FindError) -> None:
        self.span = span
        self._ctx = ctx
        self._find_error = find_error

    def __enter__(self) -> Self:
        _activate(self.span)
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self.end(error)

    def end(self, error: BaseException | None) -> None:
        """Ends the span with what the function raised."""
        if error is None and self._ctx.cancelled:
            # A function in a thread cannot be interrupted, so it returns after its caller's error.
            error = asyncio.CancelledError()
        if error is not None:
            self._record(error)
        self.span.end()

    def result_of(self, result: Any) -> Any:
        """The result of the function."""
        return result

    def headers(self) -> TraceHeaders:
        """The context for a process that runs the call."""
        headers: TraceHeaders = {}
        PROPAGATOR.inject(headers, trace.set_span_in_context(self.span, Variables()))
        return headers

    def _record(self, error: BaseException) -> None:
        is_cancelled = isinstance(error, asyncio.CancelledError | GeneratorExit)
        # The process of a call past its deadline is killed.
        is_late = (is_cancelled or isinstance(error, TimeoutError)) and self._ctx.time_left == 0
        try:
            found = None if is_cancelled else self._find_error(error)
        except Exception:  # The log says that a handler has failed.
            found = None
        if found is not None:
            record_error(self.span, found.code, found.message)
        elif is_late:
            record_error(self.span, _DEADLINE_PASSED, "Deadline passed")
        elif is_cancelled:
            record_error(self.span, _CANCELLED, "Cancelled")
        else:
            self.span.record_exception(error)
            record_error(self.span, _INTERNAL, f"{type(error).__name__}: {error}")


class BatchSpan:
    """The span of a batch, active and then ended as a context manager."""

    def __init__(self, span: trace.Span, calls: list[CallSpan]) -> None:
        self._span = span
        self._calls = calls
        self._errors: list[BaseException | None] = [None] * len(calls)

    def __enter__(self) -> Self:
        _activate(self._span)
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is not None:
            self._errors = [error] * len(self._calls)
            self._span.set_attribute("error.type", type(error).__qualname__)
            self._span.set_status(trace.StatusCode.ERROR, str(error))
        for call, own in zip(self._calls, self._errors, strict=True):
            call.end(own)
        self._span.end()

    def result_of(self, results: Any) -> Any:
        """Notes the calls whose result is an exception."""
        if isinstance(results, list | tuple) and len(results) == len(self._calls):
            self._errors = [it if isinstance(it, BaseException) else None for it in results]
        return results


class _NoSpan:
    """In place of the span of a batch."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        pass

    def result_of(self, results: Any) -> Any:
        """The results of the function."""
        return results


class _CallInProcess:
    """A function in a process of a pool, where the call's span is the parent of further ones."""

    def __init__(self, function: Function) -> None:
        self._function = function

    def __call__(self, headers: TraceHeaders, /, *args: Any, **kwargs: Any) -> Any:
        attach(PROPAGATOR.extract(headers))
        return self._function(*args, **kwargs)


def _with_headers(function: Function) -> Function:
    """A function of a pool of processes, which gets the context of the span that is active."""

    def submit(*args: Any, **kwargs: Any) -> Any:
        headers: TraceHeaders = {}
        PROPAGATOR.inject(headers)
        return function(headers, *args, **kwargs)

    return submit


def _activate(span: trace.Span) -> None:
    attach(trace.set_span_in_context(span))


def _headers_of(traceparent: str | None, tracestate: str | None) -> TraceHeaders:
    found = {"traceparent": traceparent, "tracestate": tracestate}
    return {name: text for name, text in found.items() if text is not None}


def _with_context(signature: list[Parameter] | None) -> tuple[list[Parameter], Split]:
    """The parameters with one for the context, and what takes it out of the arguments."""
    parameters = _ANY if signature is None else signature
    for index, (name, kind, takes, *_) in enumerate(parameters):
        if takes == "context":
            is_named = kind == inspect.Parameter.KEYWORD_ONLY
            return parameters, _by_name(name) if is_named else _by_position(index)
    return [_OWN_CONTEXT, *parameters], lambda args, kwargs: (args[0], args[1:])


def _by_name(name: str) -> Split:
    return lambda args, kwargs: (kwargs[name], args)


def _by_position(index: int) -> Split:
    return lambda args, kwargs: (args[index], args)


def _plain(function: Function, split: Split, begin: Callable[[Any], Any]) -> Function:
    def call(*args: Any, **kwargs: Any) -> Any:
        ctx, args = split(args, kwargs)
        with begin(ctx) as span:
            return span.result_of(function(*args, **kwargs))

    return call


def _async(function: Function, split: Split, begin: Callable[[Any], Any]) -> Function:
    async def call(*args: Any, **kwargs: Any) -> Any:
        ctx, args = split(args, kwargs)
        with begin(ctx) as span:
            return span.result_of(await function(*args, **kwargs))

    return call


def _generator(function: Function, split: Split, begin: Callable[[Any], Any]) -> Function:
    def call(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        ctx, args = split(args, kwargs)
        with begin(ctx):
            return (yield from function(*args, **kwargs))

    return call


def _async_generator(function: Function, split: Split, begin: Callable[[Any], Any]) -> Function:
    async def call(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        ctx, args = split(args, kwargs)
        with begin(ctx):
            async with contextlib.aclosing(function(*args, **kwargs)) as items:
                async for item in items:
                    yield item

    return call


def _future(function: Function, split: Split, begin: Callable[[Any], Any]) -> Function:
    def submit(*args: Any, **kwargs: Any) -> concurrent.futures.Future[Any]:
        ctx, args = split(args, kwargs)
        span: CallSpan = begin(ctx)

        def end(future: concurrent.futures.Future[Any]) -> None:
            is_cancelled = future.cancelled()
            span.end(asyncio.CancelledError() if is_cancelled else future.exception())

        future: concurrent.futures.Future[Any] = function(span.headers(), *args, **kwargs)
        future.add_done_callback(end)
        return future

    return submit


#: By the core's modes of functions: see `ucall._functions.registration`.
_WRAPPERS: dict[str, Callable[[Function, Split, Callable[[Any], Any]], Function]] = {
    "inline": _plain,
    "thread": _plain,
    "task": _async,
    "future": _future,
    "generator": _generator,
    "thread_generator": _generator,
    "async_generator": _async_generator,
}
