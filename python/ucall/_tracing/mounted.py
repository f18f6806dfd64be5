"""The spans of requests to mounted applications.

The names of attributes are those of OpenTelemetry's semantic conventions for HTTP (1.23). The span
is active while the application runs, so those that it begins are in the same trace.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from opentelemetry import trace
from opentelemetry.context import Context as Variables
from opentelemetry.context import attach

from ucall._tracing import PROPAGATOR, Attributes

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, MutableMapping

    from ucall._asgi.mount import Application, Message

__all__ = ["TracedApplication"]

#: The methods that the conventions name. Clients may send any others.
_METHODS = re.compile("CONNECT|DELETE|GET|HEAD|OPTIONS|PATCH|POST|PUT|TRACE")


class TracedApplication:
    """An application whose requests have spans: until the end of its response, or of its
    WebSocket."""

    def __init__(self, app: Application, prefix: str, tracer: trace.Tracer) -> None:
        self._app = app
        self._route = f"{prefix}/*"
        self._tracer = tracer

    async def __call__(
        self,
        scope: MutableMapping[str, Any],
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        """Runs the application: see ASGI."""
        span = self._start(scope)
        attach(trace.set_span_in_context(span))

        async def traced(message: Message) -> None:
            await send(message)
            _note(span, message)

        try:
            await self._app(scope, receive, traced)
        except BaseException as error:
            _fail(span, error)
            raise
        finally:
            if span.is_recording():  # Its response has not ended it.
                span.end()

    def _start(self, scope: MutableMapping[str, Any]) -> trace.Span:
        attributes = _attributes(scope) | {"http.route": self._route}
        headers = _trace_headers(scope["headers"])
        # As for calls: without a caller's span it begins a trace.
        parent = PROPAGATOR.extract(headers, Variables())
        name = f"{_known_method(scope) or 'HTTP'} {self._route}"
        return self._tracer.start_span(name, parent, trace.SpanKind.SERVER, attributes)


def _trace_headers(lines: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """The caller's span (W3C Trace Context): none if several lines name one."""
    parents = [value for name, value in lines if name == b"traceparent"]
    states = [value for name, value in lines if name == b"tracestate"]
    if len(parents) != 1:
        return {}
    headers = {"traceparent": parents[0], "tracestate": b",".join(states)}
    return {name: value.decode("latin-1") for name, value in headers.items() if value}


def _known_method(scope: MutableMapping[str, Any]) -> str | None:
    method: str = scope.get("method", "GET")
    return method if _METHODS.fullmatch(method) else None


def _attributes(scope: MutableMapping[str, Any]) -> Attributes:
    attributes: Attributes = {
        "http.request.method": _known_method(scope) or "_OTHER",
        "url.scheme": scope["scheme"],
        "url.path": scope["path"],
        "network.protocol.version": scope["http_version"],
    }
    for key, address in (("server", scope["server"]), ("client", scope["client"])):
        if address is not None:
            attributes[f"{key}.address"] = address[0]
            if address[1] is not None:
                attributes[f"{key}.port"] = address[1]
    return attributes


def _note(span: trace.Span, message: Message) -> None:
    """Notes what the application has sent."""
    kind: str = message["type"]
    if kind == "websocket.accept":
        span.set_attribute("http.response.status_code", 101)
    elif kind.endswith(".response.start"):
        _note_status(span, message["status"])
    elif kind.endswith(".response.body") and not message.get("more_body"):
        span.end()


def _note_status(span: trace.Span, status: int) -> None:
    span.set_attribute("http.response.status_code", status)
    if status >= 500:
        span.set_attribute("error.type", str(status))
        span.set_status(trace.StatusCode.ERROR)


def _fail(span: trace.Span, error: BaseException) -> None:
    """Records what the application has raised."""
    if span.is_recording():
        span.record_exception(error)
        span.set_attribute("error.type", f"{type(error).__module__}.{type(error).__qualname__}")
        span.set_status(trace.StatusCode.ERROR, str(error))
