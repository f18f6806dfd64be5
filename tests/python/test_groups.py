"""Groups of functions: ``ucall.Group`` and ``server.include``."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import httpx
import pytest
from functions import add, whoami
from serving import Serve

import ucall
from harness import Wire, http, request

ALICE = "Authorization: Bearer s3cret"


class User(NamedTuple):
    scopes: frozenset[str]


def test_a_group_names_its_functions(serve_once: Serve) -> None:
    orders = ucall.Group("orders.")

    @orders
    def create(item: str) -> str:
        return item

    @orders(name="by.id")
    async def find(number: int) -> int:
        return number

    @orders.batch(max_size=4)
    def price(items: list[str]) -> list[int]:
        return [len(it) for it in items]

    @orders.tool(title="All orders")
    def every(count: int) -> Iterator[int]:
        yield from range(count)

    orders.add(add)
    assert create("tea") == "tea", "a decorator returns the function"
    server = serve_once()
    server.include(orders)
    with Wire(server.port) as wire:
        assert wire.result("orders.create", ["tea"]) == "tea"
        assert wire.result("orders.by.id", {"number": 7}) == 7
        assert wire.result("orders.price", ["tea"]) == 3
        assert wire.result("orders.every", [3]) == [0, 1, 2]
        assert wire.result("orders.add", [2, 3]) == 5
        assert wire.error("create", ["tea"])["code"] == -32601


def test_prefixes_of_groups_in_groups_are_joined(serve_once: Serve) -> None:
    outer, inner, innermost = (ucall.Group(it) for it in ("shop.", "orders.", ""))
    # What is added to an inner group later is served, too, until a server includes it.
    outer.include(inner)
    inner.include(innermost)
    innermost.add(add)
    inner.add(add, "sum")
    server = serve_once()
    server.include(outer)
    with Wire(server.port) as wire:
        assert wire.result("shop.orders.add", [2, 3]) == 5
        assert wire.result("shop.orders.sum", [2, 3]) == 5
    document = httpx.get(f"http://127.0.0.1:{server.port}/openrpc.json").json()
    assert [it["name"] for it in document["methods"]] == ["shop.orders.add", "shop.orders.sum"]


def test_two_servers_may_include_a_group(serve_once: Serve) -> None:
    group = ucall.Group("math.")
    group.add(add)
    for _ in range(2):
        server = serve_once()
        server.include(group)
        server.include(group)
        with Wire(server.port) as wire:
            assert wire.result("math.add", [2, 3]) == 5


async def slow() -> None:
    await asyncio.sleep(600)


async def nap() -> str:
    await asyncio.sleep(0.02)
    return "rested"


def test_the_innermost_timeout_counts(serve_once: Serve) -> None:
    outer, inner = ucall.Group("outer.", timeout_ms=1), ucall.Group("inner.", timeout_ms=600_000)
    outer.add(slow)
    inner.add(nap)
    inner.add(slow, timeout_ms=2)
    outer.include(inner)
    server = serve_once(timeout_ms=600_000)
    server.include(outer)
    with Wire(server.port) as wire:
        assert wire.error("outer.slow")["code"] == -32001
        assert wire.error("outer.inner.slow")["code"] == -32001
        assert wire.result("outer.inner.nap") == "rested", "it takes longer than outer's timeout"


def test_scopes_add_up(serve_once: Serve) -> None:
    outer, inner = ucall.Group("outer.", scopes=["a"]), ucall.Group("inner.", scopes=iter(["b"]))
    outer.include(inner)
    outer.add(add)
    inner.add(add, scopes=iter(["c", "a"]))
    users = {"s3cret": User(frozenset("a")), "root": User(frozenset("abc"))}
    server = serve_once(auth=ucall.auth.bearer(users))
    server.include(outer)
    missing = {"missing_scopes": ["b", "c"]}
    with Wire(server.port) as wire:
        calls = [request(it, [2, 3]) for it in ("outer.add", "outer.inner.add")]
        for user, data in (("s3cret", missing), ("root", None)):
            wire.send(http(b"[" + b",".join(calls) + b"]", f"Authorization: Bearer {user}"))
            first, second = json.loads(wire.reply()[2])
            assert first["result"] == 5
            assert second.get("error", {}).get("data") == data


def test_the_innermost_auth_counts(serve_once: Serve) -> None:
    outer, inner = ucall.Group("outer.", auth=False), ucall.Group("inner.", auth=lambda ctx: "own")
    outer.include(inner)
    outer.add(whoami)
    outer.add(whoami, "own", auth=lambda ctx: "its own")
    inner.add(whoami)
    inner.add(whoami, "public", auth=False)
    server = serve_once(whoami, auth=lambda ctx: "server's")
    server.include(outer)
    with Wire(server.port) as wire:
        users = {
            name: wire.result(name)
            for name in ("whoami", "outer.whoami", "outer.own", "outer.inner.whoami")
        }
        assert wire.result("outer.inner.public") is None
    assert users == {
        "whoami": "server's",
        "outer.whoami": None,
        "outer.own": "its own",
        "outer.inner.whoami": "own",
    }


def test_hooks_of_groups_run_within_those_of_the_server(serve_once: Serve) -> None:
    ran: list[str] = []

    def hook(name: str) -> Any:
        def around(ctx: ucall.Context, call: ucall.Call) -> object:
            ran.append(name)
            return call()

        return around

    outer = ucall.Group("outer.", middleware=[hook("outer")])
    inner = ucall.Group("inner.")
    outer.include(inner)
    outer.add(add)
    inner.add(add)
    inner.middleware(hook("inner 1"))
    inner.middleware(hook("inner 2"))
    server = ucall.Server(port=0)
    server.include(outer)
    server.add(add)
    server.middleware(hook("server"))
    with server, Wire(server.port) as wire:
        for name, expected in (
            ("outer.inner.add", ["server", "outer", "inner 1", "inner 2"]),
            ("outer.add", ["server", "outer"]),
            ("add", ["server"]),
        ):
            assert wire.result(name, [2, 3]) == 5
            assert ran == expected
            ran.clear()


def path_of(request: ucall.HttpRequest) -> dict[str, object]:
    return {"path": request.path, "params": request.path_params, "user": request.user}


def test_paths_of_groups_begin_those_of_their_routes(serve_once: Serve) -> None:
    ran: list[str] = []
    shop = ucall.Group("shop.", path="/shop", timeout_ms=0.001)
    orders = ucall.Group("orders.", path="/{customer}")
    shop.include(orders)

    @shop.middleware
    def note(ctx: ucall.Context, call: ucall.Call) -> object:
        ran.append(call.method)
        return call()

    assert shop.http("/about")(path_of) is path_of
    orders.http("/orders/{id}", methods=iter(["GET", "PUT"]))(path_of)
    ucall.Server(port=0).include(shop)
    server = serve_once()
    server.include(shop)
    with httpx.Client(base_url=f"http://127.0.0.1:{server.port}") as client:
        assert client.get("/shop/about").json()["path"] == "/shop/about"
        for method in ("GET", "PUT"):
            got = client.request(method, "/shop/ada/orders/7").json()
            assert got["params"] == {"customer": "ada", "id": "7"}
        assert client.get("/about").status_code == 404
        assert client.get("/orders/7").status_code == 404
        assert "/shop/{customer}/orders/{id}" in client.get("/openapi.json").json()["paths"]
    assert ran == [], "hooks are around calls"


def test_routes_of_groups_have_the_auth_of_the_server_or_none(serve_once: Serve) -> None:
    outer, inner = ucall.Group(path="/outer", auth=False), ucall.Group(path="/inner")
    secret = ucall.Group(path="/secret", auth=lambda ctx: "own", scopes=["a"])
    outer.include(inner)
    outer.include(secret)
    for group in (outer, inner):
        group.http("/default")(path_of)
        group.http("/checked", auth=True)(path_of)
    secret.http("/checked", auth=True)(path_of)
    secret.http("/open", auth=False)(path_of)
    plain = ucall.Group(path="/plain")
    plain.http("/default")(path_of)
    plain.http("/open", auth=False)(path_of)
    server = serve_once(auth=ucall.auth.bearer({"s3cret": "alice"}))
    server.include(outer)
    server.include(plain)
    is_open = {
        "/outer/default": True,
        "/outer/checked": False,
        "/outer/inner/default": True,
        "/outer/inner/checked": False,
        "/outer/secret/checked": False,
        "/outer/secret/open": True,
        "/plain/default": False,
        "/plain/open": True,
    }
    with httpx.Client(base_url=f"http://127.0.0.1:{server.port}") as client:
        statuses = {path: client.get(path).status_code for path in is_open}
        assert statuses == {path: 200 if it else 401 for path, it in is_open.items()}
        got = client.get("/plain/default", headers={"Authorization": "Bearer s3cret"}).json()
        assert got["user"] == "alice"


@pytest.mark.parametrize(
    ("options", "has"),
    [({"scopes": ["a"]}, "scopes"), ({"auth": lambda ctx: "own"}, "an auth of its own")],
)
def test_a_route_does_not_pass_by_what_its_group_demands(options: dict[str, Any], has: str) -> None:
    outer, inner = ucall.Group(path="/outer", **options), ucall.Group()
    outer.include(inner)
    inner.http("/open")(path_of)
    with pytest.raises(TypeError, match=f"/outer/open: its group has {has}, which routes do not"):
        ucall.Server(port=0, auth=lambda ctx: "anyone").include(outer)


def test_a_route_that_says_so_needs_a_server_with_auth() -> None:
    group = ucall.Group(path="/secret", auth=lambda ctx: "own")
    group.http("/checked", auth=True)(path_of)
    server = ucall.Server(port=0)
    with pytest.raises(TypeError, match="/secret/checked: the route has auth=True: expected a ser"):
        server.include(group)
    for register in (group.http, server.http):
        with pytest.raises(TypeError, match="auth: expected True or False, got function"):
            register("/own", auth=lambda ctx: "own")(path_of)  # type: ignore[arg-type]


def test_a_group_that_a_server_refuses_stays_open() -> None:
    group = ucall.Group(path="/shop", scopes=["a"])
    group.http("/about")(path_of)
    with pytest.raises(TypeError, match="its group has scopes"):
        ucall.Server(port=0).include(group)
    group.add(add)


def test_nothing_is_added_after_a_server_has_included_a_group() -> None:
    outer, inner = ucall.Group(), ucall.Group()
    outer.include(inner)
    ucall.Server(port=0).include(outer)
    for group in (outer, inner):
        with pytest.raises(RuntimeError, match=r"add to it before server\.include\(group\)"):
            group.add(add)
        with pytest.raises(RuntimeError, match="before"):
            group.include(ucall.Group())
        with pytest.raises(RuntimeError, match="before"):
            group.middleware(lambda ctx, call: call())
        with pytest.raises(RuntimeError, match="before"):
            group.http("/late")(path_of)


def test_misuse_of_groups() -> None:
    group, other = ucall.Group(), ucall.Group()
    other.include(group)
    for cycle in (group, other):
        with pytest.raises(ValueError, match="does not include this group"):
            group.include(cycle)
    wrong: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"prefix": 7}, TypeError, "prefix: expected a str"),
        ({"path": 7}, TypeError, "path: expected a str"),
        ({"path": "orders"}, ValueError, "path: expected one such as '/orders', got 'orders'"),
        ({"path": "/orders/"}, ValueError, "path: expected one such as '/orders'"),
        ({"path": "/a//b"}, ValueError, "path: expected one such as '/orders'"),
        ({"timeout_ms": 0}, ValueError, "timeout_ms: expected milliseconds above 0"),
        ({"timeout_ms": float("nan")}, ValueError, "timeout_ms: expected"),
        ({"scopes": "a b"}, TypeError, "scopes: expected"),
        ({"middleware": [7]}, TypeError, "middleware: expected a function"),
        ({"auth": True}, TypeError, "auth: expected a function, or False"),
        ({"auth": slow}, TypeError, "auth: expected a plain function"),
    ]
    for options, error, text in wrong:
        with pytest.raises(error, match=text):
            ucall.Group(**options)
    with pytest.raises(TypeError, match=r"group: expected a ucall\.Group, got Server"):
        ucall.Server(port=0).include(ucall.Server(port=0))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="scopes: expected"):
        group.add(add, scopes=["a b"])
    with pytest.raises(ValueError, match="path: expected one such as '/about', or '', got 'ord"):
        ucall.Group(path="/shop").http("orders")
    routes = ucall.Group()
    routes.http("/orders?")(path_of)
    with pytest.raises(ValueError, match="path: expected one such as '/health'"):
        ucall.Server(port=0).include(routes)
    reserved = ucall.Group("rpc.")
    reserved.add(add)
    with pytest.raises(ValueError, match=r"reserves rpc\."):
        ucall.Server(port=0).include(reserved)
    scoped = ucall.Group(scopes=["a"])
    scoped.add(add)
    with pytest.raises(ValueError, match="add: scopes: expected a server with auth"):
        ucall.Server(port=0).include(scoped)
