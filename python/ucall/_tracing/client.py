"""The spans of a client's calls."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

from opentelemetry import trace

from ucall._core import Notification, Reply
from ucall._tracing import PROPAGATOR, Attributes, attributes_of, record_error, tracer

if TYPE_CHECKING:
    from ucall._client.address import Address
    from ucall._client.inbox import Message
    from ucall._client.sockets import Deadline
    from ucall._client.streams import Source

__all__ = ["ClientSpan", "ClientSpans", "TracedSource"]

#: A `traceparent`, and a `tracestate`.
TraceContext = tuple[str, str | None]


class ClientSpans:
    """Begins the spans of a client's calls."""

    def __init__(self, address: Address) -> None:
        self._tracer = tracer()
        self._attributes = _attributes(address)

    def start(self, method: str, id: object) -> ClientSpan:
        """The span of a call that is about to be sent; a child of the current one."""
        attributes = attributes_of(method, id) | self._attributes
        kind = trace.SpanKind.CLIENT
        return ClientSpan(self._tracer.start_span(method, kind=kind, attributes=attributes))

    def add_to(self, request: dict[str, Any]) -> tuple[ClientSpan, dict[str, Any]]:
        """The span of a request object, and the object with the span's context in ``_meta``."""
        span = self.start(str(request.get("method")), request.get("id"))
        if span.context is None:
            return span, request
        traceparent, tracestate = span.context
        own = {"traceparent": traceparent}
        if tracestate is not None:
            own["tracestate"] = tracestate
        meta = request.get("_meta")
        return span, {**request, "_meta": {**meta, **own} if isinstance(meta, dict) else own}


class ClientSpan:
    """The span of a call. As a context manager it ends with the block."""

    def __init__(self, span: trace.Span) -> None:
        self._span = span
        carrier: dict[str, str] = {}
        PROPAGATOR.inject(carrier, trace.set_span_in_context(span))
        traceparent = carrier.get("traceparent")
        #: What the request carries; ``None`` if there is no trace.
        self.context: TraceContext | None = (
            None if traceparent is None else (traceparent, carrier.get("tracestate"))
        )

    def take(self, reply: Reply | None) -> None:
        """Records the error of a reply."""
        if reply is not None and reply.is_error:
            error = reply.error()
            record_error(self._span, error.get("code"), str(error.get("message")))

    def fail(self, error: BaseException) -> None:
        """Records why there is no reply, and ends the span."""
        kind = type(error)
        self._span.record_exception(error)
        self._span.set_attribute("error.type", f"{kind.__module__}.{kind.__qualname__}")
        self._span.set_status(trace.StatusCode.ERROR, str(error))
        self.end()

    def end(self) -> None:
        """Ends the span, once."""
        if self._span.is_recording():
            self._span.end()

    @contextmanager
    def until_failure(self) -> Iterator[None]:
        """Ends the span only if the block raises."""
        try:
            yield
        except BaseException as error:
            self.fail(error)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is None:
            self.end()
        else:
            self.fail(error)


class TracedSource:
    """The messages of a stream, whose span ends with it."""

    def __init__(self, source: Source, span: ClientSpan) -> None:
        self._source = source
        self._span = span

    async def begin(self, deadline: Deadline) -> None:
        """See `ucall._client.streams.Source.begin`."""
        with self._span.until_failure():
            await self._source.begin(deadline)

    async def next(self, deadline: Deadline) -> Message:
        """See `ucall._client.streams.Source.next`."""
        with self._span.until_failure():
            message = await self._source.next(deadline)
        if isinstance(message, Reply):
            self._span.take(message)
        return message

    def poll(self) -> Notification | None:
        """See `ucall._client.streams.Source.poll`."""
        with self._span.until_failure():
            return self._source.poll()

    def close(self, *, has_ended: bool) -> None:
        """See `ucall._client.streams.Source.close`."""
        self._span.end()
        self._source.close(has_ended=has_ended)


def _attributes(address: Address) -> Attributes:
    if address.socket_path is not None:
        return {"server.address": address.socket_path, "network.transport": "unix"}
    return {
        "server.address": address.host,
        "server.port": address.port,
        "network.transport": "tcp",
    }
