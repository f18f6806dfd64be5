"""Bad input at the endpoint of MCP."""

from __future__ import annotations

import json
from typing import Any

import scenarios
from cases import HOST, Case, head

from target import Target

GROUP = "Tools for agents"
NEWEST = "2026-07-28"
VERSION = f"MCP-Protocol-Version: {NEWEST}"
META = {
    "io.modelcontextprotocol/protocolVersion": NEWEST,
    "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}},
}
ADD = {"name": "add", "arguments": {"a": 40, "b": 2}}
MIB = 1 << 20


def posted(params: dict[str, Any], *headers: str, method: str = "tools/call") -> bytes:
    """A request with these headers alone."""
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
    return head("POST /mcp HTTP/1.1", f"Content-Length: {len(body)}", *headers) + body


def named(name: str, *headers: str) -> tuple[str, ...]:
    """The headers of a call, followed by others."""
    return (HOST, VERSION, "Mcp-Method: tools/call", f"Mcp-Name: {name}", *headers)


def call(meta: object = META, name: str = "add", **more: object) -> bytes:
    return posted({**ADD, "name": name, "_meta": meta, **more}, *named(name))


def of_version(version: str, header: str) -> bytes:
    meta = META | {"io.modelcontextprotocol/protocolVersion": version}
    headers = [it for it in named("add") if it != VERSION]
    return posted(ADD | {"_meta": meta}, *headers, f"MCP-Protocol-Version: {header}")


def tamper(target: Target) -> str:
    """Changes a byte of what the server has signed."""
    asked = {"name": "confirm", "arguments": {}, "_meta": META}
    with target.wire() as wire:
        wire.send(posted(asked, *named("confirm")))
        state = json.loads(wire.reply()[2])["result"]["requestState"]
        middle = len(state) // 2
        changed = state[:middle] + ("A" if state[middle] != "A" else "B") + state[middle + 1 :]
        answers = {"sure": {"action": "accept", "content": {"sure": True}}}
        again = asked | {"inputResponses": answers, "requestState": changed}
        wire.send(posted(again, *named("confirm")))
        return scenarios.next_summary(wire)


def mcp() -> list[Case]:
    with_meta = ADD | {"_meta": META}
    other_method = [HOST, VERSION, "Mcp-Method: tools/list", "Mcp-Name: add"]
    no_method = [HOST, VERSION, "Mcp-Name: add"]
    incomplete = {"io.modelcontextprotocol/protocolVersion": NEWEST}
    foreign_host = [it.replace("localhost", "evil.example") for it in named("add")]
    inputs: list[tuple[str, str, Any]] = [
        ("a call", "200", call()),
        ("an Mcp-Method that is not the body's", "400 -32020", posted(with_meta, *other_method)),
        ("no Mcp-Method", "400 -32020", posted(with_meta, *no_method)),
        ("an Mcp-Name of another tool", "400 -32020", posted(with_meta, *named("text"))),
        ("a version that is not that of _meta", "400 -32020", of_version("2025-11-25", NEWEST)),
        ("an unknown version", "400 -32022", of_version("2099-01-01", "2099-01-01")),
        ("no _meta", "400 -32602", posted(ADD, *named("add"))),
        ("a _meta without capabilities", "400 -32602", call(incomplete)),
        ("a _meta that is a list", "400 -32602", call([])),
        ("a _meta of 8 MiB", "200", call(META | {"x": "y" * (8 * MIB)})),
        ("a _meta of 100,000 members", "200", call(META | {f"x{i}": i for i in range(100_000)})),
        ("a _meta above max_body_bytes", "413, closed", call(META | {"x": "y" * (16 * MIB)})),
        ("a requestState that was changed", "200 -32602", tamper),
        ("the name of no tool", "200 -32602", call(name="x" * 8000)),
        ("a foreign Host (DNS rebinding)", "403, closed", posted(with_meta, *foreign_host)),
        (
            "a foreign Origin",
            "403, closed",
            posted(with_meta, *named("add", "Origin: https://evil.example")),
        ),
    ]
    return [Case(GROUP, name, expected, data, server="agents") for name, expected, data in inputs]
