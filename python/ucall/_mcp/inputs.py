"""Input that a call asks its caller for.

A function that needs input ends its call: the reply lists the requests, and the client calls again
with its answers. The function then runs again from its start, and finds the answers. The answers of
earlier rounds come back in the sealed state, so that the server remembers nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, NamedTuple, Protocol

from ucall._mcp import forms, state, versions
from ucall._mcp.texts import INVALID_PARAMS
from ucall.errors import RPCError
from ucall.types.messages import kind_of

__all__ = ["REPLY", "Reply", "ask", "client_capabilities", "kept_state", "key_of"]

#: The code of a `Reply`. It never leaves the server: it replaces the reply to a call.
REPLY = -32099

_MISSING_CAPABILITY = -32021
_CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
_ACTIONS = ("accept", "decline", "cancel")


class Caller(Protocol):
    """The part of `ucall.Context` that is read here."""

    @property
    def method(self) -> str: ...

    @property
    def user(self) -> Any: ...

    @property
    def _mcp(self) -> tuple[dict[str, Any], str] | None: ...


class Reply(RPCError):
    """Ends a call with this reply, as it is.

    Args:
        member: ``{"result": …}`` or ``{"error": …}``.
    """

    code = REPLY

    def __init__(self, member: dict[str, Any]) -> None:
        super().__init__(REPLY, "input required", member)
        self.member = member


class Asked(RPCError):
    """Ends a call of a client of an older version, which can be asked while its call is open.

    Where nothing asks it, the client gets this error.
    """

    code = -32600

    def __init__(
        self, requests: dict[str, Any], answers: dict[str, Any], kept: Any, expires_s: float
    ) -> None:
        problem = f"asks for input: use version {versions.NEWEST} of MCP, or serve it in a thread"
        super().__init__(-32600, "Invalid Request", f"this function {problem} or async")
        self.requests = requests
        self.answers = answers
        self.kept = kept
        self.expires_s = expires_s


#: The answers to earlier rounds of a call of an older version, and the value that it has kept.
earlier: ContextVar[tuple[dict[str, Any], Any]] = ContextVar("earlier", default=({}, None))


class _Rounds(NamedTuple):
    """What the caller sent of the earlier rounds."""

    params: dict[str, Any]
    answers: dict[str, Any]
    kept: Any
    #: Whether the call stays open while its client is asked.
    is_open: bool


def ask(
    ctx: Caller, requests: Mapping[str, Mapping[str, Any]], kept: Any, expires_s: float
) -> dict[str, Any]:
    """The answers to the requests, or a `Reply` that asks for those that are missing."""
    rounds = _rounds(ctx)
    missing = {key: dict(it) for key, it in requests.items() if key not in rounds.answers}
    if not missing:
        return {key: _checked(key, requests[key], rounds.answers[key]) for key in requests}
    kept = rounds.kept if kept is None else kept
    if rounds.is_open:
        raise Asked(missing, rounds.answers, kept, expires_s)
    _check_capabilities(missing, client_capabilities(ctx))
    result = {
        "resultType": "input_required",
        "inputRequests": missing,
        "requestState": state.seal([rounds.answers, kept], expires_s, ctx, rounds.params),
    }
    raise Reply({"result": result})


def kept_state(ctx: Caller) -> Any:
    """The value that an earlier round of this call has kept."""
    return _rounds(ctx).kept


def client_capabilities(ctx: Caller) -> dict[str, Any]:
    """What the client of a call can do."""
    params, _ = _request(ctx)
    meta = params.get("_meta")
    found = meta.get(_CAPABILITIES) if isinstance(meta, dict) else None
    return found if isinstance(found, dict) else {}


def key_of(request: Mapping[str, Any]) -> str:
    """A key for a request that has none of its own: equal for equal requests."""
    text = json.dumps(request, sort_keys=True)
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]


def _request(ctx: Caller) -> tuple[dict[str, Any], str]:
    request = ctx._mcp
    if request is None:
        raise RPCError(-32600, "Invalid Request", "this function asks for input: call it over MCP")
    return request


def _rounds(ctx: Caller) -> _Rounds:
    """Opens what the caller sent of the earlier rounds.

    Raises:
        Reply: It is invalid.
    """
    params, version = _request(ctx)
    if versions.era(version).has_handshake:
        return _Rounds(params, *earlier.get(), is_open=True)
    responses = params.get("inputResponses", {})
    if not isinstance(responses, dict):
        raise _refusal(f"inputResponses: expected an object, got {kind_of(responses)}")
    text = params.get("requestState")
    if text is None:
        return _Rounds(params, responses, None, False)
    if not isinstance(text, str):
        raise _refusal(f"requestState: expected a string, got {kind_of(text)}")
    try:
        answers, kept = state.open_state(text, ctx, params)
    except state.InvalidState as invalid:
        raise _refusal(f"requestState: {invalid}") from None
    # An answer that was sealed stays as it is.
    return _Rounds(params, responses | answers, kept, False)


def _checked(key: str, request: Mapping[str, Any], answer: Any) -> Any:
    """An answer that has the form of its request's result.

    Raises:
        Reply: It has not.
    """
    if isinstance(answer, RPCError):
        raise answer
    where = f"inputResponses.{key}"
    if not isinstance(answer, dict):
        raise _refusal(f"{where}: expected an object, got {kind_of(answer)}")
    if request.get("method") != "elicitation/create":
        return answer
    action = answer.get("action")
    if action not in _ACTIONS:
        expected = ", ".join(map(repr, _ACTIONS))
        raise _refusal(f"{where}.action: expected one of {expected}")
    params = request.get("params", {})
    if action == "accept" and "requestedSchema" in params:
        content = answer.get("content")
        problems = forms.problems(content, params["requestedSchema"], f"{where}.content")
        if problems:
            raise _refusal("\n".join(problems))
    return answer


def _check_capabilities(
    requests: Mapping[str, Mapping[str, Any]], capabilities: Mapping[str, Any]
) -> None:
    required: dict[str, Any] = {}
    for request in requests.values():
        name, mode = _capability(request)
        declared = capabilities.get(name)
        modes = declared or {"form": {}} if isinstance(declared, dict) else {}
        if not isinstance(declared, dict) or (mode and mode not in modes):
            required.setdefault(name, {}).update({mode: {}} if mode else {})
    if required:
        error = {
            "code": _MISSING_CAPABILITY,
            "message": f"The client lacks a capability: {', '.join(required)}",
            "data": {"requiredCapabilities": required},
        }
        raise Reply({"error": error})


def _capability(request: Mapping[str, Any]) -> tuple[str, str | None]:
    """The capability that a request takes, and its mode."""
    name = str(request.get("method")).partition("/")[0]
    if name != "elicitation":
        return name, None
    return name, request.get("params", {}).get("mode", "form")


def _refusal(problem: str) -> Reply:
    error = {"code": INVALID_PARAMS, "message": "Invalid params", "data": problem}
    return Reply({"error": error})
