"""`ucall.Context`: the data of a call."""

from __future__ import annotations

import contextvars
import json
import time
from collections.abc import Callable
from typing import Any

import pytest

import ucall
from harness import HOST, Wire, http, request

Serve = Callable[..., ucall.Server]
KINDS = ["plain", "async", "threads"]


def _serve(serve: Serve, kind: str, **options: Any) -> ucall.Server:
    def plain(a: int, ctx: ucall.Context, b: int = 2, *, c: int = 3) -> Any:
        return _told(ctx, [a, b, c])

    async def coroutine(a: int, ctx: ucall.Context, b: int = 2, *, c: int = 3) -> Any:
        return _told(ctx, [a, b, c])

    server = serve(**options)
    if kind == "async":
        server.add(coroutine, name="call")
    else:
        server.add(plain, name="call", threads=kind == "threads")
    return server


def _told(ctx: ucall.Context, params: list[int]) -> Any:
    before_s = time.monotonic()
    left_s = ctx.time_left
    after_s = time.monotonic()
    assert (ctx.deadline is None) == (left_s is None)
    if ctx.deadline is not None:
        assert before_s - 0.1 < ctx.deadline - (left_s or 0) < after_s + 0.1
    return {
        "method": ctx.method,
        "id": ctx.id,
        "peer": ctx.peer,
        "headers": ctx.headers,
        "left_s": left_s,
        "cancelled": ctx.cancelled,
        "params": params,
    }


@pytest.mark.parametrize("kind", KINDS)
def test_over_raw_tcp(serve: Serve, kind: str) -> None:
    with Wire(_serve(serve, kind).port) as wire:
        told = wire.result("call", [7])
        peer = told.pop("peer")
        assert peer is None or tuple(peer) == wire.socket.getsockname()
        assert told == {
            "method": "call",
            "id": 1,
            "headers": {},
            "left_s": None,
            "cancelled": False,
            "params": [7, 2, 3],
        }


@pytest.mark.parametrize("kind", KINDS)
def test_over_http(serve: Serve, kind: str) -> None:
    with Wire(_serve(serve, kind).port) as wire:
        headers = ["X-Trace: abc", "Ucall-Timeout-Ms: 5000"]
        wire.send(http(request("call", [7], id="an id"), *headers))
        status, _, body = wire.reply()
        assert status == 200
        told = json.loads(body)["result"]
        assert told["id"] == "an id"
        assert told["headers"]["x-trace"] == "abc"
        assert told["headers"]["host"] == HOST
        assert 0 < told["left_s"] <= 5


@pytest.mark.parametrize("kind", KINDS)
def test_a_context_is_not_a_param(serve: Serve, kind: str) -> None:
    with Wire(_serve(serve, kind).port) as wire:
        assert wire.result("call", [7, 8])["params"] == [7, 8, 3]
        assert wire.result("call", {"a": 1, "b": 5, "c": 6})["params"] == [1, 5, 6]
        assert wire.error("call", [7, 8, 9])["data"].endswith("expected at most 2 params")
        refused = wire.error("call", {"a": 1, "ctx": 2})
        assert refused["data"] == "params.ctx: unexpected, expected a, b, c"
        assert wire.error("call", [])["data"].startswith("params.a: missing")


def test_repeated_headers_are_joined(serve: Serve) -> None:
    def headers(ctx: ucall.Context) -> dict[str, str]:
        return ctx.headers

    with Wire(serve(headers).port) as wire:
        wire.send(http(request("headers"), "A: 1", "a: 2"))
        assert b'"a":"1, 2"' in wire.reply()[2]


@pytest.mark.parametrize("kind", KINDS)
def test_context_variables_belong_to_the_call(serve: Serve, kind: str) -> None:
    variable = contextvars.ContextVar("variable", default="nothing")

    def plain(ctx: ucall.Context) -> str:
        before = variable.get()
        variable.set(str(ctx.id))
        return before

    async def coroutine(ctx: ucall.Context) -> str:
        return plain(ctx)

    server = serve()
    if kind == "async":
        server.add(coroutine, name="call")
    else:
        server.add(plain, name="call", threads=kind == "threads")
    with Wire(server.port) as wire:
        assert [wire.result("call") for _ in range(3)] == ["nothing"] * 3


def test_a_context_outlives_its_call(serve: Serve) -> None:
    kept: list[ucall.Context] = []

    def keep(ctx: ucall.Context) -> None:
        kept.append(ctx)

    with Wire(serve(keep).port) as wire:
        wire.result("keep")
    assert kept[0].method == "keep" and "keep" in repr(kept[0])
