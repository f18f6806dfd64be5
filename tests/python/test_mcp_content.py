"""Resources, prompts and input of MCP as a client gets them: over HTTP and raw TCP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from mcp_offers import CAPABILITIES, NEWEST, OLDER

import ucall
from ucall._mcp.registry import HAS_EVENTS
from wire import Wire

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


def post(
    server: ucall.Server, method: str, version: str = NEWEST, can: Any = CAPABILITIES, **params: Any
) -> tuple[int, Any]:
    """The status and the reply of a request over HTTP."""
    if version == NEWEST:
        meta = {"protocolVersion": version, "clientCapabilities": can}
        params["_meta"] = {PREFIX + name: value for name, value in meta.items()}
    headers = {"Mcp-Method": method, "MCP-Protocol-Version": version}
    named = params.get("name", params.get("uri"))
    headers |= {"Mcp-Name": named} if named else {}
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    response = httpx.post(f"http://127.0.0.1:{server.port}/mcp", json=body, headers=headers)
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
    _, reply = post(server, method, can={"sampling": {}}, **params)
    assert reply["error"]["code"] == -32021
    assert reply["error"]["data"] == {"requiredCapabilities": {"elicitation": {"form": {}}}}


@pytest.mark.parametrize(("method", "params"), CALLS)
def test_older_clients_get_the_reason(
    server: ucall.Server, method: str, params: dict[str, Any]
) -> None:
    _, reply = post(server, method, OLDER, **params)
    assert f"which takes version {NEWEST} of MCP" in json.dumps(reply)
    assert ("error" in reply) == (method != "tools/call")


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
    changes = {"listChanged": True} if HAS_EVENTS else {}
    assert reply["result"]["capabilities"] == {
        "tools": changes,
        "resources": changes | ({"subscribe": True} if HAS_EVENTS else {}),
        "prompts": changes,
        "completions": {},
    }
    # Changes have no way to older clients over HTTP.
    _, reply = post(server, "initialize", OLDER, protocolVersion=OLDER)
    capabilities = {"tools": {}, "resources": {}, "prompts": {}, "completions": {}}
    assert reply["result"]["capabilities"] == capabilities


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


def test_a_server_without_mcp_has_none() -> None:
    for decorator in (ucall.Server().prompt, ucall.Server().resource("x://y")):
        with pytest.raises(RuntimeError, match=r"is for MCP: Server\(mcp=True\)"):
            decorator(shop)
