"""Spans of calls, by OpenTelemetry. Imported only by servers and clients with ``trace=True``.

The names of attributes are those of OpenTelemetry's semantic conventions for RPC and JSON-RPC
(1.45). Without an SDK the spans are not recorded, but the caller's context is passed on.
"""

from __future__ import annotations

from ucall import _core

try:
    from opentelemetry import trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError as missing:
    raise ImportError(
        "trace=True needs OpenTelemetry's API: pip install opentelemetry-api", name=missing.name
    ) from missing

__all__ = ["PROPAGATOR", "Attributes", "attributes_of", "record_error", "tracer"]

Attributes = dict[str, str | int]

#: Reads and writes ``traceparent`` and ``tracestate`` (W3C Trace Context).
PROPAGATOR = TraceContextTextMapPropagator()


def tracer() -> trace.Tracer:
    """The tracer of ucall's spans, from the program's provider."""
    return trace.get_tracer("ucall", _core.VERSION)


def attributes_of(method: str, id: object) -> Attributes:
    """The attributes of a call that the client and the server share."""
    attributes: Attributes = {
        "rpc.system.name": "jsonrpc",
        "rpc.method": method,
        "jsonrpc.protocol.version": "2.0",
    }
    if id is not None:
        attributes["jsonrpc.request.id"] = str(id)
    return attributes


def record_error(span: trace.Span, code: object, message: str) -> None:
    """Records the error that a call is answered with."""
    span.set_attribute("rpc.response.status_code", str(code))
    span.set_attribute("error.type", str(code))
    span.set_status(trace.StatusCode.ERROR, message)
