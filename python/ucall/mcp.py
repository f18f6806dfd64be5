"""Types for tools of the Model Context Protocol: see docs/mcp.md."""

from __future__ import annotations

from typing import Any, TypedDict

__all__ = ["ToolResult"]


class ToolResult(TypedDict, total=False):
    """A whole result of a tool, for a function that chooses its content itself::

        @server.tool
        def speak(text: str) -> ToolResult:
            sound = {"type": "audio", "data": synthesize(text), "mimeType": "audio/wav"}
            return {"content": [{"type": "text", "text": text}, sound]}

    Bytes in it are sent as base64, as in all results. Calls over plain JSON-RPC get it as it is.

    Attributes:
        content: The blocks, as the specification describes them: text, images, audio, links to
            resources, embedded resources.
        structuredContent: The result for programs.
        isError: Whether the tool failed, so that the model should try something else.
        _meta: Further members for the client.
    """

    content: list[dict[str, Any]]
    structuredContent: Any
    isError: bool
    _meta: dict[str, Any]
