"""Functions as tools of the Model Context Protocol, and what a client learns of a server."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import io
import json
import math
import subprocess
import sys
import typing
from collections.abc import AsyncIterator, Iterator
from typing import Any, Literal

import httpx
import jsonschema
import msgspec
import numpy as np
import pydantic
import pytest
from numpy.typing import NDArray
from PIL import Image
from serving import Serve

import ucall
import ucall._mcp.tools
from harness import Wire
from ucall.mcp import ToolResult

NEWEST, OLDER = "2026-07-28", ("2025-11-25", "2025-06-18", "2025-03-26")
META = {
    "io.modelcontextprotocol/protocolVersion": NEWEST,
    "io.modelcontextprotocol/clientCapabilities": {},
}


def ask(
    server: ucall.Server,
    method: str,
    params: Any = None,
    version: str = NEWEST,
    headers: dict[str, str] | None = None,
) -> Any:
    """The reply of a server to a request over HTTP."""
    params = dict(params or {})
    headers = {"Mcp-Method": method, "MCP-Protocol-Version": version} | (headers or {})
    headers |= {"Accept": "application/json, text/event-stream"}
    if version == NEWEST:
        params["_meta"] = META
        headers |= {"Mcp-Name": params["name"]} if "name" in params else {}
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    return httpx.post(f"http://127.0.0.1:{server.port}/mcp", json=body, headers=headers).json()


def tools(server: ucall.Server, headers: dict[str, str] | None = None) -> dict[str, Any]:
    found = ask(server, "tools/list", headers=headers)["result"]["tools"]
    return {it["name"]: it for it in found}


def call(server: ucall.Server, name: str, **arguments: Any) -> Any:
    return ask(server, "tools/call", {"name": name, "arguments": arguments})["result"]


@dataclasses.dataclass
class Node:
    value: int
    next: Node | None = None


class Order(pydantic.BaseModel):
    fruit: str
    count: int = 1


class Colour(enum.Enum):
    RED = "red"


NULL, INTEGER, STRING = {"type": "null"}, {"type": "integer"}, {"type": "string"}
COLOUR = {"title": "Colour", "enum": ["red"]}
NODE = {
    "title": "Node",
    "type": "object",
    "properties": {
        "value": INTEGER,
        "next": {"anyOf": [{"$ref": "#/$defs/Node"}, NULL], "default": None},
    },
    "required": ["value"],
}
BYTES = {
    "type": "string",
    "contentEncoding": "base64",
    "contentMediaType": "application/octet-stream",
}


def wrapped(schema: Any, **definitions: Any) -> Any:
    made = {"type": "object", "properties": {"result": schema}, "required": ["result"]}
    return made | ({"$defs": definitions} if definitions else {})


def test_params_are_an_object_that_the_server_takes() -> None:
    def buy(fruit: str, count: int = 1, *more: int, data: bytes = b"") -> None:
        """Buys fruit.

        As much as there is.

        Args:
            fruit: Its name.
        """

    def walk(ctx: ucall.Context, node: Node, **by: float) -> None: ...

    def double(x: list[int]) -> list[float]:
        return [2.0 * it for it in x]

    server = ucall.Server(port=0, mcp=True)
    server.batch(double)
    for function in (buy, walk):
        server.add(function)
    with server:
        found = tools(server)
        assert call(server, "double", x=3)["structuredContent"] == {"result": 6.0}
        wrong = call(server, "buy", fruit="fig", count="two")
        assert wrong["isError"] and "count" in wrong["content"][0]["text"]
    for tool in found.values():
        jsonschema.Draft202012Validator.check_schema(tool["inputSchema"])
    assert found["buy"]["description"] == "Buys fruit.\n\nAs much as there is."
    assert found["buy"]["inputSchema"] == {
        "type": "object",
        "properties": {
            "fruit": STRING | {"description": "Its name."},
            "count": INTEGER | {"default": 1},
            "data": BYTES | {"default": ""},
        },
        "required": ["fruit"],
        "additionalProperties": False,
    }
    assert found["walk"]["inputSchema"] == {
        "type": "object",
        "properties": {"node": {"$ref": "#/$defs/Node"}},
        "required": ["node"],
        "additionalProperties": {"type": "number"},
        "$defs": {"Node": NODE},
    }
    assert found["double"]["inputSchema"]["properties"] == {"x": INTEGER}


def test_structured_content_fits_the_schema_of_the_result(serve_once: Serve) -> None:
    def add(a: int) -> int:
        """Adds.

        Returns:
            The sum.
        """
        return a + 1

    def node() -> Node:
        return Node(1, Node(2))

    def order() -> Order:
        return Order(fruit="fig")

    def counts() -> dict[str, int]:
        return {"fig": 3}

    def colours() -> list[Colour]:
        return [Colour.RED]

    def maybe() -> Node | None:
        return None

    def parts() -> dict[str, bytes]:
        return {"part": b"ab"}

    def items(n: int) -> Iterator[int]:
        yield from range(n)

    server = serve_once(add, node, order, counts, colours, maybe, parts, items, mcp=True)
    found = tools(server)
    schemas = {name: it["outputSchema"] for name, it in found.items()}
    results = {}
    for name, schema in schemas.items():
        arguments = {"add": {"a": 2}, "items": {"n": 2}}.get(name, {})
        result = call(server, name, **arguments)
        results[name] = result["structuredContent"]
        assert msgspec.json.decode(result["content"][0]["text"]) in (
            results[name],
            results[name].get("result"),
        )
        jsonschema.Draft202012Validator.check_schema(schema)
        jsonschema.Draft202012Validator(schema).validate(results[name])
    assert schemas["add"] == wrapped(INTEGER | {"description": "The sum."})
    assert schemas["node"] == NODE | {"$defs": {"Node": NODE}}
    assert schemas["colours"] == wrapped(
        {"type": "array", "items": {"$ref": "#/$defs/Colour"}}, Colour=COLOUR
    )
    assert schemas["maybe"]["$defs"] == {"Node": NODE}
    assert results["add"] == {"result": 3}
    assert results["order"] == {"fruit": "fig", "count": 1}
    assert results["items"] == {"result": [0, 1]}
    assert results["parts"] == {"part": "YWI="}


def test_a_result_that_does_not_fit_its_schema_is_not_sent(serve_once: Serve) -> None:
    def count() -> int:
        return "three"  # type: ignore[return-value]

    def node() -> Node:
        return {"value": 1, "next": {"value": "x"}}  # type: ignore[return-value]

    async def later() -> list[Colour]:
        return ["blue"]  # type: ignore[list-item]

    server = serve_once(count, node, later, mcp=True)
    for name, problem in {
        "count": "expected integer",
        "node": "next: expected null or object",
        "later": "0: expected one of its enum",
    }.items():
        result = call(server, name)
        assert result["isError"] and "structuredContent" not in result
        text = f"The tool's result does not fit its schema: {problem}"
        assert result["content"] == [{"type": "text", "text": text}]


def test_other_results_are_content_alone() -> None:
    def text() -> str:
        return 'a "text"'

    def anything():  # type: ignore[no-untyped-def]
        return {"a": 1}

    def day() -> datetime.date:
        return datetime.date(2026, 1, 31)

    def data() -> bytes:
        return b"ab"

    def array() -> NDArray[np.float32]:
        return np.zeros(2, np.float32)

    def whole() -> ToolResult:
        audio = {"type": "audio", "data": b"ab", "mimeType": "audio/wav"}
        return {"content": [audio], "isError": True}

    server = ucall.Server(port=0, mcp=True)
    for function in (text, anything, day, data, array, whole):
        server.add(function)

    @server.tool(media_type="audio/wav")
    def sound() -> bytes:
        return b"ab"

    with server:
        assert not any("outputSchema" in it for it in tools(server).values())
        [content] = call(server, "text")["content"]
        assert content == {"type": "text", "text": 'a "text"'}
        assert call(server, "anything")["content"] == [{"type": "text", "text": '{"a":1}'}]
        assert call(server, "day")["content"] == [{"type": "text", "text": "2026-01-31"}]
        [resource] = call(server, "data")["content"]
        assert resource["resource"]["mimeType"] == "application/octet-stream"
        assert resource["resource"]["blob"] == "YWI="
        [resource] = call(server, "array")["content"]
        assert resource["resource"]["mimeType"] == "application/x-npy"
        audio = {"type": "audio", "data": "YWI=", "mimeType": "audio/wav"}
        assert call(server, "sound")["content"] == [audio]
        assert call(server, "whole") == {
            "resultType": "complete",
            "content": [audio],
            "isError": True,
        }


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP", "TIFF", "BMP"])
def test_an_image_is_sent_with_its_media_type(serve_once: Serve, kind: str) -> None:
    file = io.BytesIO()
    Image.new("RGB", (2, 2)).save(file, kind)

    def picture() -> Image.Image:
        return Image.open(file)

    [content] = call(serve_once(picture, mcp=True), "picture")["content"]
    assert content["type"] == "image" and content["mimeType"] == f"image/{kind.lower()}"


def test_options_of_a_tool() -> None:
    schema = {"type": "object", "properties": {"a": INTEGER}, "$anchor": "top"}
    server = ucall.Server(port=0, mcp=True)

    @server.tool(
        title="A query",
        annotations={"readOnlyHint": True, "openWorldHint": False},
        headers={"region": "Region", "limit": "Limit"},
        idempotent=True,
        name="db.query",
    )
    def query(region: Literal["eu", "us"], limit: int = 9) -> int:
        return limit

    @server.tool(input_schema=schema)
    def raw(**members: Any) -> list[str]:
        return list(members)

    @server.tool
    def plain() -> None: ...

    @server(mcp=False)
    def hidden() -> None: ...

    with server:
        found = tools(server)
        called = call(server, "raw", a=1)
        refused = ask(server, "tools/call", {"name": "db.query", "arguments": {"region": "eu"}})
        unknown = ask(server, "tools/call", {"name": "hidden", "arguments": {}})
    assert list(found) == ["db.query", "raw", "plain"]
    assert found["db.query"]["title"] == "A query"
    assert found["db.query"]["annotations"] == {
        "readOnlyHint": True,
        "openWorldHint": False,
        "idempotentHint": True,
    }
    assert found["db.query"]["inputSchema"]["properties"] == {
        "region": {"type": "string", "enum": ["eu", "us"], "x-mcp-header": "Region"},
        "limit": INTEGER | {"default": 9, "x-mcp-header": "Limit"},
    }
    assert refused["error"]["code"] == -32020  # The request has no Mcp-Param-Region.
    assert found["raw"]["inputSchema"] == schema
    assert called["structuredContent"] == {"result": ["a"]}
    assert set(found["plain"]) == {"name", "inputSchema"}
    assert unknown["error"]["code"] == -32602


def test_a_function_that_cannot_be_a_tool_is_refused() -> None:
    server = ucall.Server(port=0, mcp=True)

    def give(region: str, price: float, node: Node, place: str) -> None: ...

    def by_position(a: int, /) -> None: ...

    for name in ("a b", "é", "a/b", "x" * 129):
        with pytest.raises(ValueError, match=r"cannot be a tool's name.*name='...'.*mcp=False"):
            server.add(give, name)
        server.add(give, name, mcp=False)
    server.add(give, "x" * 128)
    for function in (by_position, math.sqrt):
        with pytest.raises(TypeError, match=r"a tool gets its params by name.*mcp=False"):
            server.add(function)

    def stream() -> Iterator[int]:
        yield 1

    with pytest.raises(TypeError, match=r"stream: stream: a tool has one result.*mcp=False"):
        server.add(stream, stream="only")
    server.add(stream, stream="only", mcp=False)
    for headers, problem in [
        ({"other": "Name"}, "'other' is none of its params"),
        ({"price": "Name"}, "expected a str, an int or a bool"),
        ({"node": "Name"}, "expected a str, an int or a bool"),
        ({"region": "Name", "place": "name"}, "two params have 'name'"),
    ]:
        with pytest.raises(TypeError, match=problem):
            server.tool(headers=headers)(give)
    options: list[Any] = [
        {"headers": {"region": "A B"}},
        {"headers": {"region": ""}},
        {"media_type": "audio"},
        {"input_schema": {"type": "array"}},
        {"annotations": {"readonly": True}},
        {"annotations": {"readOnlyHint": "yes"}},
        {"annotations": {"idempotentHint": True}},
    ]
    for given in options:
        with pytest.raises(ValueError, match=next(iter(given))):
            server.tool(**given)
    server.tool(media_type="audio/wav")(give)
    with pytest.raises(TypeError, match="give: media_type: is for a function that returns bytes"):
        server.run(max_cycles=1)


def test_tools_follow_the_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    described: list[str] = []

    def describe(name: str, served: Any, schemas: Any) -> Any:
        described.append(name)
        return describe_by_name(name, served, schemas)

    describe_by_name = ucall._mcp.tools.describe_by_name
    monkeypatch.setattr(ucall._mcp.tools, "describe_by_name", describe)
    server = ucall.Server(port=0, mcp=True)
    changes: list[None] = []
    assert server._functions.mcp is not None
    server._functions.mcp.on_tools_change.append(lambda: changes.append(None))
    server.add(lambda: 1, "one")
    server.add(lambda: 2, "two")
    with server:
        assert list(tools(server)) == list(tools(server)) == ["one", "two"]
        assert not changes
        server.add(lambda: 3, "three")
        assert list(tools(server)) == ["one", "two", "three"]
        assert call(server, "three")["content"] == [{"type": "text", "text": "3"}]
        assert described == ["one", "two", "three"] and len(changes) == 1
        with pytest.raises(ValueError, match="cannot be a tool's name"):
            server.add(lambda: 4, "fo ur")
        with pytest.raises(TypeError, match="media_type"):
            server.tool(name="five", media_type="audio/wav")(lambda: 5)
        assert list(tools(server)) == ["one", "two", "three"]
        assert "error" in ask(server, "tools/call", {"name": "five"})
    with server:
        assert list(tools(server)) == ["one", "two", "three"]
    assert described == ["one", "two", "three", "five"] and len(changes) == 1


def test_a_new_definition_keeps_its_place_or_leaves_the_tools() -> None:
    def define(result: int, **options: Any) -> None:
        def value() -> int:
            return result

        server.add(value, **options)

    server = ucall.Server(port=0, mcp=True)
    define(1)
    server.add(lambda: 0, "other")
    with server:
        define(2)
        assert list(tools(server)) == ["value", "other"]
        assert call(server, "value")["structuredContent"] == {"result": 2}
        define(3, mcp=False)
        assert list(tools(server)) == ["other"]
        assert ask(server, "tools/call", {"name": "value"})["error"]["code"] == -32602


def later() -> Later:  # noqa: F821
    return {"a": 1}


def test_a_result_may_be_of_a_class_that_is_defined_later(monkeypatch: pytest.MonkeyPatch) -> None:
    server = ucall.Server(port=0, mcp=True)
    server.tool(title="Later")(later)
    kind = typing.TypedDict("Later", {"a": int})  # noqa: UP013
    monkeypatch.setitem(globals(), "Later", kind)
    with server:
        assert tools(server)["later"]["outputSchema"]["properties"] == {"a": INTEGER}
        assert call(server, "later")["structuredContent"] == {"a": 1}


@pytest.mark.parametrize("version", OLDER)
def test_an_older_client_begins_by_a_handshake(serve: Serve, version: str) -> None:
    server = serve(mcp=True, title="Shop", version="2.0", description="Buy little.")
    server.add(lambda: 1, "one")
    params = {"protocolVersion": version, "capabilities": {}, "clientInfo": {}}
    found = ask(server, "initialize", params, version)["result"]
    assert found == {
        "protocolVersion": version,
        "capabilities": {"logging": {}, "tools": {}},
        "serverInfo": {"name": "Shop", "version": "2.0"},
        "instructions": "Buy little.",
    }
    assert ask(server, "ping", version=version)["result"] == {}
    assert ask(server, "logging/setLevel", {"level": "info"}, version)["result"] == {}
    assert ask(server, "logging/setLevel", {"level": "all"}, version)["error"]["code"] == -32602
    assert set(ask(server, "tools/list", version=version)["result"]) == {"tools"}
    for asked in (NEWEST, "1999-01-01"):
        found = ask(server, "initialize", params | {"protocolVersion": asked}, version)
        assert found["result"]["protocolVersion"] == "2025-11-25"
    assert ask(server, "initialize", {}, version)["error"]["code"] == -32602


def test_a_newest_client_discovers_the_server(serve: Serve) -> None:
    server = serve(mcp=True, title="Shop", version="2.0", description="Buy little.")
    server.add(lambda: 1, "one")
    common = {
        "resultType": "complete",
        "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "Shop", "version": "2.0"}},
        "ttlMs": 60_000,
        "cacheScope": "public",
    }
    assert ask(server, "server/discover")["result"] == common | {
        "supportedVersions": [NEWEST, *OLDER],
        "capabilities": {"logging": {}, "tools": {"listChanged": True}},
        "instructions": "Buy little.",
    }
    listed = ask(server, "tools/list", {"cursor": None})["result"]
    assert {name: it for name, it in listed.items() if name != "tools"} == common
    assert ask(server, "tools/list", {"cursor": "2"})["error"]["code"] == -32602
    for removed in ("initialize", "ping", "logging/setLevel"):
        error = ask(server, removed, {"level": "info", "protocolVersion": NEWEST})["error"]
        assert error["code"] == -32601


def test_what_needs_authorisation_is_cached_for_one_caller(serve_once: Serve) -> None:
    server = serve_once(mcp=True, auth=lambda ctx: True)
    for method in ("server/discover", "tools/list"):
        assert ask(server, method)["result"]["cacheScope"] == "private"


def test_callers_see_the_tools_that_they_may_call() -> None:
    class User:
        def __init__(self, *scopes: str) -> None:
            self.scopes = frozenset(scopes)

    users = {"": object(), "read": User("read"), "all": User("read", "write")}
    server = ucall.Server(port=0, mcp=True, auth=lambda ctx: users[ctx.headers.get("x-user", "")])
    server.add(lambda: 1, "look")
    server.add(lambda: 2, "read", scopes=["read"])
    server.tool(name="write", scopes=["read", "write"])(lambda: 3)
    with server:
        seen = {it: list(tools(server, {"X-User": it})) for it in users}
        assert ask(server, "tools/list")["result"]["cacheScope"] == "private"
    assert seen == {
        "": ["look"],
        "read": ["look", "read"],
        "all": ["look", "read", "write"],
    }


def test_nothing_is_imported_without_mcp() -> None:
    program = """
import sys, ucall
server = ucall.Server(port=0)
@server.tool(title="Adds")
def add(a: int, b: int) -> int: return a + b
server.start()
server.stop()
print([name for name in sys.modules if "mcp" in name or "schema" in name])
"""
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip() == "[]"


async def later_words(count: int) -> AsyncIterator[str]:
    for number in range(count):
        yield f"word {number}"


def numbers(count: int) -> Iterator[int]:
    yield from range(count)


def test_items_are_progress_and_the_result(serve: Serve) -> None:
    server = serve(later_words, numbers, mcp=True)
    server.add(numbers, name="threaded", threads=True)
    for name, items, messages in [
        ("later_words", ["word 0", "word 1"], ["word 0", "word 1"]),
        ("numbers", [0, 1], ["0", "1"]),
        ("threaded", [0, 1], ["0", "1"]),
    ]:
        params = {"name": name, "arguments": {"count": 2}, "_meta": {"progressToken": "t"}}
        request = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        with Wire(server.port) as wire:
            wire.send(json.dumps(request).encode())
            *reports, reply = [json.loads(wire.take_to(b"\n")) for _ in range(3)]
        assert [it["params"] for it in reports] == [
            {"progressToken": "t", "progress": place, "message": message}
            for place, message in enumerate(messages, 1)
        ]
        assert reply["result"]["structuredContent"] == {"result": items}
        assert call(server, name, count=2)["structuredContent"] == {"result": items}
