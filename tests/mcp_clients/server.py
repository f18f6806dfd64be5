"""A server with what the official conformance suite asks for, and what the tests of clients call.

Names and texts of `test_…` and `test://…` are the suite's.

    python -m ucall server:server --port 8545
"""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any

import questions
from PIL import Image

import ucall
from ucall.mcp import Message, ToolResult, log

server = ucall.Server(port=0, mcp=True)
questions.register(server)

#: One red pixel as PNG, and one sample of silence as WAV.
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC"
)
SILENCE = bytes.fromhex(
    "524946462500000057415645666d7420100000000100010001000000010000000100080064617461010000008000"
)


@server
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


@server
async def wait(ctx: ucall.Context, path: str) -> None:
    """Reports progress, waits to be cancelled, and then writes the file."""
    ctx.progress(0)
    try:
        await asyncio.Event().wait()
    finally:
        Path(path).write_text("cancelled", encoding="utf-8")


@server
def test_simple_text() -> str:
    """Returns a text."""
    return "This is a simple text response for testing."


@server
def test_image_content() -> Image.Image:
    """Returns an image."""
    return Image.new("RGB", (1, 1), "red")


@server.tool(media_type="audio/wav")
def test_audio_content() -> bytes:
    """Returns a sound."""
    return SILENCE


def embedded(uri: str, media_type: str, text: str) -> dict[str, Any]:
    return {"type": "resource", "resource": {"uri": uri, "mimeType": media_type, "text": text}}


@server
def test_embedded_resource() -> ToolResult:
    """Returns a resource."""
    text = "This is an embedded resource content."
    return {"content": [embedded("test://embedded-resource", "text/plain", text)]}


@server
def test_multiple_content_types() -> ToolResult:
    """Returns a text, an image and a resource."""
    text = {"type": "text", "text": "Multiple content types test:"}
    image = {"type": "image", "data": PIXEL, "mimeType": "image/png"}
    resource = embedded("test://mixed-content-resource", "application/json", '{"test":"data"}')
    return {"content": [text, image, resource]}


@server
def test_error_handling() -> str:
    """Fails."""
    raise ucall.RPCError(1, "This tool intentionally returns an error for testing")


@server
async def test_tool_with_progress(ctx: ucall.Context) -> str:
    """Reports its progress."""
    for done in (0, 50, 100):
        ctx.progress(done, 100)
        await asyncio.sleep(0.05)
    return "done"


@server
def test_logging_tool(ctx: ucall.Context) -> str:
    """Logs to a caller that asks for it."""
    log(ctx, "info", "Logging evaluated")
    return "logged"


@server
async def test_tool_with_logging(ctx: ucall.Context) -> str:
    """Logs three times."""
    for text in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        log(ctx, "info", text)
        await asyncio.sleep(0.05)
    return "logged"


def unused() -> None:
    """Is there for a moment."""


@server
def test_trigger_tool_change() -> str:
    """Changes the list of tools."""
    server.add(unused)
    return "changed"


@server
def test_trigger_prompt_change() -> str:
    """Changes the list of prompts."""
    server.prompt(unused)
    return "changed"


SCHEMA = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }
    },
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}


@server.tool(input_schema=SCHEMA)
def json_schema_2020_12_tool(**params: Any) -> str:
    """Has a schema of its own."""
    return "called"


@server.tool(headers={"region": "Region", "level": "Level", "verbose": "Verbose"})
def test_x_mcp_header(region: str, level: int = 0, verbose: bool = False) -> str:
    """Has params that are also sent as headers."""
    return region


@server.resource("test://static-text")
def static_text() -> str:
    """A text."""
    return "This is the content of the static text resource."


@server.resource("test://static-binary", mime_type="image/png")
def static_binary() -> bytes:
    """An image."""
    return PIXEL


@server.resource("test://watched-resource")
def watched() -> str:
    """A text that may change."""
    return "unchanged"


@server.resource("test://template/{id}/data")
def template(id: str) -> dict[str, Any]:
    """The data of an id."""
    return {"id": id, "templateTest": True, "data": f"Data for ID: {id}"}


@server.prompt
def test_simple_prompt() -> str:
    """A text."""
    return "This is a simple prompt for testing."


@server.prompt(complete={"arg1": ["test", "party"]})
def test_prompt_with_arguments(arg1: str, arg2: str) -> str:
    """A text with arguments."""
    return f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'"


@server.prompt
def test_prompt_with_embedded_resource(resourceUri: str) -> list[Message]:
    """A resource and a text."""
    resource = embedded(resourceUri, "text/plain", "Embedded resource content for testing.")
    text = "Please process the embedded resource above."
    return [{"role": "user", "content": resource}, {"role": "user", "content": text}]


@server.prompt
def test_prompt_with_image() -> list[Message]:
    """An image and a text."""
    data = base64.b64encode(PIXEL).decode()
    image = {"type": "image", "data": data, "mimeType": "image/png"}
    text = "Please analyze the image above."
    return [{"role": "user", "content": image}, {"role": "user", "content": text}]
