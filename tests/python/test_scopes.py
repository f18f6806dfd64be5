"""``@server(scopes=[…])``: what the caller's token must allow."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, NamedTuple

import pytest

import ucall
import ucall.auth
from harness import Wire, http, request
from ucall.client import Client

Serve = Callable[..., ucall.Server]


class User(NamedTuple):
    scopes: Any


USERS = {
    "all": User(frozenset({"files:read", "files:write"})),
    "set": User({"files:read", "files:write", "other"}),
    "some": User(frozenset({"files:read"})),
    "none": User(frozenset()),
    # Only a set has scopes as members: text has them as parts.
    "text": User("files:read files:write"),
    "plain": "files:write files:read",
}
ALLOWED = ("all", "set")


def plain(value: int) -> int:
    return value


def with_context(value: int, ctx: ucall.Context) -> int:
    return value


async def task(value: int) -> int:
    return value


def blocking(value: int) -> int:
    return value


def pooled(value: int) -> int:
    return value


def batched(value: list[int]) -> list[int]:
    return value


def items(value: int) -> Iterator[int]:
    yield value


async def later_items(value: int) -> AsyncIterator[int]:
    yield value


def start(serve: Serve, auth: Any) -> tuple[ucall.Server, list[str]]:
    server = serve(auth=auth)
    scopes = ["files:read", "files:write"]
    for function in (plain, with_context, task, items, later_items):
        server.add(function, scopes=scopes)
    server.add(blocking, threads=True, scopes=scopes)
    server.add(pooled, processes=1, scopes=scopes)
    server.batch(batched, scopes=scopes)
    server(scopes=iter(scopes), name="decorated")(plain)
    server.add(plain, "open")
    names = ["plain", "with_context", "task", "items", "later_items", "blocking", "pooled"]
    return server, [*names, "batched", "decorated"]


def outcome(reply: dict[str, Any]) -> Any:
    result = reply.get("result", reply.get("error"))
    return result[0] if isinstance(result, list) else result


def refusal(*missing: str) -> dict[str, Any]:
    data = {"missing_scopes": list(missing)}
    return {"code": -32004, "message": "Insufficient scope", "data": data}


REFUSAL = refusal("files:read", "files:write")


def test_functions_need_their_scopes(serve: Serve) -> None:
    server, names = start(serve, ucall.auth.bearer(USERS))
    expected = dict.fromkeys(USERS, REFUSAL) | {"some": refusal("files:write")}
    with Wire(server.port) as wire:
        for user in USERS:
            # Wrong params are not told apart: who may not call learns nothing of them.
            calls = [request(it, [7]) for it in [*names, "open"]] + [request("plain", ["x"])]
            wire.send(http(b"[" + b",".join(calls) + b"]", f"Authorization: Bearer {user}"))
            *found, opened, wrong = [outcome(it) for it in json.loads(wire.reply()[2])]
            assert opened == 7
            if user in ALLOWED:
                assert found == [7] * len(names) and wrong["code"] == -32602
            else:
                assert found == [expected[user]] * len(names) and wrong == expected[user]


@pytest.mark.parametrize("scheme", ["http", "ws", "tcp"])
def test_scopes_hold_over_all_transports(serve: Serve, scheme: str) -> None:
    users = {"http": "some", "ws": "all", "tcp": "none"}
    server, names = start(serve, lambda ctx: USERS[users[_scheme(ctx)]])
    with Client(f"{scheme}://127.0.0.1:{server.port}") as client:
        for name in names:
            if scheme == "ws":
                assert client.call(name, 7).json in (7, [7])
                continue
            with pytest.raises(ucall.RPCError) as refused:
                client.call(name, 7).json  # noqa: B018
            missing = ["files:write"] if scheme == "http" else ["files:read", "files:write"]
            assert (refused.value.code, refused.value.data) == (-32004, {"missing_scopes": missing})
        # A stream is refused before its first item, and a notification has no reply.
        client.notify("plain", 7)
        assert client.call("open", 8).json == 8


def _scheme(ctx: ucall.Context) -> str:
    return {"websocket": "ws"}.get(ctx.transport, ctx.transport)


def test_a_function_that_is_defined_again_has_its_new_scopes(serve_once: Serve) -> None:
    server = serve_once(auth=lambda ctx: USERS["some"])
    with Wire(server.port) as wire:
        for scopes, allowed in ((["files:write"], False), ([], True), (["files:read"], True)):
            server.add(plain, scopes=scopes)
            reply = wire.error("plain", [7]) if not allowed else wire.result("plain", [7])
            assert reply == (7 if allowed else refusal("files:write"))


def test_refused_calls_are_counted(serve_once: Serve) -> None:
    server = serve_once(auth=lambda ctx: USERS["none"], metrics=True)
    server.add(plain, scopes=["files:read"])
    with Wire(server.port) as wire:
        wire.send(http(request("plain", [1])))
        wire.reply()
        wire.send(http(b"", method="GET", target="/metrics"))
        text = wire.reply()[2].decode()
    lines = [it for it in text.splitlines() if '"plain"' in it and "-32004" in it]
    assert [it.rsplit(" ", 1)[1] for it in lines if "_count" in it] == ["1"], text


def test_scopes_of_a_server_that_knows_no_callers_are_refused() -> None:
    server = ucall.Server(port=0)
    with pytest.raises(ValueError, match="plain: scopes: expected a server with auth"):
        server.add(plain, scopes=["a"])
    guarded = ucall.Server(port=0, auth=ucall.auth.bearer(["key"]))
    for scopes in ("files:read", ["files read"], ['"'], [""], [7]):
        with pytest.raises((TypeError, ValueError), match="scopes: expected"):
            guarded.add(plain, scopes=scopes)  # type: ignore[arg-type]
