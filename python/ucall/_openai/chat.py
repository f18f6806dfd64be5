"""``POST /v1/chat/completions``."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any, NamedTuple

from ucall._openai.choices import Choice, merged, new_id, usage_of
from ucall._openai.errors import ApiError
from ucall._openai.events import FAILURES, as_api_error, event, event_response
from ucall._openai.functions import Caller, Function, Json, model_named
from ucall._openai.options import (
    arguments_of,
    checked_count,
    members_of,
    object_in,
    stops_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ucall._core import HttpRequest
    from ucall._routes.response import HttpResponse

__all__ = ["Answers", "begin", "checked_messages", "complete"]

#: As OpenAI has it.
_CHOICES_MAX = 128
_HANDLED = frozenset(
    {
        *("max_completion_tokens", "max_tokens", "messages", "model", "n", "stop"),
        *("stream", "stream_options"),
    }
)


class Answers(NamedTuple):
    """The answers to a request, while they are made."""

    choices: list[Choice]
    #: What is added to a choice, by its number, and None at its end.
    deltas: AsyncGenerator[tuple[int, Json | None]]


async def complete(
    request: HttpRequest, models: Mapping[str, Function], caller: Caller
) -> HttpResponse | Json:
    """Answers a request, by events if it asks for them."""
    members = members_of(request)
    function = model_named(models, members)
    messages = checked_messages(members.get("messages"))
    answers = begin(caller, request, function, {**members, "messages": messages}, _HANDLED)
    head = {"id": new_id("chatcmpl"), "created": int(time.time()), "model": members["model"]}
    if members.get("stream"):
        wants_usage = object_in(members, "stream_options").get("include_usage") is True
        return await event_response(_events(head, answers, wants_usage))
    async with contextlib.aclosing(answers.deltas):
        async for _ in answers.deltas:
            pass
    choices = [
        {
            "index": index,
            "message": _message(it),
            "logprobs": None,
            "finish_reason": it.finish_reason,
        }
        for index, it in enumerate(answers.choices)
    ]
    return {**head, "object": "chat.completion", "choices": choices, **_usage(answers)}


def begin(
    caller: Caller, request: HttpRequest, function: Function, members: Json, handled: frozenset[str]
) -> Answers:
    """Begins to make the answers that a request asks for.

    Raises:
        ApiError: A member is invalid, or the function does not take it.
    """
    asked = {name: members[name] for name in handled & members.keys()}
    count = checked_count(asked, "n", _CHOICES_MAX)
    arguments = arguments_of(function, members, handled)
    arguments["messages"] = members["messages"]
    stops = stops_of(asked)
    if stops and function.takes("stop"):
        arguments["stop"], stops = stops, []
    tokens_max = None
    for name in ("max_completion_tokens", "max_tokens", "max_output_tokens"):
        if name in asked:
            if not function.takes("max_tokens"):
                raise ApiError(f"{name}: the model does not take it", name)
            tokens_max = arguments["max_tokens"] = checked_count(asked, name, 1 << 53)
            break
    choices = [Choice(stops, tokens_max) for _ in range(count)]
    items = [it.deltas(_items(caller, request, function, arguments)) for it in choices]
    return Answers(choices, merged(items))


async def _items(
    caller: Caller, request: HttpRequest, function: Function, arguments: Json
) -> AsyncGenerator[Any]:
    with caller.calls_of(request) as calls:
        async with contextlib.aclosing(calls.items(function, arguments)) as items:
            async for item in items:
                yield item


def checked_messages(messages: object) -> list[Json]:
    """The messages, with the parts of a text as one text.

    Raises:
        ApiError: They are none.
    """
    if not isinstance(messages, list) or not messages:
        raise ApiError("messages: expected at least one", "messages")
    return [_checked_message(it, f"messages[{at}]") for at, it in enumerate(messages)]


def _checked_message(message: Any, place: str) -> Json:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise ApiError(f"{place}: expected an object with a role", place)
    content = message.get("content")
    if isinstance(content, str) or (content is None and message.get("tool_calls")):
        return message
    if not isinstance(content, list) or not all(isinstance(it, dict) for it in content):
        raise ApiError(f"{place}.content: expected a text, or a list of parts", place)
    texts = [it["text"] for it in content if isinstance(it.get("text"), str)]
    is_text = len(texts) == len(content)
    return {**message, "content": "".join(texts)} if is_text else message


def _message(choice: Choice) -> Json:
    calls = {"tool_calls": choice.tool_calls} if choice.tool_calls else {}
    content = choice.text if choice.texts or not calls else None
    return {"role": "assistant", "content": content, "refusal": None, **choice.others, **calls}


def _usage(answers: Answers) -> Json:
    usage = usage_of(answers.choices)
    if usage is None:
        return {}
    prompt, completion = usage
    counts = {"prompt_tokens": prompt, "completion_tokens": completion}
    return {"usage": {**counts, "total_tokens": prompt + completion}}


async def _events(head: Json, answers: Answers, wants_usage: bool) -> AsyncGenerator[bytes]:
    head = {**head, "object": "chat.completion.chunk"}
    begun: set[int] = set()

    def chunk(index: int, delta: Json, reason: str | None = None) -> bytes:
        choice = {"index": index, "delta": delta, "finish_reason": reason}
        return event({**head, "choices": [choice]})

    try:
        async with contextlib.aclosing(answers.deltas):
            async for index, delta in answers.deltas:
                if index not in begun:
                    begun.add(index)
                    yield chunk(index, {"role": "assistant", "content": ""})
                if delta is None:
                    yield chunk(index, {}, answers.choices[index].finish_reason)
                else:
                    yield chunk(index, delta)
    except FAILURES as error:
        if not begun:  # The response has a status still.
            raise
        yield event(as_api_error(error).body)
        return
    if wants_usage and (usage := _usage(answers)):
        yield event({**head, "choices": [], **usage})
    yield b"data: [DONE]\n\n"
