"""``@server(auth=…)``: who may call a function, in place of the server's ``auth``."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import numpy as np
import pytest
from functions import add, whoami
from serving import Serve

import ucall
import ucall.auth
from harness import Wire, http, request
from ucall._cli.description import method_list
from ucall._openrpc.document import Document
from ucall.client import Client

ALICE = "Authorization: Bearer s3cret"
CAROL = "X-API-Key: k3y"
REFUSED = {"code": -32004, "message": "Unauthorized"}


def tokens() -> ucall.auth.Keys:
    return ucall.auth.bearer({"s3cret": "alice"})


def keys() -> ucall.auth.Keys:
    return ucall.auth.api_key({"k3y": "carol"})


def start(serve: Serve, auth: Any, own: Any, **options: Any) -> ucall.Server:
    """A server with `whoami` by its ``auth``, `public` by none and `own` by another."""
    server = serve(whoami, auth=auth, **options)
    server.add(whoami, "public", auth=False)
    server.add(whoami, "own", auth=own)
    return server


def users(wire: Wire, *headers: str, names: tuple[str, ...] = ("whoami", "public", "own")) -> Any:
    """Whom functions are called by, each in a request of its own: a user, or a status."""
    found = []
    for name in names:
        wire.send(http(request(name), *headers))
        status, _, body = wire.reply()
        found.append(json.loads(body)["result"] if status == 200 else status)
    return found


def test_over_http_each_function_asks_its_own_auth(serve: Serve) -> None:
    server = start(serve, tokens(), keys())
    with Wire(server.port) as wire:
        assert users(wire) == [401, None, 401]
        assert users(wire, ALICE) == ["alice", None, 401]
        assert users(wire, CAROL) == [401, None, "carol"]
        assert users(wire, CAROL, ALICE) == ["alice", None, "carol"]
        # No user is that of the request before.
        assert users(wire) == [401, None, 401]


def test_a_refused_request_gets_the_challenge_of_its_function(serve: Serve) -> None:
    server = start(serve, tokens(), keys())
    with Wire(server.port) as wire:
        for name, challenge in (("whoami", b"Bearer"), ("own", b'ApiKey header="X-API-Key"')):
            wire.send(http(request(name)))
            status, head, body = wire.reply()
            assert status == 401 and b"\r\nWWW-Authenticate: " + challenge + b"\r\n" in head
            assert b"credentials" in body.lower() or body
        wire.send(http(request("whoami", id=...)))
        assert wire.reply()[0] == 401, "of a notification, too"


def test_the_calls_of_a_batch_are_answered_one_by_one(serve: Serve) -> None:
    server = start(serve, tokens(), keys())
    names = ("whoami", "public", "own", "whoami")
    batch = b"[" + b",".join(request(it) for it in names) + b"]"
    with Wire(server.port) as wire:
        for headers, expected in (
            ([], [REFUSED, None, REFUSED, REFUSED]),
            ([ALICE], ["alice", None, REFUSED, "alice"]),
            ([CAROL], [REFUSED, None, "carol", REFUSED]),
        ):
            wire.send(http(batch, *headers))
            status, _, body = wire.reply()
            found = [it.get("error", it.get("result")) for it in json.loads(body)]
            assert (status, found) == (200, expected)


@pytest.mark.parametrize("scheme", ["ws", "http"])
def test_headers_of_a_connection_identify_callers(serve: Serve, scheme: str) -> None:
    server = start(serve, tokens(), keys())
    uri = f"{scheme}://127.0.0.1:{server.port}"
    with Client(uri, headers={"X-API-Key": "k3y"}) as client:
        assert (client.call("own").json, client.call("public").json) == ("carol", None)
        with pytest.raises((ucall.RPCError, ucall.HTTPError)) as refused:
            client.call("whoami").json  # noqa: B018
        assert getattr(refused.value, "code", None) == -32004 or scheme == "http"
        assert client.call("own").json == "carol", "the connection stays open"
    with Client(uri) as client:
        assert client.call("public").json is None


def test_raw_connections_call_by_call(serve: Serve) -> None:
    calls: list[str] = []

    def accept(ctx: ucall.Context) -> str:
        calls.append(ctx.transport)
        return "peer"

    server = start(serve, lambda ctx: None, accept)
    with Wire(server.port) as wire:
        for _ in range(3):
            assert wire.error("whoami") == REFUSED
            assert wire.result("public") is None
            assert wire.result("own") == "peer"
    assert calls == ["tcp"], "once for the connection"


def test_auth_runs_once_a_request_or_connection_and_never_for_public_functions(
    serve: Serve,
) -> None:
    calls: list[str] = []

    def note(name: str, user: Any) -> Any:
        def auth(ctx: ucall.Context) -> Any:
            calls.append(f"{name} {ctx.transport} {ctx.headers.get('x-a')}")
            return user

        return auth

    server = start(serve, note("server", "user"), note("own", None))
    port = server.port
    names = ("public", "whoami", "own", "whoami", "own")
    with Wire(port) as wire:
        wire.send(http(b"[" + b",".join(request(it) for it in names) + b"]", "X-A: 1"))
        assert [it.get("result") for it in json.loads(wire.reply()[2])] == [
            None, "user", None, "user", None,
        ]  # fmt: skip
        assert calls == ["server http 1", "own http 1"]
        wire.send(http(request("public")))
        wire.reply()
        assert len(calls) == 2
    with Client(f"ws://127.0.0.1:{port}", headers={"X-A": "2"}) as client:
        for name in names:
            client.notify(name)
        assert client.call("public").json is None
    assert calls[2:] == ["server websocket 2", "own websocket 2"]


def test_a_failure_of_auth_is_of_its_moment(serve: Serve) -> None:
    class Unavailable(PermissionError):
        ucall_refusal = "unavailable"

    outcomes: Iterator[Any] = iter([Unavailable(), OSError("disk"), "user"])

    def auth(ctx: ucall.Context) -> Any:
        outcome = next(outcomes)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    server = start(serve, lambda ctx: None, auth)
    with Wire(server.port) as wire:
        assert [wire.error("own")["code"] for _ in range(2)] == [-32003, -32603]
        assert [wire.result("own") for _ in range(2)] == ["user"] * 2


async def task(ctx: ucall.Context) -> Any:
    return ctx.user


def batched(contexts: list[ucall.Context], values: list[int]) -> list[Any]:
    return [it.user for it in contexts]


def items(ctx: ucall.Context) -> Iterator[Any]:
    yield ctx.user


async def later_items(ctx: ucall.Context) -> AsyncIterator[Any]:
    yield ctx.user


def pooled(value: int) -> int:
    return value


def plain(value: int) -> int:
    return value


def test_functions_of_all_kinds(serve: Serve) -> None:
    server = serve(auth=tokens())
    rules: dict[str, Any] = {"": None, "public.": False, "own.": keys()}
    for prefix, auth in rules.items():
        group = ucall.Group(prefix, auth=auth)
        for function in (whoami, task, items, later_items, plain):
            group.add(function)
        group.add(whoami, "blocking", threads=True)
        group.add(pooled, processes=1)
        group.batch(batched)
        server.include(group)
    params = {"plain": [7], "pooled": [7], "batched": [7]}
    kinds = ("whoami", "task", "items", "later_items", "blocking", "plain", "pooled", "batched")
    with Wire(server.port) as wire:
        for headers, allowed in (([], ["public."]), ([CAROL], ["public.", "own."])):
            for prefix in rules:
                calls = [request(prefix + it, params.get(it)) for it in kinds]
                wire.send(http(b"[" + b",".join(calls) + b"]", *headers))
                replies = json.loads(wire.reply()[2])
                found = [it.get("error", it.get("result")) for it in replies]
                user = "carol" if prefix == "own." else None
                if prefix in allowed:
                    assert found == [user, user, [user], [user], user, 7, 7, user]
                else:
                    assert found == [REFUSED] * len(kinds)


def test_hooks_leave_the_auth_of_a_function_as_it_is() -> None:
    server = ucall.Server(port=0, auth=tokens())
    server.middleware(lambda ctx, call: call())
    for name, auth in (("whoami", None), ("public", False), ("own", keys())):
        server.add(whoami, name, auth=auth)
    with server, Wire(server.port) as wire:
        assert users(wire) == [401, None, 401]
        assert users(wire, ALICE) == ["alice", None, 401]
        assert users(wire, CAROL) == [401, None, "carol"]


def test_all_else_asks_the_auth_of_the_server(serve: Serve, tmp_path: Path) -> None:
    server = start(serve, tokens(), keys(), mcp=True, metrics=True)
    offer_a_prompt(server)
    server.http("/page")(lambda request: "page")
    server.store("kv", tmp_path / "kv")
    url = f"http://127.0.0.1:{server.port}"
    pages = ("/openrpc.json", "/page", "/metrics")
    with httpx.Client(base_url=url) as client:
        assert {client.get(it).status_code for it in pages} == {401}
        assert {
            client.get(it, headers={"Authorization": "Bearer s3cret"}).status_code for it in pages
        } == {200}
        assert mcp(client, "prompts/list").status_code == 401
        assert client.get("/healthz").status_code == 200
    with Wire(server.port) as wire:
        for method in ("rpc.discover", "kv.get", "tools/list", "nothing"):
            assert users(wire, names=(method,)) == [401]
            assert wire_error(server, method) == REFUSED
        wire.send(http(request("nothing"), ALICE))
        assert json.loads(wire.reply()[2])["error"]["code"] == -32601


def mcp(client: httpx.Client, method: str, name: str = "", **headers: str) -> httpx.Response:
    params = {"name": name} if name else {"protocolVersion": "2025-06-18"}
    document = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    return client.post("/mcp", json=document, headers=headers)


def offer_a_prompt(server: ucall.Server) -> None:
    """Has the server answer the methods of prompts, resources and completions."""
    server.prompt(complete={"item": lambda text: ["tea"]})(prompt)
    server.resource("note://one", name="note")(lambda: "text")


def prompt(item: str) -> str:
    return item


def tool_user(response: httpx.Response) -> Any:
    """Whom a tool was called by: a user, or the status of what was refused."""
    if response.status_code != 200:
        return response.status_code
    content = response.json()["result"]["content"]
    return content[0]["text"] if content else None


def test_anyone_may_call_a_public_tool(serve: Serve) -> None:
    server = start(serve, tokens(), keys(), mcp=True)
    bearer = {"Authorization": "Bearer s3cret"}
    with httpx.Client(base_url=f"http://127.0.0.1:{server.port}") as client:
        assert mcp(client, "initialize").json()["result"]["protocolVersion"] == "2025-06-18"
        assert mcp(client, "ping").json()["result"] == {}
        [listed] = mcp(client, "tools/list").json()["result"]["tools"]
        assert (listed["name"], listed["_meta"]) == ("public", {"x-auth": False})
        names = ("whoami", "public", "own")
        anonymous = [tool_user(mcp(client, "tools/call", it)) for it in names]
        assert anonymous == [401, None, 401]
        known = [tool_user(mcp(client, "tools/call", it, **bearer)) for it in names]
        assert known == ["alice", None, 401]
        carol = [tool_user(mcp(client, "tools/call", it, **{"X-API-Key": "k3y"})) for it in names]
        assert carol == [401, None, "carol"]
        refused = mcp(client, "tools/call", "whoami")
        assert refused.headers["www-authenticate"] == "Bearer"
        tools = mcp(client, "tools/list", **bearer).json()["result"]["tools"]
        assert [it["name"] for it in tools] == list(names)
        assert [it.get("_meta") for it in tools] == [None, {"x-auth": False}, {"x-auth": True}]


def test_a_refused_token_is_refused_beside_public_tools(serve: Serve) -> None:
    server = start(serve, tokens(), keys(), mcp=True)
    offer_a_prompt(server)
    wrong = {"Authorization": "Bearer wrong"}
    with httpx.Client(base_url=f"http://127.0.0.1:{server.port}") as client:
        for method in ("initialize", "tools/list", "ping"):
            response = mcp(client, method, **wrong)
            assert (response.status_code, response.headers["www-authenticate"]) == (401, "Bearer")
        assert tool_user(mcp(client, "tools/call", "public", **wrong)) == 401
        for method in ("prompts/list", "prompts/get", "resources/list", "completion/complete"):
            assert mcp(client, method).status_code == 401, method


def test_an_answer_to_a_public_tool_needs_no_credentials(serve: Serve) -> None:
    server = start(serve, tokens(), keys(), mcp=True)
    answer = {"jsonrpc": "2.0", "id": "no question", "result": {}}
    with httpx.Client(base_url=f"http://127.0.0.1:{server.port}") as client:
        known = client.post("/mcp", json=answer, headers={"Authorization": "Bearer s3cret"})
        assert client.post("/mcp", json=answer).status_code == known.status_code != 401


def test_a_refused_key_is_refused_beside_public_tools(serve: Serve) -> None:
    server = serve(whoami, auth=keys(), mcp=True)
    server.add(whoami, "public", auth=False)
    with httpx.Client(base_url=f"http://127.0.0.1:{server.port}") as client:
        assert mcp(client, "initialize").status_code == 200
        for wrong in ({"X-API-Key": "wrong"}, {"Cookie": "session=wrong"}):
            assert mcp(client, "initialize", **wrong).status_code == 401, wrong


def test_without_a_public_tool_every_request_of_mcp_is_authenticated(serve: Serve) -> None:
    server = serve(whoami, auth=tokens(), mcp=True)
    server.add(whoami, "own", auth=keys())
    server.add(whoami, "public", auth=False, mcp=False)
    with httpx.Client(base_url=f"http://127.0.0.1:{server.port}") as client:
        for method in ("initialize", "tools/list", "server/discover"):
            assert mcp(client, method).status_code == 401
        server.add(whoami, "later", auth=False)
        assert mcp(client, "initialize").status_code == 200


def test_a_tool_with_the_name_of_a_method_is_not_public(serve: Serve) -> None:
    server = start(serve, tokens(), keys(), mcp=True)
    server.add(whoami, "ping")
    with httpx.Client(base_url=f"http://127.0.0.1:{server.port}") as client:
        assert tool_user(mcp(client, "tools/call", "ping")) == 401
        bearer = {"Authorization": "Bearer s3cret"}
        assert tool_user(mcp(client, "tools/call", "ping", **bearer)) == "alice"


def wire_error(server: ucall.Server, method: str) -> Any:
    """The error of a method over raw TCP."""
    with Wire(server.port) as wire:
        return wire.error(method)


def test_functions_of_a_server_without_auth(serve: Serve) -> None:
    server = start(serve, None, keys())
    with Wire(server.port) as wire:
        assert users(wire) == [None, None, 401]
        assert users(wire, CAROL) == [None, None, "carol"]
        wire.send(http(b"", method="GET", target="/openrpc.json"))
        described = {it["name"]: it.get("x-auth") for it in json.loads(wire.reply()[2])["methods"]}
    assert described == {"whoami": None, "public": None, "own": True}


@pytest.mark.parametrize("form", ["chunked", "long", "waiting", "pipelined", "closing"])
def test_every_form_of_a_request_is_refused_by_status(serve: Serve, form: str) -> None:
    server = serve(add, auth=tokens())
    server.add(task, "later", auth=False)
    server.add(add, "public", auth=False)
    text = request("add", [2, 3])
    if form == "long":
        text = text[:-1] + b" " * 400_000 + b"}"
    whole = http(text)
    with Wire(server.port) as wire:
        if form == "chunked":
            head = "POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
            whole = f"{head}{len(text):x}\r\n".encode() + text + b"\r\n0\r\n\r\n"
        if form == "closing":
            whole = http(text, "Connection: close")
        if form == "waiting":
            wire.send(whole[:-5])
            whole = whole[-5:]
        if form == "pipelined":
            # The reply to a call that is not done comes first.
            whole = http(request("later")) + whole + http(request("public", [2, 3]))
        wire.send(whole)
        if form == "pipelined":
            assert wire.reply()[0] == 200
        status, head, body = wire.reply()
        assert status == 401 and b"WWW-Authenticate: Bearer" in head and b"jsonrpc" not in body
        if form == "closing":
            assert b"Connection: close" in head and wire.rest() == b""
            return
        if form == "pipelined":
            assert json.loads(wire.reply()[2])["result"] == 5
        wire.send(http(text, ALICE))
        assert json.loads(wire.reply()[2])["result"] == 5


def test_frames_and_bodies_are_refused_by_status(serve: Serve) -> None:
    def shape(array: np.ndarray[Any, Any]) -> list[int]:
        return list(array.shape)

    server = serve(shape, auth=tokens())
    server.add(shape, "public", auth=False)
    array = np.zeros((300, 300))
    url = f"http://127.0.0.1:{server.port}"
    with Client(url) as client:
        assert client.call("public", array).json == [300, 300]
        with pytest.raises(ucall.HTTPError) as refused:
            client.call("shape", array).json  # noqa: B018
        assert refused.value.status == 401
    body = json.dumps({"array": [[1.0, 2.0]]}).encode()
    for name, headers, status in (
        ("public", {}, 200), ("shape", {}, 401), ("shape", {"Authorization": "Bearer s3cret"}, 200)
    ):  # fmt: skip
        json_type = {"Content-Type": "application/json"}
        reply = httpx.post(f"{url}/{name}", content=body, headers=headers | json_type)
        assert reply.status_code == status


class User(NamedTuple):
    scopes: frozenset[str]


def test_scopes_are_those_of_the_own_user(serve: Serve) -> None:
    server = serve(auth=lambda ctx: User(frozenset("a")))
    server.add(add, "a", scopes=["a"])
    server.add(add, "b", auth=lambda ctx: User(frozenset("b")), scopes=["b"])
    server.add(add, "c", auth=lambda ctx: User(frozenset("b")), scopes=["a"])
    with Wire(server.port) as wire:
        assert [wire.result(it, [2, 3]) for it in ("a", "b")] == [5, 5]
        assert wire.error("c", [2, 3])["data"] == {"missing_scopes": ["a"]}


def test_functions_may_get_and_lose_their_auth_while_connections_last(serve: Serve) -> None:
    server = serve(whoami, auth=tokens())
    known = Client(f"ws://127.0.0.1:{server.port}", headers={"Authorization": "Bearer s3cret"})
    with known, Wire(server.port) as raw:
        assert known.call("whoami").json == "alice"
        server.add(whoami, "public", auth=False)
        assert known.call("whoami").json == "alice"
        assert known.call("public").json is None
        assert raw.result("public") is None
        with Client(f"ws://127.0.0.1:{server.port}") as unknown:
            assert unknown.call("public").json is None
            # From now on no function has an access of its own, and this connection no identity.
            server.add(whoami, "public")
            for name in ("public", "whoami"):
                with pytest.raises(ucall.RPCError) as refused:
                    unknown.call(name).json  # noqa: B018
                assert refused.value.code == -32004
        assert raw.error("public") == REFUSED
        assert known.call("public").json == "alice"


def test_a_connection_without_auth_is_checked_from_the_first_own_auth_on(serve: Serve) -> None:
    server = serve(whoami)
    with Wire(server.port) as raw, Client(f"ws://127.0.0.1:{server.port}") as client:
        assert raw.result("whoami") is None and client.call("whoami").json is None
        server.add(whoami, auth=lambda ctx: "user" if ctx.transport == "tcp" else None)
        server.add(whoami, "open")
        with Client(f"http://127.0.0.1:{server.port}", headers={"X-API-Key": "k3y"}) as other:
            assert other.call("open").json is None
        assert raw.result("whoami") == "user"
        with pytest.raises(ucall.RPCError) as refused:
            client.call("whoami").json  # noqa: B018
        assert refused.value.code == -32004
        assert client.call("open").json is None


def test_datagrams_are_authenticated_each(serve_once: Serve) -> None:
    count = itertools.count(1)
    server = start(serve_once, None, lambda ctx: next(count), udp=True)
    with Client(f"udp://127.0.0.1:{server.udp_port}") as client:
        assert [client.call(it).json for it in ("own", "public", "own")] == [1, None, 2]


def test_refused_calls_are_counted_and_public_ones_logged_without_user(
    serve_once: Serve, capfd: pytest.CaptureFixture[str]
) -> None:
    server = start(serve_once, tokens(), keys(), metrics=True, access_log="text")
    with Wire(server.port) as wire:
        assert users(wire, CAROL) == [401, None, "carol"]
        wire.send(http(b"", ALICE, method="GET", target="/metrics"))
        text = wire.reply()[2].decode()
    server.stop()
    lines = [it for it in text.splitlines() if '"whoami"' in it and "-32004" in it]
    assert [it.rsplit(" ", 1)[1] for it in lines if "_count" in it] == ["1"], text
    logged = capfd.readouterr().out.splitlines()
    for name, user in (("whoami", False), ("public", False), ("own", True)):
        [line] = [it for it in logged if f" {name} " in it]
        assert ("carol" in line) == user, line


def test_descriptions_say_who_may_call(serve_once: Serve) -> None:
    server = start(serve_once, tokens(), keys(), mcp=True)
    server.add(whoami, "scoped", scopes=["b", "a"])
    headers = {"Authorization": "Bearer s3cret"}
    url = f"http://127.0.0.1:{server.port}/openrpc.json"
    document = httpx.get(url, headers=headers).json()
    methods = document["methods"]
    described = {it["name"]: (it["x-auth"], it.get("x-scopes")) for it in methods}
    assert described == {
        "whoami": (True, None),
        "public": (False, None),
        "own": (True, None),
        "scoped": (True, ["a", "b"]),
    }
    listed = method_list(Document(document))
    assert [it.split() for it in listed.splitlines()] == [
        ["whoami"],
        ["public", "(public)"],
        ["own"],
        ["scoped", "(needs", "a,", "b)"],
    ]


def test_misuse_of_auth_by_function() -> None:
    server = ucall.Server(port=0)
    for auth, text in (
        (True, "add: auth: expected a function, or False to let anyone call; got bool"),
        ("key", "add: auth: expected a function"),
        (task, "auth: expected a plain function"),
        (lambda: "nobody", "auth: expected a function of one argument"),
    ):
        with pytest.raises(TypeError, match=text):
            server.add(add, auth=auth)  # type: ignore[call-overload]
    pytest.importorskip("jwt")
    issuer = ucall.auth.oauth("https://example.com", "audience")
    with pytest.raises(TypeError, match=r"are for all of a server: Server\(auth="):
        server.add(add, auth=issuer)
    for auth in (False, None):
        with pytest.raises(ValueError, match="add: scopes: expected a server with auth"):
            server.add(add, auth=auth, scopes=["a"])
    guarded = ucall.Server(port=0, auth=tokens())
    with pytest.raises(ValueError, match="add: scopes: expected"):
        guarded.add(add, auth=False, scopes=["a"])


def test_a_failure_of_auth_holds_for_all_calls_of_a_request(serve: Serve) -> None:
    asked: list[None] = []

    def auth(ctx: ucall.Context) -> str:
        asked.append(None)
        raise OSError("disk")

    server = start(serve, lambda ctx: None, auth)
    calls = b"[" + b",".join(request("own", id=id) for id in range(5)) + b"]"
    with Wire(server.port) as wire:
        for count in (1, 2):
            wire.send(http(calls))
            replies = json.loads(wire.reply()[2])
            assert [it["error"]["code"] for it in replies] == [-32603] * 5
            assert len(asked) == count
