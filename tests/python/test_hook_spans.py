"""Spans of calls with hooks: each covers the hooks and the function."""

from __future__ import annotations

from typing import Any

import pytest
from hooking import NewServer, awaiting, new_server, plain
from test_traces import (
    PARENT,
    TRACE_ID,
    Spans,
    async_generator,
    generator,
    inner,
    parent_id,
    spans,
    task,
)
from test_traces import plain as function

import ucall
from harness import Wire

__all__ = ["new_server", "spans"]


def in_process(a: int) -> int:
    return function(a)


@pytest.mark.parametrize("hook", [plain, awaiting])
@pytest.mark.parametrize("kind", ["plain", "threads", "task", "generator", "async generator"])
def test_a_span_covers_the_hooks_and_the_function(
    new_server: NewServer, spans: Spans, hook: Any, kind: str
) -> None:
    if hook is plain and kind in ("task", "async generator"):
        pytest.skip("a plain hook is around no async function")
    server = new_server(observability=ucall.Observability(trace=True))

    def within(ctx: ucall.Context, call: ucall.Call) -> Any:
        with inner():
            return call()

    async def within_later(ctx: ucall.Context, call: ucall.Call) -> Any:
        with inner():
            return await call()

    server.middleware(within_later if hook is awaiting else within)
    functions: Any = {"task": task, "generator": generator, "async generator": async_generator}
    server.add(functions.get(kind, function), "f", threads=kind == "threads" or None)
    server.start()
    with Wire(server.port) as wire:
        call = b'{"jsonrpc":"2.0","method":"f","params":[1],"id":1,"_meta":{"traceparent":"%s"}}\n'
        wire.send(call % PARENT.encode())
        assert "result" in wire.message()
    found = spans.take(3)
    [own] = [span for span in found if span.name == "f"]
    assert {span.context.trace_id for span in found} == {TRACE_ID}
    known = {span.context.span_id for span in found}
    assert all(parent_id(span) in known for span in found if span is not own)
    assert own.end_time == max(span.end_time or 0 for span in found)


def test_a_trace_goes_on_in_a_process_within_hooks(new_server: NewServer, spans: Spans) -> None:
    server = new_server(observability=ucall.Observability(trace=True))
    server.middleware(awaiting)
    server.add(in_process, "f", processes=1)
    server.start()
    with Wire(server.port) as wire:
        assert wire.result("f", [4]) == 4
    assert [span.name for span in spans.take(1)] == ["f"]


def test_the_span_of_a_call_that_a_hook_refuses_has_its_error(
    new_server: NewServer, spans: Spans
) -> None:
    server = new_server(observability=ucall.Observability(trace=True))

    @server.middleware
    def refuse(ctx: ucall.Context, call: ucall.Call) -> Any:
        raise ucall.RPCError(7, "no")

    server.add(function, "f")
    server.start()
    with Wire(server.port) as wire:
        assert wire.error("f", [4])["code"] == 7
        assert wire.error("no.such")["code"] == 7
    names = {span.name: span.attributes for span in spans.take(2)}
    assert {name: dict(it or {})["error.type"] for name, it in names.items()} == {
        "f": "7",
        "no.such": "7",
    }


@pytest.mark.parametrize("is_async", [False, True])
def test_the_span_of_an_exception_has_the_error_that_a_handler_makes(
    new_server: NewServer, spans: Spans, is_async: bool
) -> None:
    server = new_server(observability=ucall.Observability(trace=True))

    @server.on_exception(LookupError)
    def handler(error: LookupError) -> ucall.RPCError:
        if isinstance(error, IndexError):
            raise ValueError("in the handler")
        return ucall.RPCError(404, "none")

    def fail(is_index: bool) -> None:
        raise IndexError if is_index else KeyError

    async def fail_later(is_index: bool) -> None:
        fail(is_index)

    server.add(fail_later if is_async else fail, "f")
    server.start()
    with Wire(server.port) as wire:
        assert wire.error("f", [False])["code"] == 404
        assert wire.error("f", [True])["code"] == -32603
    found = [dict(span.attributes or {})["error.type"] for span in spans.take(2)]
    assert found == ["404", "-32603"]
