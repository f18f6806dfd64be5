"""Hooks around calls: `Server.middleware`."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from types import SimpleNamespace
from typing import Any

import pytest
from functions import sum
from hooking import (
    KINDS,
    VARIABLE,
    Hook,
    NewServer,
    add,
    awaiting,
    batch,
    items,
    new_server,
    plain,
    told,
    told_later,
)
from test_metrics import calls, samples

import ucall
from harness import Wire, http, request

__all__ = ["new_server"]


def test_a_hook_sees_the_call_and_its_result(new_server: NewServer) -> None:
    server, seen = new_server(), []

    @server.middleware
    def note(ctx: ucall.Context, call: ucall.Call) -> Any:
        result = call()
        seen.append((ctx.method, ctx.id, call.method, call.params, result))
        return {"result": result}

    server.add(sum)
    server.start()
    with Wire(server.port) as wire:
        assert wire.result("sum", [2, 3]) == {"result": 5}
        assert wire.result("sum", {"b": 3, "a": 2}) == {"result": 5}
    assert seen == [
        ("sum", 1, "sum", [2, 3], 5),
        ("sum", 1, "sum", {"b": 3, "a": 2}, 5),
    ]


def test_params_are_none_without_any(new_server: NewServer) -> None:
    server = new_server()
    server.middleware(lambda ctx, call: [call.params, call()])
    server.add(lambda: "nothing", "f")
    server.start()
    with Wire(server.port) as wire:
        assert wire.result("f") == [None, "nothing"]
        assert wire.result("f", {}) == [{}, "nothing"]
        assert wire.result("f", []) == [[], "nothing"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("hook", [plain, awaiting])
def test_hooks_are_around_functions_of_all_kinds(
    new_server: NewServer, kind: str, hook: Hook
) -> None:
    server = new_server()
    if hook is plain and "async" in kind:
        add(server, kind)
        with pytest.raises(TypeError, match="it is async, and the hook plain around it"):
            server.middleware(hook)
        return
    server.middleware(hook)
    add(server, kind)
    server.start()
    thread = "ucall" if "thread" in kind else None
    with Wire(server.port) as wire:
        got = wire.result("f", [2])
        for value in got if "generator" in kind else [got]:
            assert value[1] == "none"
            assert thread is None or value[2] == thread
        if "generator" in kind:
            assert [value[0] for value in got] == [0, 1]
        else:
            assert got[0] == 2


@pytest.mark.parametrize("kind", KINDS)
def test_functions_see_the_variables_of_hooks(new_server: NewServer, kind: str) -> None:
    server = new_server()

    def set_variable(ctx: ucall.Context, call: ucall.Call) -> Any:
        VARIABLE.set(f"of {ctx.id}")
        return call()

    async def set_variable_later(ctx: ucall.Context, call: ucall.Call) -> Any:
        VARIABLE.set(f"of {ctx.id}")
        return await call()

    server.middleware(set_variable_later if "async" in kind else set_variable)
    if "thread" in kind:
        server.middleware(plain)
    server.add(told)
    add(server, kind)
    server.start()
    with Wire(server.port) as wire:
        for id in (7, 8):
            wire.send(request("f", [1], id=id))
            got = json.loads(wire.line())["result"]
            assert (got[0] if "generator" in kind else got)[1] == f"of {id}"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("has_hook", [False, True])
def test_functions_see_the_variables_of_auth(
    new_server: NewServer, kind: str, has_hook: bool
) -> None:
    def auth(ctx: ucall.Context) -> str:
        user = ctx.headers["authorization"]
        VARIABLE.set(user)
        return user

    server = new_server(auth=auth)
    if has_hook:
        server.middleware(awaiting)
    add(server, kind)
    server.start()
    with Wire(server.port) as wire:
        for user in ("ann", "bob"):
            wire.send(http(request("f", [1]), f"Authorization: {user}"))
            got = json.loads(wire.reply()[2])["result"]
            assert (got[0] if "generator" in kind else got)[1] == user
    assert VARIABLE.get() == "none"


def test_auth_without_variables_of_its_own_leaves_those_of_the_server(
    new_server: NewServer,
) -> None:
    server = new_server(auth=lambda ctx: "user")
    server.add(told, "f")
    server.start()
    with Wire(server.port) as wire:
        wire.send(http(request("f", [1])))
        assert json.loads(wire.reply()[2])["result"][1] == "none"


def test_the_first_hook_is_outermost_and_all_are_around_earlier_functions(
    new_server: NewServer,
) -> None:
    server = new_server()
    server.add(sum, "before")

    def named(name: str) -> Hook:
        return lambda ctx, call: [name, call()]

    server.middleware(named("first"))
    server.middleware(named("second"))
    server._functions.add(
        sum, "own", stream=_no_stream(), middleware=[named("third"), named("fourth")]
    )
    server.middleware(named("last of the server"))
    server.start()
    with Wire(server.port) as wire:
        of_server = lambda it: ["first", ["second", ["last of the server", it]]]  # noqa: E731
        assert wire.result("before", [2, 3]) == of_server(5)
        assert wire.result("own", [2, 3]) == of_server(["third", ["fourth", 5]])


def _no_stream() -> Any:
    from ucall._functions.registration import StreamRules

    return StreamRules()


def test_a_hook_that_does_not_call_answers(new_server: NewServer) -> None:
    server, calls = new_server(), []
    server.middleware(lambda ctx, call: "from the cache")
    server.add(calls.append, "f")
    server.start()
    with Wire(server.port) as wire:
        assert wire.result("f", [1]) == "from the cache"
    assert calls == []


def test_a_hook_that_does_not_call_answers_a_stream(new_server: NewServer) -> None:
    server = new_server()
    server.middleware(lambda ctx, call: ["a", "b"])
    server.add(items)
    server.start()
    with Wire(server.port) as wire:
        assert wire.result("items", [5]) == ["a", "b"]


@pytest.mark.parametrize("hook", [plain, awaiting])
@pytest.mark.parametrize(
    "params", [[1], ["a", 2], {"a": 1, "c": 2}, [1, 2, 3], {"a": 1, "b": "2"}, None]
)
def test_wrong_params_are_refused_as_without_hooks(
    new_server: NewServer, hook: Hook, params: Any
) -> None:
    server, bare, seen = new_server(), new_server(), []

    @server.middleware
    def note(ctx: ucall.Context, call: ucall.Call) -> Any:
        try:
            return call()
        except ucall.RPCError as error:
            seen.append((error.code, error.message, error.data))
            raise

    if hook is awaiting:
        server = new_server()

        @server.middleware
        async def note_later(ctx: ucall.Context, call: ucall.Call) -> Any:
            try:
                return await call()
            except ucall.RPCError as error:
                seen.append((error.code, error.message, error.data))
                raise

    for one in (server, bare):
        one.add(sum)
        one.start()
    with Wire(server.port) as wire, Wire(bare.port) as other:
        error = wire.error("sum", params)
        assert error == other.error("sum", params)
        assert seen == [(-32602, "Invalid params", error["data"])]


@pytest.mark.parametrize("hook", [plain, awaiting])
def test_scopes_are_checked_within_the_hooks(new_server: NewServer, hook: Hook) -> None:
    def auth(ctx: ucall.Context) -> Any:
        return SimpleNamespace(scopes={ctx.headers["scope"]})

    bare, server, seen = new_server(auth=auth), new_server(auth=auth), []

    @server.middleware
    async def note(ctx: ucall.Context, call: ucall.Call) -> Any:
        try:
            return await call()
        except ucall.RPCError as error:
            seen.append(error.code)
            raise

    if hook is plain:
        server.middleware(plain)
    for one in (server, bare):
        one.add(sum, scopes=["read"])
        one.add(sum, "in_thread", threads=True, scopes=["read"])
        one.start()
    for method in ("sum", "in_thread"):
        call = request(method, [2, 3])
        with Wire(server.port) as wire, Wire(bare.port) as other:
            wire.send(http(call, "Scope: read"))
            assert json.loads(wire.reply()[2])["result"] == 5
            for one in (wire, other):
                one.send(http(call, "Scope: write"))
            error = json.loads(wire.reply()[2])["error"]
            assert error == json.loads(other.reply()[2])["error"]
            assert error["code"] == -32004
    assert seen == [-32004, -32004]


@pytest.mark.parametrize("hook", [plain, awaiting])
def test_hooks_see_unknown_methods(new_server: NewServer, hook: Hook) -> None:
    server, bare, seen = new_server(), new_server(), []

    @server.middleware
    async def note(ctx: ucall.Context, call: ucall.Call) -> Any:
        if call.method == "made.up":
            return ["made up", call.params]
        try:
            return await call()
        except ucall.RPCError as error:
            seen.append((call.method, error.code))
            raise

    if hook is plain:
        server.middleware(plain)
    server.add(sum)
    server.start()
    bare.start()
    with Wire(server.port) as wire, Wire(bare.port) as other:
        assert wire.error("no.such", [1]) == other.error("no.such", [1])
        assert wire.result("made.up", {"a": 1}) == ["made up", {"a": 1}]
        assert wire.result("sum", [2, 3]) == 5
    assert seen == [("no.such", -32601)]


def test_methods_of_the_protocol_pass_hooks_by(new_server: NewServer) -> None:
    server = new_server()
    server.middleware(lambda ctx, call: "hooked")
    server.start()
    with Wire(server.port) as wire:
        assert wire.result("no.such") == "hooked"
        assert wire.error("$/no.such")["code"] == -32601
        assert wire.error("rpc.no.such")["code"] == -32601
        assert wire.result("rpc.discover")["methods"] == []


@pytest.mark.parametrize("hook", [plain, awaiting])
def test_a_second_call_is_an_error(
    new_server: NewServer, caplog: pytest.LogCaptureFixture, hook: Hook
) -> None:
    server, calls = new_server(), []

    def twice(ctx: ucall.Context, call: ucall.Call) -> Any:
        call()
        return call()

    async def twice_later(ctx: ucall.Context, call: ucall.Call) -> Any:
        await call()
        return await call()

    server.middleware(twice if hook is plain else twice_later)
    server.add(calls.append, "f")
    server.start()
    with caplog.at_level(logging.ERROR, "ucall"), Wire(server.port) as wire:
        assert wire.error("f", [1])["code"] == -32603
    assert "f: a hook calls the function once" in caplog.text
    assert calls == [1]


@pytest.mark.parametrize("hook", [plain, awaiting])
def test_what_a_hook_raises_is_answered(
    new_server: NewServer, caplog: pytest.LogCaptureFixture, hook: Hook
) -> None:
    server = new_server()

    def fail(ctx: ucall.Context, call: ucall.Call) -> Any:
        raise ucall.RPCError(7, "no", [1]) if call.params else ValueError("of the hook")

    async def fail_later(ctx: ucall.Context, call: ucall.Call) -> Any:
        return fail(ctx, call)

    server.middleware(fail if hook is plain else fail_later)
    server.add(told, "f")
    server.start()
    with caplog.at_level(logging.ERROR, "ucall"), Wire(server.port) as wire:
        assert wire.error("f", [1]) == {"code": 7, "message": "no", "data": [1]}
        assert caplog.text == ""
        assert wire.error("f", []) == {"code": -32603, "message": "Internal error"}
    assert "ValueError: of the hook" in caplog.text


@pytest.mark.parametrize("kind", [it for it in KINDS if "generator" not in it])
@pytest.mark.parametrize("hook", [plain, awaiting])
def test_a_hook_gets_what_the_function_raises(new_server: NewServer, kind: str, hook: Hook) -> None:
    if hook is plain and kind == "async":
        pytest.skip("a plain hook is around no async function")

    def fail(key: str) -> Any:
        raise KeyError(key)

    async def fail_later(key: str) -> Any:
        await asyncio.sleep(0)
        raise KeyError(key)

    def caught(ctx: ucall.Context, call: ucall.Call) -> Any:
        try:
            return call()
        except KeyError as error:
            return ["caught", error.args[0]]

    async def caught_later(ctx: ucall.Context, call: ucall.Call) -> Any:
        try:
            return await call()
        except KeyError as error:
            return ["caught", error.args[0]]

    server = new_server()
    server.middleware(caught if hook is plain else caught_later)
    server.add(fail_later if kind == "async" else fail, "f", threads=kind == "threads" or None)
    server.start()
    with Wire(server.port) as wire:
        assert wire.result("f", ["a"]) == ["caught", "a"]


@pytest.mark.parametrize("hook", [plain, awaiting])
def test_a_plain_hook_around_what_has_to_be_awaited_is_refused(
    new_server: NewServer, hook: Hook
) -> None:
    for later in (True, False):
        server = new_server()
        if later:
            server.add(told_later, "f")
        else:
            server.middleware(plain)
        with pytest.raises(
            TypeError, match=r"f: it is async, .* plain .*: write the hook as async"
        ):
            if later:
                server.middleware(plain)
            else:
                server.add(told_later, "f")
    server = new_server()
    server.middleware(plain)
    with pytest.raises(TypeError, match="f: it runs in batches, and the hook plain"):
        server.batch(batch, name="f")
    with pytest.raises(TypeError, match="f: it runs in processes, and the hook plain"):
        server.add(sum, "f", processes=1)


def test_a_plain_hook_around_an_async_one_is_refused(new_server: NewServer) -> None:
    server = new_server()
    server.add(sum)
    server.middleware(plain)
    with pytest.raises(TypeError, match="the hook awaiting is async, and the hook plain around it"):
        server.middleware(awaiting)
    server.start()
    with Wire(server.port) as wire:  # Nothing has changed.
        assert wire.result("sum", [2, 3]) == 5


@pytest.mark.parametrize(
    ("hook", "problem"),
    [
        (5, "expected a function, got int"),
        (lambda ctx: None, "expected a function of two parameters"),
        (lambda ctx, call, more: None, "expected a function of two parameters"),
        (items, "is a generator"),
    ],
)
def test_what_is_no_hook_is_refused(new_server: NewServer, hook: Any, problem: str) -> None:
    server = new_server()
    with pytest.raises(TypeError, match=problem):
        server.middleware(hook)


def test_hooks_are_added_before_the_server_runs(new_server: NewServer) -> None:
    server = new_server()
    server.start()
    with pytest.raises(RuntimeError, match="the server runs already"):
        server.middleware(plain)
    with pytest.raises(RuntimeError, match="the server runs already"):
        server.on_exception(KeyError)(lambda error: ucall.RPCError(1, "no"))


def test_functions_that_are_added_to_a_running_server_have_its_hooks(
    new_server: NewServer,
) -> None:
    server = new_server()
    server.middleware(lambda ctx, call: ["hooked", call()])
    server.start()
    server.add(sum)
    with Wire(server.port) as wire:
        assert wire.result("sum", [2, 3]) == ["hooked", 5]


def test_a_call_of_a_batch_of_calls_and_a_notification_have_hooks(new_server: NewServer) -> None:
    server, seen = new_server(), []

    @server.middleware
    def note(ctx: ucall.Context, call: ucall.Call) -> Any:
        seen.append((call.params, ctx.is_notification))
        return call()

    server.add(sum)
    server.start()
    calls = [request("sum", [1, 2], id=id) for id in (1, 2)] + [request("sum", [3, 4], id=...)]
    with Wire(server.port) as wire:
        wire.send(b"[" + b",".join(calls) + b"]\n")
        replies = json.loads(wire.line())
        assert [reply["result"] for reply in replies] == [3, 3]
    assert seen == [([1, 2], False), ([1, 2], False), ([3, 4], True)]


def test_a_hook_that_blocks_is_named(
    new_server: NewServer, caplog: pytest.LogCaptureFixture
) -> None:
    server = new_server(observability=ucall.Observability(slow_call_s=0.01))

    @server.middleware
    def slow_hook(ctx: ucall.Context, call: ucall.Call) -> Any:
        time.sleep(0.05)
        return call()

    server.add(sum)
    server.start()
    with caplog.at_level(logging.WARNING, "ucall"), Wire(server.port) as wire:
        assert wire.result("sum", [2, 3]) == 5
    assert "slow_hook) held up all other calls" in caplog.text


def test_hooks_are_described_by_nothing_else_than_their_function(new_server: NewServer) -> None:
    server, bare = new_server(), new_server()
    server.middleware(awaiting)
    for one in (server, bare):
        one.add(sum)
        one.add(told, "in_thread", threads=True)
        one.start()
    with Wire(server.port) as wire, Wire(bare.port) as other:
        methods = [it.result("rpc.discover")["methods"] for it in (wire, other)]
        assert methods[0] == methods[1]


def test_tools_have_hooks(new_server: NewServer) -> None:
    server, seen = new_server(mcp=True), []

    @server.middleware
    def note(ctx: ucall.Context, call: ucall.Call) -> Any:
        seen.append(call.params)
        return call()

    server.add(sum)
    server.start()
    params = {"name": "sum", "arguments": {"a": 2, "b": 3}}
    with Wire(server.port) as wire:
        wire.send(request("tools/call", params))
        assert json.loads(wire.line())["result"]["content"][0]["text"] == "5"
    assert seen == [{"a": 2, "b": 3}]


def test_a_context_outlives_its_call_in_a_hook(new_server: NewServer) -> None:
    server, kept = new_server(), []

    @server.middleware
    def keep(ctx: ucall.Context, call: ucall.Call) -> Any:
        kept.append((ctx, call))
        return call()

    server.add(sum)
    server.start()
    with Wire(server.port) as wire:
        assert wire.result("sum", [2, 3]) == 5
        assert wire.result("sum", [4, 5]) == 9
    assert [(ctx.method, call.params) for ctx, call in kept] == [
        ("sum", [2, 3]),
        ("sum", [4, 5]),
    ]


def test_a_call_is_counted_once(new_server: NewServer) -> None:
    server = new_server(observability=ucall.Observability(metrics=True))
    server.middleware(awaiting)
    server.add(sum)
    server.add(told, "in_thread", threads=True)
    server.batch(batch, name="in_batch")
    server.start()
    with Wire(server.port) as wire:
        assert wire.result("sum", [2, 3]) == 5
        assert wire.result("in_thread", [4])[0] == 4
        assert wire.result("in_batch", [5])[0] == 5
        assert wire.error("no.such")["code"] == -32601
        assert wire.error("sum", ["a"])["code"] == -32602
    found = samples(server.port)
    assert [calls(found, it) for it in ("sum", "in_thread", "in_batch")] == [1, 1, 1]
    assert calls(found, "sum", "-32602") == 1
    assert calls(found, "_OTHER", "-32601") == 1
