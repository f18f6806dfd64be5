"""Errors of exceptions: `Server.on_exception`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from hooking import NewServer, new_server

import ucall
from harness import Wire

__all__ = ["new_server"]


class NoItem(KeyError):
    pass


def missing(error: KeyError) -> ucall.RPCError:
    return ucall.RPCError(404, f"there is no {error.args[0]}")


def fail(name: str) -> Any:
    raise NoItem(name) if name == "item" else KeyError(name)


async def fail_later(name: str) -> Any:
    await asyncio.sleep(0)
    fail(name)


def items(name: str) -> Iterator[int]:
    yield 1
    fail(name)


async def items_later(name: str) -> AsyncIterator[int]:
    yield 1
    fail(name)


def batch(names: list[str]) -> list[Any]:
    return [KeyError(name) for name in names]


def failing_batch(names: list[str]) -> list[Any]:
    raise KeyError(names[0])


async def in_group(name: str) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(fail_later(name))


@pytest.mark.parametrize("function", [fail, fail_later, items, items_later, in_group])
@pytest.mark.parametrize("threads", [False, True])
def test_exceptions_of_all_functions_are_mapped(
    new_server: NewServer,
    caplog: pytest.LogCaptureFixture,
    function: Callable[..., Any],
    threads: bool,
) -> None:
    if threads and function in (fail_later, items_later, in_group):
        pytest.skip("an async function runs in no thread")
    server = new_server()
    server.on_exception(KeyError)(missing)
    server.add(function, "f", threads=threads or None)
    server.start()
    with caplog.at_level(logging.ERROR, "ucall"), Wire(server.port) as wire:
        assert wire.error("f", ["x"]) == {"code": 404, "message": "there is no x"}
    assert caplog.text == ""


@pytest.mark.parametrize("function", [batch, failing_batch])
@pytest.mark.parametrize("options", [{}, {"threads": True}, {"processes": 1}])
def test_exceptions_of_batches_are_mapped(
    new_server: NewServer, function: Callable[..., Any], options: dict[str, Any]
) -> None:
    server = new_server()
    server.on_exception(KeyError)(missing)
    server.batch(function, name="f", **options)
    server.start()
    with Wire(server.port) as wire:
        assert wire.error("f", ["x"]) == {"code": 404, "message": "there is no x"}


def test_exceptions_of_processes_and_hooks_are_mapped(new_server: NewServer) -> None:
    server = new_server()
    server.on_exception(KeyError)(missing)

    @server.middleware
    async def hook(ctx: ucall.Context, call: ucall.Call) -> Any:
        if call.params == ["of the hook"]:
            raise KeyError("hook")
        return await call()

    server.add(fail, "f", processes=1)
    server.start()
    with Wire(server.port) as wire:
        assert wire.error("f", ["x"])["message"] == "there is no x"
        assert wire.error("f", ["of the hook"])["message"] == "there is no hook"


def test_the_most_specific_class_wins(new_server: NewServer) -> None:
    server = new_server()
    server.on_exception(Exception)(lambda error: ucall.RPCError(1, "any"))
    server.on_exception(NoItem)(lambda error: ucall.RPCError(2, "no item"))
    server.on_exception(LookupError)(lambda error: ucall.RPCError(3, "lookup"))
    server.add(fail)
    server.add(lambda: 1 / 0, "divide")
    server.start()
    with Wire(server.port) as wire:
        assert wire.error("fail", ["item"])["code"] == 2
        assert wire.error("fail", ["other"])["code"] == 3
        assert wire.error("divide")["code"] == 1


def test_a_handler_may_raise_the_error(new_server: NewServer) -> None:
    server = new_server()

    @server.on_exception(KeyError)
    def handler(error: KeyError) -> ucall.RPCError:
        raise ucall.RPCError(404, "none", {"key": error.args[0]})

    server.add(fail)
    server.start()
    with Wire(server.port) as wire:
        assert wire.error("fail", ["x"]) == {"code": 404, "message": "none", "data": {"key": "x"}}


def test_other_exceptions_and_errors_for_the_caller_stay(
    new_server: NewServer, caplog: pytest.LogCaptureFixture
) -> None:
    server = new_server()
    server.on_exception(KeyError)(missing)

    def f(code: int) -> None:
        raise ucall.RPCError(code, "own") if code else ValueError("unmapped")

    server.add(f)
    server.start()
    with caplog.at_level(logging.ERROR, "ucall"), Wire(server.port) as wire:
        assert wire.error("f", [7]) == {"code": 7, "message": "own"}
        assert wire.error("f", [0])["code"] == -32603
        assert wire.error("f", ["a"])["code"] == -32602
    assert "ValueError: unmapped" in caplog.text


def _other(error: KeyError) -> Any:
    raise ValueError("in the handler")


def _again(error: KeyError) -> Any:
    raise error


@pytest.mark.parametrize(
    ("handler", "logged"),
    [
        (_other, ["KeyError: 'x'", "ValueError: in the handler"]),
        (_again, ["KeyError: 'x'"]),
        (lambda error: "no error", ["KeyError: 'x'", "got str"]),
    ],
)
def test_a_handler_that_fails_is_logged_with_what_it_was_for(
    new_server: NewServer,
    caplog: pytest.LogCaptureFixture,
    handler: Callable[..., Any],
    logged: list[str],
) -> None:
    server = new_server()
    server.on_exception(KeyError)(handler)
    server.add(fail)
    server.start()
    with caplog.at_level(logging.ERROR, "ucall"), Wire(server.port) as wire:
        assert wire.error("fail", ["x"]) == {"code": -32603, "message": "Internal error"}
        assert wire.error("fail", ["x"])["code"] == -32603
    for line in logged:
        assert caplog.text.count(line) == 2, caplog.text


@pytest.mark.parametrize(
    ("kind", "handler", "problem"),
    [
        (KeyError("a"), missing, "expected a class of exceptions"),
        (int, missing, "expected a class of exceptions"),
        (BaseException, missing, "expected a class of exceptions"),
        (ucall.NoChannelError, missing, "callers get as it is"),
        (KeyError, fail_later, "expected a plain function"),
        (KeyError, 5, "expected a plain function"),
    ],
)
def test_what_is_no_handler_is_refused(
    new_server: NewServer, kind: Any, handler: Any, problem: str
) -> None:
    with pytest.raises(TypeError, match=problem):
        new_server().on_exception(kind)(handler)
