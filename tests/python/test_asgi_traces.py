"""Spans of requests to mounted applications."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import httpx
import pytest
from mounting import mounted
from opentelemetry.trace import SpanKind, StatusCode
from test_traces import PARENT, TRACE_ID, Spans, attributes, inner, parent_id, spans
from websockets.sync.client import connect

from harness import eventually

__all__ = ["spans"]


async def application(scope: Any, receive: Any, send: Any) -> None:
    assert scope["type"] != "lifespan"
    name = scope["path"].rpartition("/")[2]
    with inner():
        await asyncio.sleep(0)
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.accept"})
        while (await receive())["type"] != "websocket.disconnect":
            pass
        return
    if name == "raises":
        raise KeyError("broken")
    seen = dict(scope["headers"]).get(b"traceparent", b"")
    await send({"type": "http.response.start", "status": int(name)})
    await send({"type": "http.response.body", "body": seen, "more_body": True})
    await send({"type": "http.response.body"})
    with inner():
        await asyncio.sleep(0)


def test_requests_to_a_mounted_application(
    engine: str, spans: Spans, caplog: pytest.LogCaptureFixture
) -> None:
    with mounted(engine, application, path="/app", trace=True) as server:
        url = f"http://127.0.0.1:{server.port}/app"
        for method, name, parent, error in [
            ("GET", "200", PARENT, None),
            ("post", "404", None, None),
            ("SEARCH", "503", PARENT, "503"),
            ("GET", "raises", PARENT, "builtins.KeyError"),
        ]:
            headers = {"traceparent": parent} if parent else {}
            reply = httpx.request(method, f"{url}/{name}", headers=headers)
            first, *others = spans.take(2 if error == "builtins.KeyError" else 3)
            [span] = [it for it in others if it.kind is SpanKind.SERVER]
            assert first.name == "inner"
            assert {parent_id(it) for it in (first, *others) if it is not span} == {
                span.context.span_id
            }
            assert span.name == f"{'HTTP' if method == 'SEARCH' else method.upper()} /app/*"
            found = attributes(span)
            assert found["http.request.method"] == (
                "_OTHER" if method == "SEARCH" else method.upper()
            )
            assert (found["http.route"], found["url.path"]) == ("/app/*", f"/app/{name}")
            assert found["client.address"] == "127.0.0.1" and found["server.port"] == server.port
            assert found.get("error.type") == error
            assert (span.status.status_code is StatusCode.ERROR) == (error is not None)
            if parent:
                assert span.context.trace_id == TRACE_ID
            else:
                assert span.parent is None
            if name != "raises":
                assert found["http.response.status_code"] == int(name)
                assert reply.text == (parent or "")
    [record] = [it for it in caplog.records if it.levelname in ("WARNING", "ERROR")]
    assert record.exc_text is None or "_tracing" not in record.exc_text
    assert "KeyError" in caplog.text and "_tracing" not in caplog.text


def test_a_span_ends_with_the_response(
    engine: str, spans: Spans, caplog: pytest.LogCaptureFixture
) -> None:
    """The application may go on, as for background tasks."""
    ends = asyncio.Event()
    loops = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "http"
        loops.append(asyncio.get_running_loop())
        await send({"type": "http.response.start", "status": 200})
        await send({"type": "http.response.body"})
        await ends.wait()
        raise RuntimeError("after the response")

    with mounted(engine, app, trace=True) as server:
        assert httpx.get(f"http://127.0.0.1:{server.port}").status_code == 200
        [span] = spans.take(1)
        loops[0].call_soon_threadsafe(ends.set)
        assert eventually(lambda: "after the response" in caplog.text)
    assert span.status.status_code is StatusCode.UNSET


def test_the_websocket_of_a_mounted_application(engine: str, spans: Spans) -> None:
    with mounted(engine, application, trace=True) as server:
        url = f"ws://127.0.0.1:{server.port}/socket"
        with connect(url, additional_headers={"traceparent": PARENT}) as socket:
            socket.send("text")
            assert [span.name for span in spans.take(1)] == ["inner"]
        [span] = spans.take(1)
    assert span.name == "GET /*" and span.context.trace_id == TRACE_ID
    assert attributes(span)["http.response.status_code"] == 101
    assert span.status.status_code is StatusCode.UNSET


def test_a_mounted_application_is_not_wrapped_without_traces(engine: str) -> None:
    """Nor is anything of OpenTelemetry imported."""
    program = f"""
import sys, ucall.{engine}
async def app(scope, receive, send): ...
server = ucall.{engine}.Server(port=0)
server.mount("/", app)
print([it for it in sys.modules if "opentelemetry" in it or "_tracing" in it])
"""
    command = [sys.executable, "-c", program]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def test_the_caller_may_name_one_span(engine: str, spans: Spans) -> None:
    """Several lines of `tracestate` are one (W3C Trace Context)."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200})
        await send({"type": "http.response.body"})

    states = [("tracestate", "a=1"), ("tracestate", "b=2")]
    with mounted(engine, app, trace=True) as server:
        url = f"http://127.0.0.1:{server.port}"
        httpx.get(url, headers=[("traceparent", PARENT), *states])
        [span] = spans.take(1)
        assert span.context.trace_id == TRACE_ID
        assert span.context.trace_state.to_header() == "a=1,b=2"
        httpx.get(url, headers=[("traceparent", PARENT), ("traceparent", PARENT), *states])
        [span] = spans.take(1)
        assert span.parent is None
