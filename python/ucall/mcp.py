"""For functions that are served over the Model Context Protocol: see docs/mcp.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypedDict

from ucall._mcp import forms, inputs
from ucall._mcp import log as _log
from ucall._mcp import state as _states

if TYPE_CHECKING:
    from ucall._core import Context

__all__ = [
    "Answer",
    "Message",
    "ToolResult",
    "ask",
    "client_capabilities",
    "elicit",
    "log",
    "set_state_key",
    "state",
]


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


class Message(TypedDict):
    """A message of a prompt: the role, and a text or a block of content."""

    role: Literal["user", "assistant"]
    content: str | dict[str, Any]


class Answer(NamedTuple):
    """What the user has done with a question.

    Attributes:
        action: ``"accept"``, ``"decline"`` or ``"cancel"``.
        content: The fields of the form; empty unless the action is ``"accept"``.
    """

    action: Literal["accept", "decline", "cancel"]
    content: dict[str, Any]


def elicit(
    ctx: Context,
    message: str,
    fields: Mapping[str, Any] | None = None,
    *,
    url: str | None = None,
    key: str | None = None,
    expires_s: float = 600,
) -> Answer:
    """Asks the user of the client, within a tool, a prompt or a resource::

        @server.tool
        def delete(path: str, ctx: ucall.Context) -> str:
            answer = ucall.mcp.elicit(ctx, f"Delete {path}?", {"sure": bool})
            if not answer.content.get("sure"):
                return "kept"
            os.remove(path)
            return "deleted"

    It does not wait. Without an answer it raises, which ends the call: do not catch it. The client
    asks the user and calls again, and the function runs again from its start, so what it does
    before its last question should bear repetition.

    Args:
        ctx: The context of the call.
        message: The question.
        fields: The fields of the form: ``str``, ``int``, ``float``, ``bool``, a Literal or an Enum
            of texts, a list of one, ``T | None`` for an optional one, or a JSON Schema as a dict.
        url: In place of fields: where the user is sent for what must not pass through the client,
            such as a password.
        key: Names the question; by default the question itself does. Needed if its text differs
            from run to run.
        expires_s: How long the user may take.

    Raises:
        ucall.RPCError: There is no answer yet, or a wrong one; or the call has not come by MCP, or
            from a client that cannot ask its user.
        TypeError: A field has another type, or both or neither of fields and url are given.
    """
    if (fields is None) == (url is None):
        raise TypeError("elicit: expected fields or url")
    params: dict[str, Any] = {"message": message}
    if fields is not None:
        params = {"mode": "form", **params, "requestedSchema": forms.form(fields)}
    else:
        params = {"mode": "url", **params, "url": url}
    request = {"method": "elicitation/create", "params": params}
    key = inputs.key_of(request) if key is None else key
    answer = inputs.ask(ctx, {key: request}, None, expires_s)[key]
    content = answer.get("content") if answer["action"] == "accept" else None
    return Answer(answer["action"], content if isinstance(content, dict) else {})


def ask(
    ctx: Context,
    requests: Mapping[str, Mapping[str, Any]],
    *,
    state: object = None,
    expires_s: float = 600,
) -> dict[str, Any]:
    """Asks the client for several things in one round, or for other things than `elicit` does.

    Args:
        ctx: The context of the call.
        requests: By keys of your choice, objects with ``method`` (``elicitation/create``,
            ``sampling/createMessage`` or ``roots/list``) and ``params``, as the specification
            describes them.
        state: A value of JSON that `state` returns in the next round: the client can read it, and
            cannot change it. It serves for this call by this user alone, yet it may be sent twice.
        expires_s: How long the client may take.

    Returns:
        The client's results by the same keys.

    Raises:
        ucall.RPCError: As for `elicit`.
        TypeError: The state is no value of JSON, or the user has no identity.
    """
    return inputs.ask(ctx, requests, state, expires_s)


def state(ctx: Context) -> Any:
    """The value that `ask` has kept in an earlier round of this call; None in the first."""
    return inputs.kept_state(ctx)


def log(
    ctx: Context,
    level: Literal["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"],
    data: Any,
    logger: str | None = None,
) -> None:
    """Sends the client of a call a log message, if it asks for those of its level.

    From an async function or a thread it leaves at once, from a plain function with its reply. It
    does nothing for calls that have not come by MCP. What the operator should know belongs into
    the server's own log.

    Args:
        ctx: The context of the call.
        level: How severe it is.
        data: A value of JSON.
        logger: What the message is of.

    Raises:
        TypeError: ``data`` is no value of JSON.
        ValueError: There is no such level.
    """
    _log.log(ctx, level, data, logger)


def client_capabilities(ctx: Context) -> dict[str, Any]:
    """What the client can do, such as ``{"elicitation": {}}``, by the names of the specification.

    A client of a version before 2026-07-28 does not say it with its calls: the result is empty.
    """
    return inputs.client_capabilities(ctx)


def set_state_key(key: bytes) -> None:
    """Has this process protect the states of `ask` and `elicit` by a key of 32 bytes or more.

    Give all hosts behind one address the same key, so that each can answer a question that another
    has asked. The workers of one host need none.

    Raises:
        TypeError: The key is not bytes.
        ValueError: It is too short.
    """
    _states.set_key(key)
