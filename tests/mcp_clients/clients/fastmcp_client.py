"""Calls tests/mcp_clients/server.py by FastMCP's client, and prints what it got as JSON.

fastmcp_client.py legacy|auto FILE SERVER

SERVER is a URL, or a command with its arguments: over stdio. Cancels a call unless FILE is empty.
"""

import asyncio
import contextlib
import json
import sys
from pathlib import Path

from fastmcp import Client
from fastmcp.client.transports import StdioTransport
from mcp_types import PromptReference


async def answer(message: str, kind: object, params: object, context: object) -> dict[str, str]:
    return {"name": "Ada"}


async def cancel(client: Client, file: Path) -> str:
    """Cancels a call that has reported its progress. The function leaves a file at its end."""
    started = asyncio.Event()

    async def on_progress(*_: object) -> None:
        started.set()

    waiting = client.call_tool("wait", {"path": str(file)}, progress_handler=on_progress)
    call = asyncio.create_task(waiting)
    await started.wait()
    call.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await call
    while not file.exists():
        await asyncio.sleep(0.01)
    return file.read_text()


async def main(mode: str, file: str, server: list[str]) -> None:
    target = server[0] if len(server) == 1 else StdioTransport(server[0], server[1:])
    progress = []

    async def on_progress(done: float, total: float | None, message: str | None) -> None:
        progress.append([done, total])

    async with Client(target, mode=mode, elicitation_handler=answer) as client:
        added = await client.call_tool("add", {"a": 2, "b": 3})
        wrong = await client.call_tool("add", {"a": 2, "b": "three"}, raise_on_error=False)
        [text] = await client.read_resource("test://static-text")
        [part] = await client.read_resource("test://template/123/data")
        prompt = await client.get_prompt("test_prompt_with_arguments", {"arg1": "x", "arg2": "y"})
        reference = PromptReference(name="test_prompt_with_arguments")
        completed = await client.complete(reference, {"name": "arg1", "value": "te"})
        await client.call_tool("test_tool_with_progress", {}, progress_handler=on_progress)
        greeted = await client.call_tool(
            "test_input_required_result_elicitation", {}, raise_on_error=False
        )
        found = {
            "version": client.protocol_version,
            "tools": [tool.name for tool in await client.list_tools()],
            "added": added.structured_content,
            "is wrong": wrong.is_error,
            "wrong": wrong.content[0].text,
            "text": text.text,
            "part": json.loads(part.text)["id"],
            "prompt": prompt.messages[0].content.text,
            "completed": completed.values,
            "progress": progress,
            "greeted": greeted.content[0].text,
            "cancelled": await cancel(client, Path(file)) if file else None,
        }
    print(json.dumps(found))


asyncio.run(main(*sys.argv[1:3], sys.argv[3:]))
