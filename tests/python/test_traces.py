"""Spans of calls, by ``trace`` of servers and clients, and the caller's trace context."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import forking
import pytest
from both_clients import NewClient
from decoding import KINDS, Decoder
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from serving import Serve

import ucall
from harness import Wire, eventually, http, request
from ucall._tracing.server import CallSpans
from ucall.client import Client

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
OTHER = "00-1af7651916cd43dd8448eb211c80319c-c7ad6b7169203331-01"
TRACE_ID = 0x0AF7651916CD43DD8448EB211C80319C


class Spans:
    """The finished spans."""

    def __init__(self, exporter: InMemorySpanExporter) -> None:
        self._exporter = exporter

    def take(self, count: int) -> list[ReadableSpan]:
        """Waits for that many spans, and removes them."""
        assert eventually(lambda: len(self._exporter.get_finished_spans()) >= count)
        found = list(self._exporter.get_finished_spans())
        self._exporter.clear()
        assert len(found) == count, [span.name for span in found]
        return found

    def chain(self, *inner: str) -> tuple[ReadableSpan, ReadableSpan]:
        """The client's and the server's span, which are one trace with the inner ones."""
        found = self.take(2 + len(inner))
        [client] = [span for span in found if span.kind is SpanKind.CLIENT]
        [server] = [span for span in found if span.kind is SpanKind.SERVER]
        own = [span for span in found if span.kind is SpanKind.INTERNAL]
        assert {span.context.trace_id for span in found} == {client.context.trace_id}
        assert client.parent is None
        assert [span.name for span in own] == list(inner)
        assert parent_id(server) == client.context.span_id
        assert {parent_id(span) for span in own} <= {server.context.span_id}
        return client, server


def parent_id(span: ReadableSpan) -> int:
    assert span.parent is not None
    return span.parent.span_id


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[Spans]:
    """A provider of its own: a process sets that of the program only once."""
    provider, exporter = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    yield Spans(exporter)
    provider.shutdown()


def inner() -> Any:
    return trace.get_tracer("program").start_as_current_span("inner")


def plain(a: int) -> int:
    with inner():
        return a


def with_context(a: int, ctx: ucall.Context) -> int:
    with inner():
        return a if ctx.method == "with_context" else 0


def keyword_context(a: int, *rest: int, ctx: ucall.Context, **more: int) -> int:
    with inner():
        return a if ctx.method == "keyword_context" else 0


async def task(a: int) -> int:
    await asyncio.sleep(0)
    with inner():
        await asyncio.sleep(0)
        return a


def generator(a: int) -> Iterator[int]:
    for item in range(a):
        with inner():
            yield item


async def async_generator(a: int) -> AsyncIterator[int]:
    for item in range(a):
        await asyncio.sleep(0)
        with inner():
            yield item


CALLED = [plain, with_context, keyword_context, task]
STREAMS = [generator, async_generator]


@pytest.fixture(params=["http", "tcp", "ws"])
def scheme(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("threads", [None, 2])
def test_the_spans_of_a_call_are_one_trace(
    serve_once: Serve, spans: Spans, scheme: str, threads: int | None, new_client: NewClient
) -> None:
    server = serve_once(*CALLED, *STREAMS, trace=True, threads=threads)
    with new_client(f"{scheme}://127.0.0.1:{server.port}", trace=True) as client:
        for function in CALLED:
            assert client.call(function.__name__, 7).json == 7
            sent, served = spans.chain("inner")
            assert sent.name == served.name == function.__name__
            assert (
                attributes(sent)["jsonrpc.request.id"] == attributes(served)["jsonrpc.request.id"]
            )
        for function in STREAMS:
            stream = client.stream.generator if function is generator else None
            stream = stream or client.stream.async_generator
            assert list(stream(2)) == [0, 1]
            spans.chain("inner", "inner")
            assert client.call(function.__name__, 2).json == [0, 1]
            spans.chain("inner", "inner")
        client.notify("plain", 1)
        assert "jsonrpc.request.id" not in attributes(spans.chain("inner")[1])
        assert client({"method": "plain", "params": [3], "_meta": {"x": 1}}).json == 3
        spans.chain("inner")


def test_each_call_of_a_request_has_its_own_span(
    serve_once: Serve, spans: Spans, scheme: str, new_client: NewClient
) -> None:
    server = serve_once(plain, trace=True)
    with new_client(f"{scheme}://127.0.0.1:{server.port}", trace=True) as client:
        with client.batch() as batch:
            batch.plain(1)
            batch.notify("plain", 2)
            batch.missing()
        found = spans.take(7)
    sent = {span.context.span_id: span for span in found if span.kind is SpanKind.CLIENT}
    served = [span for span in found if span.kind is SpanKind.SERVER]
    assert len({span.context.trace_id for span in found}) == len(sent) == 3
    assert {parent_id(span) for span in served} < set(sent)
    [failed] = [span for span in sent.values() if span.name == "missing"]
    assert attributes(failed)["rpc.response.status_code"] == "-32601"


def test_the_attributes_are_those_of_the_conventions(
    serve_once: Serve, spans: Spans, new_client: NewClient
) -> None:
    server = serve_once(plain, trace=True)
    with new_client(f"http://127.0.0.1:{server.port}", trace=True) as client:
        client.with_options(id="seven").plain(7)
    sent, served = spans.chain("inner")
    shared = {
        "rpc.system.name": "jsonrpc",
        "rpc.method": "plain",
        "jsonrpc.protocol.version": "2.0",
        "jsonrpc.request.id": "seven",
        "server.address": "127.0.0.1",
        "server.port": server.port,
        "network.transport": "tcp",
    }
    assert attributes(sent) == shared
    port = attributes(served)["client.port"]
    assert attributes(served) == shared | {
        "client.address": "127.0.0.1",
        "client.port": port,
        "network.peer.address": "127.0.0.1",
        "network.peer.port": port,
    }
    assert sent.status.status_code is served.status.status_code is StatusCode.UNSET


def test_the_addresses_over_a_unix_socket(
    tmp_path: Path, spans: Spans, new_client: NewClient
) -> None:
    path = tmp_path / "s"
    server = ucall.Server(uds=path, observability=ucall.Observability(trace=True))
    server.add(plain)
    with server, new_client(f"unix://{path}", trace=True) as client:
        client.plain(1)
        for span in spans.chain("inner"):
            found = attributes(span)
            assert (found["server.address"], found["network.transport"]) == (str(path), "unix")


def test_errors_are_recorded_with_their_code(
    serve_once: Serve, spans: Spans, new_client: NewClient
) -> None:
    def refuse() -> None:
        raise ucall.RPCError(7, "no")

    def fail() -> None:
        raise KeyError("x")

    async def sleep() -> None:
        await asyncio.Event().wait()

    server = serve_once(refuse, fail, sleep, trace=True)
    server.add(sleep, "late", timeout_ms=1)
    with new_client(f"http://127.0.0.1:{server.port}", trace=True) as client:
        for method, code in (("refuse", "7"), ("fail", "-32603"), ("late", "-32001")):
            client.call(method)
            for span in spans.chain():
                found = attributes(span)
                assert found["rpc.response.status_code"] == found["error.type"] == code
                assert span.status.status_code is StatusCode.ERROR
                assert len(span.events) == (span.kind is SpanKind.SERVER and method == "fail")


def test_a_call_that_the_client_leaves_is_cancelled(
    serve_once: Serve, spans: Spans, new_client: NewClient
) -> None:
    async def forever() -> AsyncIterator[int]:
        while True:
            await asyncio.sleep(0)
            yield 1

    server = serve_once(forever, trace=True)
    with new_client(f"ws://127.0.0.1:{server.port}", trace=True) as client:
        for _ in client.stream.forever():
            break
        sent, served = spans.chain()
    assert attributes(served)["rpc.response.status_code"] == "-32800"
    assert sent.status.status_code is StatusCode.UNSET


def test_a_thread_that_returns_too_late_has_the_error_of_its_caller(
    serve_once: Serve, spans: Spans
) -> None:
    started: list[str] = []

    def wait(ctx: ucall.Context) -> int:
        started.append(ctx.method)
        assert eventually(lambda: ctx.cancelled)
        return 1

    server = serve_once(trace=True)
    server.add(wait, "late", threads=True, timeout_ms=100)
    server.add(wait, "left", threads=True)
    with Wire(server.port) as wire:
        # On a busy machine the deadline may pass before a thread starts the function.
        assert eventually(lambda: wire.error("late")["code"] == -32001 and bool(started))
    late = spans.take(len(started))
    with Wire(server.port) as wire:
        wire.send(http(request("left")))
        assert eventually(lambda: "left" in started)
    [left] = spans.take(1)
    codes = {attributes(span).get("rpc.response.status_code") for span in late}
    assert codes == {"-32001"} and late[0].status.status_code is StatusCode.ERROR
    assert attributes(left)["rpc.response.status_code"] == "-32800"


def test_a_client_records_why_it_got_no_reply(spans: Spans, new_client: NewClient) -> None:
    client = new_client("tcp://127.0.0.1:1", trace=True)
    for call in (lambda: client.f(), lambda: list(client.stream.f()), lambda: _send(client)):
        with pytest.raises(ucall.ConnectionError):
            call()
        [span] = spans.take(1)
        assert attributes(span)["error.type"] == "ucall.errors.ConnectionError"
        assert span.status.status_code is StatusCode.ERROR


def _send(client: Client) -> None:
    with client.batch() as batch:
        batch.f()


@pytest.mark.parametrize("kind", ["plain", "threads", "async", "context", "generator"])
def test_the_span_of_a_batch_has_links_to_those_of_its_calls(
    serve_once: Serve, spans: Spans, kind: str
) -> None:
    def squares(a: list[int]) -> list[object]:
        with inner():
            return [ValueError("odd") if it == 3 else it * it for it in a]

    async def later(a: list[int]) -> list[object]:
        return squares(a)

    def contexts(a: list[int], ctx: list[ucall.Context]) -> list[object]:
        assert len(ctx) == len(a)
        return squares(a)

    def steps(a: list[int]) -> Iterator[list[object]]:
        with inner():
            yield [it * it for it in a]

    function = {"async": later, "context": contexts, "generator": steps}.get(kind, squares)
    server = serve_once(trace=True)
    threads = kind == "threads" or None
    server.batch(function, name="square", max_size=2, max_wait_ms=10_000, threads=threads)
    calls = [dict(json.loads(request("square", [it], it)), _meta={}) for it in (2, 3)]
    for call, parent in zip(calls, (PARENT, OTHER), strict=True):
        call["_meta"]["traceparent"] = parent
    with Wire(server.port) as wire:
        wire.send(json.dumps(calls).encode())
        wire.line()
    found = spans.take(4)
    served = [span for span in found if span.kind is SpanKind.SERVER]
    [batch] = [span for span in found if span.name == "square batch"]
    [own] = [span for span in found if span.name == "inner"]
    assert [span.context.span_id for span in served] == [it.context.span_id for it in batch.links]
    callers = [int(parent[3:35], 16) for parent in (PARENT, OTHER)]
    assert [span.context.trace_id for span in served] == callers
    assert attributes(batch) == {"rpc.method": "square", "ucall.batch.size": 2}
    assert parent_id(own) == batch.context.span_id
    codes = [attributes(span).get("rpc.response.status_code") for span in served]
    assert codes == [None, None if kind == "generator" else "-32603"]


def test_a_batch_that_raises_fails_all_its_spans(serve_once: Serve, spans: Spans) -> None:
    server = serve_once(trace=True)

    @server.batch
    def square(a: list[int]) -> list[int]:
        raise KeyError("x")

    with Wire(server.port) as wire:
        wire.error("square", [1])
    assert {span.status.status_code for span in spans.take(2)} == {StatusCode.ERROR}


@pytest.mark.parametrize("kind", KINDS)
def test_a_call_in_a_slot_has_a_span_to_its_end(serve_once: Serve, spans: Spans, kind: str) -> None:
    server = serve_once(trace=True)
    Decoder(kind).add_to(server)
    with Wire(server.port) as wire:
        assert wire.result("decode", [2]) == [0, 1]
        assert wire.error("decode", [98])["code"] == 7
        found = spans.take(2)
        assert [span.name for span in found] == ["decode", "decode"]
        codes = [attributes(span).get("rpc.response.status_code") for span in found]
        assert codes == [None, "7"]
        assert wire.error("decode", [99])["code"] == -32603
    [failed] = spans.take(1)
    assert attributes(failed)["rpc.response.status_code"] == "-32603"


def test_calls_at_the_same_time_keep_their_own_spans(serve_once: Serve, spans: Spans) -> None:
    both = threading.Barrier(2)

    async def interleaved() -> int:
        before = trace.get_current_span()
        for _ in range(3):
            await asyncio.sleep(0)
        return int(trace.get_current_span() is before)

    def threaded() -> int:
        before = trace.get_current_span()
        both.wait()
        return int(trace.get_current_span() is before)

    server = serve_once(interleaved, trace=True)
    server.add(threaded, threads=True)
    for method in ("interleaved", "threaded"):
        with Wire(server.port) as wire:
            wire.send(request(method, id=1) + request(method, id=2))
            assert [json.loads(wire.line())["result"] for _ in range(2)] == [1, 1]
        assert len({span.context.trace_id for span in spans.take(2)}) == 2


def test_a_span_of_the_program_is_no_parent(serve_once: Serve, spans: Spans) -> None:
    """The server may be started within one."""
    with trace.get_tracer("program").start_as_current_span("starting"):
        server = serve_once(plain, trace=True)
    with Wire(server.port) as wire:
        wire.result("plain", [1])
    served = [span for span in spans.take(3) if span.kind is SpanKind.SERVER]
    assert [span.parent for span in served] == [None]


def test_a_span_around_a_call_is_no_parent(spans: Spans) -> None:
    """As one that a function of an earlier call in the same context has left."""
    server = ucall.Server(port=0)
    parts = {"method": "plain", "id": 1, "peer": None, "traceparent": None, "tracestate": None}
    ctx = SimpleNamespace(**parts, cancelled=False)
    calls = CallSpans(server)
    with trace.get_tracer("program").start_as_current_span("around"):
        calls.call(ctx).end(None)  # type: ignore[arg-type]
        batch = calls.batch([ctx])  # type: ignore[list-item]
        batch.__exit__(None, None, None)
    around = [span for span in spans.take(4) if span.name != "around"]
    assert [span.parent for span in around] == [None] * 3


def test_params_are_checked_as_without_traces(serve_once: Serve, spans: Spans) -> None:
    errors = []
    for traced in (False, True):
        server = serve_once(plain, with_context, keyword_context, trace=traced)
        server.add(max, "max")
        with Wire(server.port) as wire:
            for method in ("plain", "with_context", "keyword_context", "max"):
                for params in ([], ["x"], [1, 2, 3], {"b": 1}, {"a": 1, "ctx": 2}, {"": 1}):
                    errors.append(wire.call(method, params).get("error"))
    half = len(errors) // 2
    assert errors[:half] == errors[half:]


SCRIPT = """
from opentelemetry import trace
import ucall
server = ucall.Server(port=0, observability=ucall.Observability(trace=True))

@server(processes=1)
def where(fails: bool) -> str:
    if fails:
        raise ucall.RPCError(7, "no")
    return hex(trace.get_current_span().get_span_context().trace_id)

server.on_startup(lambda: print(server.port, flush=True))
server.run()
"""


def test_a_function_in_a_process_is_in_the_callers_trace(tmp_path: Path) -> None:
    """Without an SDK, the context of the caller is passed on."""
    (tmp_path / "script.py").write_text(SCRIPT)
    with forking.Python([sys.executable, tmp_path / "script.py"], stdout=subprocess.PIPE) as it:
        assert it.stdout is not None
        try:
            with Wire(int(it.stdout.readline())) as wire:
                wire.send(http(request("where", [False]), f"traceparent: {PARENT}"))
                assert json.loads(wire.reply()[2])["result"] == hex(TRACE_ID)
                wire.send(http(request("where", [True]), f"traceparent: {PARENT}"))
                assert json.loads(wire.reply()[2])["error"]["code"] == 7
        finally:
            it.terminate()


def test_a_server_without_traces_imports_nothing() -> None:
    program = """
import sys, ucall, ucall.client
server = ucall.Server(port=0)
server.add(lambda a: a, "f")
with server, ucall.client.Client(f"http://127.0.0.1:{server.port}") as client:
    client.f(1)
print([name for name in sys.modules if "opentelemetry" in name or "tracing" in name])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_a_missing_package_is_named() -> None:
    program = """
import sys
sys.modules["opentelemetry"] = None
import ucall, ucall.aio, ucall.client
trace = ucall.Observability(trace=True)
kinds = [(ucall.Server, {"port": 0, "observability": trace})]
kinds += [(it, {"port": 1, "trace": True}) for it in (ucall.client.Client, ucall.aio.Client)]
for kind, options in kinds:
    try:
        kind(**options)
    except ImportError as error:
        print(error)
"""
    done = forking.run([sys.executable, "-c", program], text=True)
    message = "trace=True needs OpenTelemetry's API: pip install opentelemetry-api"
    assert done.stdout.splitlines() == [message] * 3, done.stderr


def seen(ctx: ucall.Context) -> list[str | None]:
    return [ctx.traceparent, ctx.tracestate]


def test_the_context_has_the_callers_trace(serve_once: Serve) -> None:
    server = serve_once(seen)
    meta = {"traceparent": PARENT, "tracestate": "a=\u00e9"}
    header = (f"Traceparent: {OTHER}", "tracestate: b=2", "tracestate: c=3")
    with Wire(server.port) as wire:

        def ask(meta: dict[str, str] | None, *headers: str) -> Any:
            call = json.loads(request("seen"))
            call |= {} if meta is None else {"_meta": meta}
            wire.send(http(json.dumps(call).encode(), *headers))
            return json.loads(wire.reply()[2])["result"]

        assert ask(None) == [None, None]
        assert ask(None, *header) == [OTHER, "b=2, c=3"]
        assert ask({"timeout_ms": 60_000}, *header) == [OTHER, "b=2, c=3"]  # type: ignore[dict-item]
        assert ask(meta, *header) == [PARENT, "a=\u00e9"]
        # A tracestate belongs to its traceparent.
        assert ask({"traceparent": PARENT}, *header) == [PARENT, None]
        assert ask({"tracestate": "a=1"}, *header) == [OTHER, "b=2, c=3"]
    with Wire(server.port) as wire:
        wire.send(json.dumps(dict(json.loads(request("seen")), _meta=meta)).encode())
        assert json.loads(wire.line())["result"] == [PARENT, "a=\u00e9"]


def test_clients_send_the_trace_in_a_header_or_in_meta(
    serve_once: Serve, spans: Spans, scheme: str, new_client: NewClient
) -> None:
    def headers(ctx: ucall.Context) -> list[object]:
        return [ctx.traceparent, ctx.tracestate, ctx.headers.get("traceparent")]

    server = serve_once(headers, trace=True)
    state = trace.TraceState([("vendor", "1")])
    parent = trace.SpanContext(TRACE_ID, 1, True, trace.TraceFlags(1), state)
    with (
        new_client(f"{scheme}://127.0.0.1:{server.port}", trace=True) as client,
        trace.use_span(trace.NonRecordingSpan(parent)),
    ):
        traceparent, tracestate, header = client.headers().json
        assert traceparent.startswith(f"00-{TRACE_ID:032x}-") and tracestate == "vendor=1"
        assert header == (traceparent if scheme == "http" else None)
