"""Calls tests/mcp_clients/server.py by the official Python SDK, and prints what it got as JSON.

python_sdk.py legacy|auto FILE SERVER

SERVER is a URL, or a command with its arguments: over stdio. Cancels a call unless FILE is empty.
"""

import asyncio
import json
import sys
from pathlib import Path

import anyio
from mcp import Client, StdioServerParameters
from mcp_types import ElicitResult, PromptReference


async def answer(context: object, params: object) -> ElicitResult:
    return ElicitResult(action="accept", content={"name": "Ada"})


async def cancel(client: Client, file: Path) -> str:
    """Cancels a call that has reported its progress. The function leaves a file at its end."""
    started = anyio.Event()

    async def on_progress(*_: object) -> None:
        started.set()

    async with anyio.create_task_group() as group:
        arguments = {"path": str(file)}
        group.start_soon(lambda: client.call_tool("wait", arguments, progress_callback=on_progress))
        await started.wait()
        group.cancel_scope.cancel()
    while not file.exists():
        await anyio.sleep(0.01)
    return file.read_text()


async def main(mode: str, file: str, server: list[str]) -> None:
    target = (
        server[0] if len(server) == 1 else StdioServerParameters(command=server[0], args=server[1:])
    )
    progress = []

    async def on_progress(done: float, total: float | None, message: str | None) -> None:
        progress.append([done, total])

    async with Client(target, mode=mode, elicitation_callback=answer) as client:
        added = await client.call_tool("add", {"a": 2, "b": 3})
        wrong = await client.call_tool("add", {"a": 2, "b": "three"})
        text = await client.read_resource("test://static-text")
        part = await client.read_resource("test://template/123/data")
        prompt = await client.get_prompt("test_prompt_with_arguments", {"arg1": "x", "arg2": "y"})
        reference = PromptReference(name="test_prompt_with_arguments")
        completed = await client.complete(reference, {"name": "arg1", "value": "te"})
        await client.call_tool("test_tool_with_progress", {}, progress_callback=on_progress)
        greeted = await client.call_tool("test_input_required_result_elicitation", {})
        found = {
            "version": client.protocol_version,
            "tools": [tool.name for tool in (await client.list_tools()).tools],
            "added": added.structured_content,
            "is wrong": wrong.is_error,
            "wrong": wrong.content[0].text,
            "text": text.contents[0].text,
            "part": text and json.loads(part.contents[0].text)["id"],
            "prompt": prompt.messages[0].content.text,
            "completed": completed.completion.values,
            "progress": progress,
            "greeted": greeted.content[0].text,
            "cancelled": await cancel(client, Path(file)) if file else None,
        }
    print(json.dumps(found))


asyncio.run(main(*sys.argv[1:3], sys.argv[3:]))
