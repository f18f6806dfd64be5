"""Resources, prompts and input of MCP as a client gets them: over HTTP and raw TCP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from mcp_offers import CAPABILITIES, NEWEST, OLDER

import ucall
from wire import Wire
from wire import request as call_of

PREFIX = "io.modelcontextprotocol/"


def shop(server: ucall.Server) -> None:
    def ask(ctx: ucall.Context, item: str) -> str:
        answer = ucall.mcp.elicit(ctx, f"How many {item}?", {"count": int}, key="count")
        return f"{answer.action} {answer.content.get('count')} {item}"

    @server
    def inline(item: str, ctx: ucall.Context) -> str:
        return ask(ctx, item)

    @server(threads=True)
    def thread(item: str, ctx: ucall.Context) -> str:
        return ask(ctx, item)

    @server
    async def task(item: str, ctx: ucall.Context) -> str:
        return ask(ctx, item)

    def log(ctx: ucall.Context) -> str:
        ucall.mcp.log(ctx, "debug", "begins")
        ucall.mcp.log(ctx, "warning", {"stock": 0}, "shop")
        return "done"

    @server
    def inline_log(ctx: ucall.Context) -> str:
        return log(ctx)

    @server(threads=True)
    def thread_log(ctx: ucall.Context) -> str:
        return log(ctx)

    @server
    async def task_log(ctx: ucall.Context) -> str:
        return log(ctx)

    @server.resource("shop://{item}")
    async def stock(item: str, ctx: ucall.Context) -> str:
        return ask(ctx, item)

    @server.prompt
    def order(item: str, ctx: ucall.Context) -> str:
        return ask(ctx, item)

    @server.resource("shop://name")
    def name() -> bytes:
        return b"\xff"


@pytest.fixture(scope="module")
def server() -> Iterator[ucall.Server]:
    server = ucall.Server(port=0, mcp=True)
    shop(server)
    with server:
        yield server


def request(
    server: ucall.Server, method: str, version: str, can: Any, params: dict[str, Any]
) -> tuple[str, dict[str, str], dict[str, Any]]:
    """The URL, the headers and the body of a request."""
    if version == NEWEST:
        meta = {"protocolVersion": version, "clientCapabilities": can}
        params = {"_meta": {PREFIX + name: value for name, value in meta.items()}, **params}
    headers = {"Mcp-Method": method, "MCP-Protocol-Version": version}
    named = params.get("name", params.get("uri"))
    headers |= {"Mcp-Name": named} if named else {}
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    return f"http://127.0.0.1:{server.port}/mcp", headers, body


def post(
    server: ucall.Server, method: str, version: str = NEWEST, can: Any = CAPABILITIES, **params: Any
) -> tuple[int, Any]:
    """The status and the reply of a request over HTTP."""
    url, headers, body = request(server, method, version, can, params)
    response = httpx.post(url, json=body, headers=headers)
    return response.status_code, response.json()


CALLS = [
    ("tools/call", {"name": "inline", "arguments": {"item": "pear"}}),
    ("tools/call", {"name": "thread", "arguments": {"item": "pear"}}),
    ("tools/call", {"name": "task", "arguments": {"item": "pear"}}),
    ("resources/read", {"uri": "shop://pear"}),
    ("prompts/get", {"name": "order", "arguments": {"item": "pear"}}),
]


@pytest.mark.parametrize(("method", "params"), CALLS)
def test_input_is_asked_for(server: ucall.Server, method: str, params: dict[str, Any]) -> None:
    status, reply = post(server, method, **params)
    asked = reply["result"]
    assert (status, asked.keys()) == (200, {"resultType", "inputRequests", "requestState"})
    assert asked["inputRequests"]["count"]["params"]["message"] == "How many pear?"
    answers = {"count": {"action": "accept", "content": {"count": 3}}}
    again = params | {"inputResponses": answers, "requestState": asked["requestState"]}
    status, reply = post(server, method, **again)
    assert (status, reply["result"]["resultType"]) == (200, "complete")
    assert "accept 3 pear" in json.dumps(reply)
    # Errors of what the client sent are the request's, not the tool's.
    again["requestState"] += "-TAMPERED"
    status, reply = post(server, method, **again)
    assert (status, reply["error"]["code"]) == (200, -32602)
    assert reply["error"]["data"] == "requestState: was changed, or is not of this server"
    status, reply = post(server, method, can={"sampling": {}}, **params)
    assert (status, reply["error"]["code"]) == (400, -32021)
    assert reply["error"]["data"] == {"requiredCapabilities": {"elicitation": {"form": {}}}}


@contextmanager
def streamed(
    server: ucall.Server, method: str, version: str, can: Any = CAPABILITIES, **params: Any
) -> Iterator[Iterator[Any]]:
    """The messages of a reply that is a stream of events."""
    url, headers, body = request(server, method, version, can, params)
    headers |= {"Accept": "application/json, text/event-stream"}
    with httpx.stream("POST", url, json=body, headers=headers) as response:
        if response.headers["content-type"] == "application/json":
            yield iter([json.loads(response.read())])
        else:
            lines = response.iter_lines()
            yield (json.loads(line[6:]) for line in lines if line.startswith("data: "))


def answer(server: ucall.Server, id: str, result: Any) -> int:
    """The status of a client's reply to a request of the server."""
    body = {"jsonrpc": "2.0", "id": id, "result": result}
    headers = {"MCP-Protocol-Version": OLDER}
    response = httpx.post(f"http://127.0.0.1:{server.port}/mcp", json=body, headers=headers)
    assert response.content == b""
    return response.status_code


@pytest.mark.parametrize(("method", "params"), CALLS)
def test_older_clients_are_asked_meanwhile(
    server: ucall.Server, method: str, params: dict[str, Any]
) -> None:
    # Without a stream, and within a function that cannot wait, they get the reason.
    _, reply = post(server, method, OLDER, **params)
    assert f"use version {NEWEST} of MCP" in json.dumps(reply)
    assert ("error" in reply) == (method != "tools/call")
    with streamed(server, method, OLDER, **params) as messages:
        asked = next(messages)
        if params.get("name") in ("inline", "order"):
            assert f"use version {NEWEST} of MCP" in json.dumps(asked)
            return
        assert (asked["method"], asked["params"]["message"]) == (
            "elicitation/create",
            "How many pear?",
        )
        assert answer(server, "guessed", {"action": "accept", "content": {"count": 9}}) == 202
        assert answer(server, asked["id"], {"action": "accept", "content": {"count": 3}}) == 202
        assert answer(server, asked["id"], {"action": "decline"}) == 202
        reply = next(messages)
        assert (reply["id"], "accept 3 pear" in json.dumps(reply)) == (1, True)
        assert list(messages) == []


@pytest.mark.parametrize("name", ["inline_log", "thread_log", "task_log"])
def test_log_messages(server: ucall.Server, name: str) -> None:
    def logged(version: str, **params: Any) -> list[Any]:
        call = {"name": name, "arguments": {}, **params}
        with streamed(server, "tools/call", version, **call) as messages:
            *logged, reply = messages
        assert reply["result"]["content"] == [{"type": "text", "text": "done"}]
        assert {it["method"] for it in logged} <= {"notifications/message"}
        return [it["params"] for it in logged]

    warning = {"level": "warning", "logger": "shop", "data": {"stock": 0}}
    assert logged(OLDER) == [{"level": "debug", "data": "begins"}, warning]
    assert logged(NEWEST) == []
    meta = {
        PREFIX + "protocolVersion": NEWEST,
        PREFIX + "clientCapabilities": {},
        PREFIX + "logLevel": "info",
    }
    assert logged(NEWEST, _meta=meta) == [warning]
    _, reply = post(server, "tools/call", OLDER, name=name, arguments={})
    assert reply["result"]["content"] == [{"type": "text", "text": "done"}]


@pytest.mark.parametrize("version", [NEWEST, OLDER])
def test_resources_and_prompts(server: ucall.Server, version: str) -> None:
    _, reply = post(server, "resources/read", version, uri="shop://name")
    blob = {"uri": "shop://name", "mimeType": "application/octet-stream", "blob": "/w=="}
    assert reply["result"]["contents"] == [blob]
    for uri in ("shop://a/b", "nothing://"):
        _, reply = post(server, "resources/read", version, uri=uri)
        error = {"code": -32602, "message": "Resource not found", "data": {"uri": uri}}
        assert reply["error"] == error
    _, reply = post(server, "prompts/list", version)
    assert [it["name"] for it in reply["result"]["prompts"]] == ["order"]
    ref, argument = {"type": "ref/prompt", "name": "order"}, {"name": "item", "value": ""}
    _, reply = post(server, "completion/complete", version, ref=ref, argument=argument)
    assert reply["result"]["completion"]["values"] == []


def test_capabilities(server: ucall.Server) -> None:
    _, reply = post(server, "server/discover")
    changes = {"listChanged": True}
    assert reply["result"]["capabilities"] == {
        "tools": changes,
        "resources": changes | {"subscribe": True},
        "prompts": changes,
        "completions": {},
        "logging": {},
    }
    # Changes have no way to older clients over HTTP.
    _, reply = post(server, "initialize", OLDER, protocolVersion=OLDER)
    capabilities = reply["result"]["capabilities"]
    names = ("tools", "resources", "prompts", "completions", "logging")
    assert capabilities == {name: {} for name in names}


def test_a_connection_asks_too(server: ucall.Server) -> None:
    with Wire(server.port) as wire:
        meta = {PREFIX + "protocolVersion": NEWEST, PREFIX + "clientCapabilities": CAPABILITIES}
        params = {**CALLS[0][1], "_meta": meta}
        asked = wire.result("tools/call", params)
        answers = {"count": {"action": "decline"}}
        again = params | {"inputResponses": answers, "requestState": asked["requestState"]}
        content = [{"type": "text", "text": "decline None pear"}]
        assert wire.result("tools/call", again)["content"] == content
        # The function's own method is no call of MCP.
        assert wire.error("inline", {"item": "pear"})["data"].endswith("call it over MCP")


@pytest.mark.parametrize("name", ["thread", "task"])
def test_an_older_client_is_asked_on_its_connection(server: ucall.Server, name: str) -> None:
    with Wire(server.port) as wire:
        wire.send(call_of("tools/call", {"name": name, "arguments": {"item": "pear"}}))
        asked = wire.message()
        assert asked["params"]["message"] == "How many pear?"
        result = {"action": "accept", "content": {"count": 3}}
        for answer in ({"id": "guessed", "result": result}, {"id": asked["id"], "result": result}):
            wire.send(json.dumps({"jsonrpc": "2.0", **answer}).encode())
        content = [{"type": "text", "text": "accept 3 pear"}]
        assert wire.message()["result"]["content"] == content
        # What is no reply is a wrong request, as ever.
        wire.send(b'{"jsonrpc":"2.0","id":7,"result":1,"error":2}')
        assert wire.message()["error"]["code"] == -32600


def test_a_server_without_mcp_takes_no_replies() -> None:
    with ucall.Server(port=0) as server, Wire(server.port) as wire:
        wire.send(b'{"jsonrpc":"2.0","id":7,"result":1}')
        assert wire.message()["error"]["code"] == -32600


def test_a_server_without_mcp_has_none() -> None:
    for decorator in (ucall.Server().prompt, ucall.Server().resource("x://y")):
        with pytest.raises(RuntimeError, match=r"is for MCP: Server\(mcp=True\)"):
            decorator(shop)
