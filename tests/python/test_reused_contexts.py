"""`ucall.Context` and `ucall.Call` of a call in the memory of an earlier one."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import pytest
from hooking import NewServer, new_server, plain
from serving import Serve

import ucall
from harness import Wire, eventually, http, request

__all__ = ["new_server"]


@pytest.mark.parametrize("hooks", [1, 3])
def test_objects_that_a_hook_keeps_stay_those_of_their_call(
    new_server: NewServer, hooks: int
) -> None:
    server, kept = new_server(), []

    @server.middleware
    def keep(ctx: ucall.Context, call: ucall.Call) -> Any:
        result = call()
        if call.params != [0]:
            kept.append((ctx, call))
        return result

    for _ in range(hooks - 1):
        server.middleware(plain)
    server.add(lambda value: value, "f")
    server.start()
    with Wire(server.port) as wire:
        for value in (0, 1, 0, 2, 0, 0):
            headers = [f"X-Value: {value}"]
            wire.send(http(request("f", [value], id=value), *headers))
            assert wire.reply()[0] == 200
    assert [(ctx.id, ctx.headers["x-value"], call.params) for ctx, call in kept] == [
        (1, "1", [1]),
        (2, "2", [2]),
    ]
    for _, call in kept:
        with pytest.raises(RuntimeError, match="f: a hook calls the function once"):
            call()


def test_a_context_that_a_function_keeps_stays_that_of_its_call(serve: Serve) -> None:
    kept: list[ucall.Context] = []

    def f(ctx: ucall.Context, keeps: bool) -> None:
        if keeps:
            kept.append(ctx)

    server = serve(f)
    with Wire(server.port) as wire:
        for id, keeps in enumerate((False, True, False, True, False)):
            wire.send(http(request("f", {"keeps": keeps}, id=id), f"X-Id: {id}"))
            assert wire.reply()[0] == 200
    assert [(ctx.id, ctx.headers["x-id"], ctx.method) for ctx in kept] == [
        (1, "1", "f"),
        (3, "3", "f"),
    ]


@pytest.mark.parametrize("method", ["f", "\\u0066"])
def test_texts_of_a_request_are_read_while_it_runs(serve: Serve, method: str) -> None:
    found: list[Any] = []

    def look(ctx: ucall.Context) -> None:
        found.append((ctx.method, ctx.id, ctx.headers["x-id"], ctx.traceparent))

    def f(ctx: ucall.Context) -> None:
        look(ctx)
        thread = threading.Thread(target=look, args=[ctx])
        thread.start()
        thread.join()

    server = serve(f)
    with Wire(server.port) as wire:
        for id in ("one", "second"):
            meta = b'"_meta":{"traceparent":"00-%s"}' % id.encode()
            call = b'{"jsonrpc":"2.0","method":"%s","id":"%s",%s}'
            wire.send(http(call % (method.encode(), id.encode(), meta), f"X-Id: {id}"))
            assert wire.reply()[0] == 200
    expected = [("f", id, id, f"00-{id}") for id in ("one", "second")]
    assert found == [text for text in expected for _ in range(2)]


def test_a_context_that_is_kept_keeps_the_session(serve: Serve) -> None:
    kept: list[ucall.Context] = []

    def begin(ctx: ucall.Context) -> None:
        ctx.connection.data["name"] = "ada"

    def keep(ctx: ucall.Context) -> None:
        kept.append(ctx)

    server = serve(begin, keep)
    with Wire(server.port) as wire:
        wire.result("begin")
        wire.result("keep")
    assert eventually(lambda: server.stats()["connections"] == 0)
    assert kept[0].connection.data == {"name": "ada"}


def test_calls_of_one_server_have_nothing_of_another(new_server: NewServer) -> None:
    """A call has members that the next one lacks."""
    server, found = new_server(), []

    @server.middleware
    def note(ctx: ucall.Context, call: ucall.Call) -> Any:
        found.append((ctx.id, ctx.headers.get("x-a"), ctx.traceparent, ctx.time_left, call.params))
        return call()

    server.add(lambda *values: None, "f", timeout_ms=None)
    server.start()
    with Wire(server.port) as wire:
        wire.send(http(request("f", [1]), "X-A: 1", "traceparent: 00-1", "Ucall-Timeout-Ms: 9000"))
        assert wire.reply()[0] == 200
        wire.send(http(request("f", id=...)))
        assert wire.reply()[0] == 204
    [first, second] = found
    assert first[:3] == (1, "1", "00-1") and first[3] > 0 and first[4] == [1]
    assert second == (None, None, None, None, None)


class User:
    """A caller of which there is an object for each request."""


def test_memory_that_waits_for_a_call_refers_to_no_caller(new_server: NewServer) -> None:
    users: list[weakref.ref[User]] = []

    def auth(ctx: ucall.Context) -> User:
        user = User()
        users.append(weakref.ref(user))
        return user

    hooked = ucall.Group(middleware=[plain])
    hooked.add(lambda: None, "f")
    server = new_server(auth=auth)
    server.include(hooked)
    server.add(lambda: None, "other")
    server.start()
    with Wire(server.port) as wire:
        for method in ("f", "other"):  # The server knows the last caller until the next one.
            wire.send(http(request(method)))
            assert wire.reply()[0] == 200
        gc.collect()
        assert len(users) == 2 and users[0]() is None


def test_a_call_takes_no_arguments(new_server: NewServer) -> None:
    server, problems = new_server(), []

    @server.middleware
    def wrong(ctx: ucall.Context, call: Any) -> Any:
        for arguments, named in (((1,), {}), ((), {"a": 1})):
            try:
                call(*arguments, **named)
            except TypeError as error:
                problems.append(str(error))
        return call(*(), **{})

    server.add(lambda: "ran", "f")
    server.start()
    with Wire(server.port) as wire:
        assert wire.result("f") == "ran"
    assert len(problems) == 2
