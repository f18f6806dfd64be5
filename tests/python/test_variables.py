"""Context variables: values that one call sets are not visible to calls of other clients."""

from __future__ import annotations

import contextvars
import functools
import inspect
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from serving import run_on_thread

import ucall
from harness import Wire, http, request

Serve = Callable[..., ucall.Server]

user: contextvars.ContextVar[str | None] = contextvars.ContextVar("user", default=None)


def plain(value: str | None) -> str | None:
    before = user.get()
    user.set(value)
    return before


def with_context(value: str | None, context: ucall.Context) -> str | None:
    return plain(value)


def in_thread(value: str | None) -> str | None:
    return plain(value)


async def coroutine(value: str | None) -> str | None:
    return plain(value)


def batch(values: list[str | None]) -> list[str | None]:
    return [plain(value) for value in values]


def batch_in_thread(values: list[str | None]) -> list[str | None]:
    return batch(values)


async def batch_coroutine(values: list[str | None]) -> list[str | None]:
    return batch(values)


ISOLATED = ["with_context", "in_thread", "coroutine", "batch", "batch_in_thread", "batch_coroutine"]


def serve_all(serve: Serve, **options: Any) -> ucall.Server:
    server = serve(plain, with_context, coroutine, max_threads=1, **options)
    server.add(in_thread, threads=True)
    server.batch(batch)
    server.batch(threads=True)(batch_in_thread)
    server.batch(batch_coroutine)
    return server


def test_no_call_starts_with_the_variables_of_another(hosted: Serve) -> None:
    server = serve_all(hosted)
    with Wire(server.port) as alice, Wire(server.port) as bob:
        for first in [*ISOLATED, "plain"]:
            for second in ISOLATED:
                alice.result(first, ["alice"])
                assert bob.result(second, ["bob"]) is None, (first, second)


def test_plain_functions_share_variables_only_with_each_other(serve: Serve) -> None:
    server = serve_all(serve)
    with Wire(server.port) as alice, Wire(server.port) as bob:
        assert alice.result("plain", ["plain"]) is None
        for name in ISOLATED:
            alice.result(name, ["alice"])
            assert bob.result("plain", ["plain"]) == "plain", name


def test_variables_of_auth_reach_the_calls_of_its_connection_alone(hosted: Serve) -> None:
    def auth(context: ucall.Context) -> str:
        name = context.headers.get("name", "raw")
        user.set(name)
        return name

    def look(context: ucall.Context) -> list[Any]:
        return [context.user, user.get()]

    def look_in_plain_function() -> str | None:
        return user.get()

    server = hosted(look, look_in_plain_function, auth=auth)
    with Wire(server.port) as raw, Wire(server.port) as web:
        for _ in range(2):
            assert raw.result("look") == ["raw", "raw"]
            web.send(http(request("look"), "Name: alice"))
            assert json.loads(web.reply()[2])["result"] == ["alice", "alice"]
            assert raw.result("look_in_plain_function") == "raw"


def test_only_some_callers_have_variables_of_auth(serve: Serve) -> None:
    def auth(context: ucall.Context) -> str:
        if "name" in context.headers:
            user.set(context.headers["name"])
        return "somebody"

    def look(context: ucall.Context) -> str | None:
        return user.get()

    server = serve(look, auth=auth)
    with Wire(server.port) as wire:
        for name in (None, "alice", None, "bob"):
            wire.send(http(request("look"), *([] if name is None else [f"Name: {name}"])))
            assert json.loads(wire.reply()[2])["result"] == name


def test_variables_of_auth_reach_neither_batches_nor_public_routes(serve: Serve) -> None:
    def auth(context: ucall.Context) -> str:
        user.set(context.headers.get("name"))
        return "somebody"

    def look_together(values: list[int]) -> list[str | None]:
        return [user.get() for _ in values]

    async def look_later(values: list[int]) -> list[str | None]:
        return [user.get() for _ in values]

    def look_in_slots(slots: ucall.Slots[Number]) -> Iterator[ucall.SlotItems[str | None]]:
        while True:
            found = [(slot, user.get()) for slot in slots.active]
            yield [*found, *((slot, ucall.END) for slot in slots.active)]

    server = serve(auth=auth)
    server.batch(look_together)
    server.batch(look_later)
    server.batch(look_in_slots, slots=2)

    @server.http("/public", auth=False)
    async def look_at_page(request: ucall.HttpRequest) -> str:
        return str((request.user, user.get()))

    server.add(lambda: user.get(), "look")
    with Wire(server.port) as wire:
        for name in ("look_together", "look_later", "look_in_slots"):
            wire.send(http(request("look"), "Name: alice"))
            assert json.loads(wire.reply()[2])["result"] == "alice"
            wire.send(http(request(name, [1]), "Name: bob"))
            assert json.loads(wire.reply()[2])["result"] in (None, [None]), name
        wire.send(http(request("look"), "Name: alice"))
        assert json.loads(wire.reply()[2])["result"] == "alice"
        wire.send(b"GET /public HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert wire.reply()[2] == b"(None, None)"


def test_auth_may_set_a_variable_to_an_equal_object(serve: Serve) -> None:
    notes: contextvars.ContextVar[list[str]] = contextvars.ContextVar("notes")
    notes.set([])

    def auth(context: ucall.Context) -> str:
        notes.set([])
        return "somebody"

    def note(text: str) -> list[str]:
        notes.get().append(text)
        return notes.get()

    server = serve(note, auth=auth)
    with Wire(server.port) as wire:
        for text in ("a", "b"):
            wire.send(http(request("note", [text])))
            assert json.loads(wire.reply()[2])["result"] == [text]


class Number(NamedTuple):
    number: int


class Name:
    pass


def test_reading_params_of_an_async_function_sets_variables_of_its_call(hosted: Serve) -> None:
    def decode(text: str) -> Name:
        user.set(text)
        return Name()

    async def named(name: Name) -> str | None:
        return user.get()

    server = hosted(plain)
    server.register_type(Name, repr, decode)
    server.add(named)
    with Wire(server.port) as wire:
        assert wire.result("plain", [None]) is None
        assert wire.result("named", ["alice"]) == "alice"
        assert wire.result("plain", [None]) is None


@pytest.mark.skipif(sys.version_info < (3, 12), reason="markcoroutinefunction is new in 3.12")
def test_a_wrapper_sets_variables_of_its_call(hosted: Serve) -> None:
    async def inner(value: str) -> str | None:
        return user.get()

    @functools.wraps(inner)
    def wrapper(value: str) -> Any:
        user.set(value)
        return inner(value)

    inspect.markcoroutinefunction(wrapper)  # type: ignore[attr-defined]
    server = hosted(wrapper, plain)
    with Wire(server.port) as wire:
        assert wire.result("plain", [None]) is None
        assert wire.result("inner", ["alice"]) == "alice"
        assert wire.result("plain", [None]) is None


def test_calls_start_with_the_variables_of_the_program() -> None:
    server = ucall.Server(port=0)
    server.add(coroutine)
    server.add(with_context)

    def run() -> None:
        user.set("program")
        server.run()

    thread = run_on_thread(server, run)
    with Wire(server.port) as wire:
        for name in ("coroutine", "with_context"):
            assert [wire.result(name, ["alice"]) for _ in range(2)] == ["program"] * 2
    server.stop()
    thread.join()


def test_calls_start_with_the_variables_of_a_plain_hook() -> None:
    server = ucall.Server(port=0)
    server.add(with_context)
    server.on_startup(lambda: user.set("hook"))
    with server, Wire(server.port) as wire:
        assert [wire.result("with_context", ["alice"]) for _ in range(2)] == ["hook"] * 2
