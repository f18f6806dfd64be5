"""``POST /v1/responses``, as far as it needs no memory of earlier responses."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any

from ucall._openai.chat import Answers, begin, checked_messages
from ucall._openai.choices import Choice, new_id, usage_of
from ucall._openai.errors import ApiError
from ucall._openai.events import FAILURES, as_api_error, event, event_response
from ucall._openai.functions import Caller, Function, Json, model_named
from ucall._openai.options import members_of, object_in

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ucall._core import HttpRequest
    from ucall._routes.response import HttpResponse

__all__ = ["respond"]

_HANDLED = frozenset(["messages", "model", "max_output_tokens", "stream", "stream_options"])
#: Reasons for an answer that is not whole.
_CUTS = {"length": "max_output_tokens", "content_filter": "content_filter"}


async def respond(
    request: HttpRequest, models: Mapping[str, Function], caller: Caller
) -> HttpResponse | Json:
    """Answers a request, by events if it asks for them."""
    members = members_of(request)
    function = model_named(models, members)
    answers = begin(caller, request, function, _as_chat(members), _HANDLED)
    response = _Response(members, answers)
    if members.get("stream"):
        return await event_response(response.events())
    async with contextlib.aclosing(answers.deltas):
        async for _ in answers.deltas:
            pass
    return response.ended()


def _as_chat(members: Json) -> Json:
    """The request as one of a chat."""
    chat = dict(members)
    messages = _messages(_items(chat.pop("input", None)))
    if "instructions" in chat:
        messages = [{"role": "system", "content": chat.pop("instructions")}, *messages]
    chat["messages"] = checked_messages(messages)
    if "tools" in chat:
        chat["tools"] = _tools(chat["tools"])
    choice = chat.get("tool_choice")
    if isinstance(choice, dict) and "name" in choice:
        chat["tool_choice"] = {"type": "function", "function": {"name": choice["name"]}}
    text = object_in(chat, "text")
    form = text.pop("format", None)
    if isinstance(form, dict) and form.get("type") == "json_schema":
        schema = {name: form[name] for name in form if name != "type"}
        form = {"type": "json_schema", "json_schema": schema}
    if form is not None:
        chat["response_format"] = form
    chat |= text | {f"reasoning_{name}": it for name, it in object_in(chat, "reasoning").items()}
    left_out = ("reasoning", "text")
    return {name: it for name, it in chat.items() if name not in left_out and it is not None}


def _items(items: object) -> list[Any]:
    if isinstance(items, str):
        return [{"role": "user", "content": items}]
    if not isinstance(items, list) or not all(isinstance(it, dict) for it in items):
        raise ApiError("input: expected a text, or a list of items", "input")
    return items


def _messages(items: list[Any]) -> list[Json]:
    """The items of the input as messages of a chat, of which one has the calls of a turn."""
    messages: list[Json] = []
    for message in map(_message, items):
        calls = message.get("tool_calls")
        if calls and messages and messages[-1].get("role") == "assistant":
            last = messages[-1]
            messages[-1] = {**last, "tool_calls": [*last.get("tool_calls", []), *calls]}
        else:
            messages.append(message)
    return messages


def _message(item: Json) -> Json:
    """An item of the input as a message of a chat."""
    kind = item.get("type", "message")
    if kind == "function_call":
        function = {"name": item.get("name"), "arguments": item.get("arguments")}
        call = {"id": item.get("call_id"), "type": "function", "function": function}
        return {"role": "assistant", "content": None, "tool_calls": [call]}
    if kind == "function_call_output":
        output = item.get("output")
        return {"role": "tool", "tool_call_id": item.get("call_id"), "content": output}
    if kind != "message":
        raise ApiError(f"input: the model takes no items of type {kind!r}", "input")
    return {"role": item.get("role"), "content": item.get("content")}


def _tools(tools: Any) -> list[Json]:
    if not isinstance(tools, list) or not all(isinstance(it, dict) for it in tools):
        raise ApiError("tools: expected a list of objects", "tools")
    if any(it.get("type") != "function" for it in tools):
        raise ApiError("tools: the model takes no tools but functions", "tools")
    return [
        {"type": "function", "function": {name: it[name] for name in it if name != "type"}}
        for it in tools
    ]


class _Response:
    """A response while its answer is made."""

    def __init__(self, members: Json, answers: Answers) -> None:
        self._answers = answers
        self._choice: Choice = answers.choices[0]
        self._message_id = new_id("msg")
        echoed = ("instructions", "max_output_tokens", "temperature", "top_p")
        self._head = {
            "id": new_id("resp"),
            "object": "response",
            "created_at": int(time.time()),
            "model": members["model"],
            "error": None,
            "metadata": members.get("metadata", {}),
            "parallel_tool_calls": members.get("parallel_tool_calls", True),
            "tool_choice": members.get("tool_choice", "auto"),
            "tools": members.get("tools", []),
            **{name: members.get(name) for name in echoed},
        }
        self._number = 0

    def ended(self) -> Json:
        """The whole response."""
        reason = _CUTS.get(self._choice.finish_reason)
        usage = usage_of([self._choice])
        counts: Json | None = None
        if usage is not None:
            prompt, completion = usage
            counts = {"input_tokens": prompt, "output_tokens": completion}
            counts["total_tokens"] = prompt + completion
            counts["input_tokens_details"] = {"cached_tokens": 0}
            counts["output_tokens_details"] = {"reasoning_tokens": 0}
        return {
            **self._head,
            "status": "incomplete" if reason else "completed",
            "incomplete_details": {"reason": reason} if reason else None,
            "output": [*self._messages(), *map(_call_item, self._choice.tool_calls)],
            "usage": counts,
        }

    def _messages(self) -> list[Json]:
        choice = self._choice
        refusal = choice.others.get("refusal")
        parts = [{"type": "refusal", "refusal": refusal}] if refusal else []
        if choice.texts or not (parts or choice.tool_calls):
            parts = [_part(choice.text), *parts]
        return [self._message(parts, "completed")] if parts else []

    def _message(self, content: list[Json], status: str) -> Json:
        head = {"id": self._message_id, "type": "message", "role": "assistant"}
        return {**head, "status": status, "content": content}

    async def events(self) -> AsyncGenerator[bytes]:
        """Yields the events of the response."""
        has_begun = False
        try:
            async with contextlib.aclosing(self._answers.deltas):
                async for _, delta in self._answers.deltas:
                    if not has_begun:
                        has_begun = True
                        begun = {**self._head, "status": "in_progress", "output": []}
                        yield self._event("response.created", response=begun)
                        yield self._event("response.in_progress", response=begun)
                    if delta is not None and (text := delta.get("content")):
                        if len(self._choice.texts) == 1:
                            for it in self._text_begins():
                                yield it
                        yield self._text_event("delta", delta=text)
        except FAILURES as error:
            if not has_begun:
                raise
            failure = as_api_error(error)
            error_members = {"code": failure.code, "message": str(failure), "param": failure.param}
            yield self._event("error", **error_members)
            return
        for it in self._ends():
            yield it

    def _text_begins(self) -> list[bytes]:
        return [self._message_begins(), self._part_event("added", 0, _part(""))]

    def _message_begins(self) -> bytes:
        item = self._message([], "in_progress")
        return self._event("response.output_item.added", item=item, output_index=0)

    def _part_event(self, kind: str, index: int, part: Json) -> bytes:
        ids = {"item_id": self._message_id, "output_index": 0, "content_index": index}
        return self._event(f"response.content_part.{kind}", part=part, **ids)

    def _text_event(self, kind: str, **members: object) -> bytes:
        ids = {"item_id": self._message_id, "output_index": 0, "content_index": 0}
        return self._event(f"response.output_text.{kind}", **ids, logprobs=[], **members)

    def _ends(self) -> list[bytes]:
        ended, events = self.ended(), []
        for index, item in enumerate(ended["output"]):
            place = {"output_index": index}
            if item["type"] == "message":
                events += self._message_ends(item["content"])
            else:
                arguments, ids = item["arguments"], {"item_id": item["id"], **place}
                begun = {**item, "status": "in_progress", "arguments": ""}
                kind = "response.function_call_arguments"
                events.append(self._event("response.output_item.added", item=begun, **place))
                events.append(self._event(f"{kind}.delta", delta=arguments, **ids))
                named = {"arguments": arguments, "name": item["name"]}
                events.append(self._event(f"{kind}.done", **named, **ids))
            events.append(self._event("response.output_item.done", item=item, **place))
        return [*events, self._event(f"response.{ended['status']}", response=ended)]

    def _message_ends(self, parts: list[Json]) -> list[bytes]:
        events = [] if self._choice.texts else [self._message_begins()]
        for index, part in enumerate(parts):
            if part["type"] == "output_text":
                if not self._choice.texts:
                    events.append(self._part_event("added", index, _part("")))
                events.append(self._text_event("done", text=part["text"]))
            else:
                ids = {"item_id": self._message_id, "output_index": 0, "content_index": index}
                refusal = part["refusal"]
                events.append(self._part_event("added", index, {**part, "refusal": ""}))
                events.append(self._event("response.refusal.delta", delta=refusal, **ids))
                events.append(self._event("response.refusal.done", refusal=refusal, **ids))
            events.append(self._part_event("done", index, part))
        return events

    def _event(self, kind: str, **members: object) -> bytes:
        number, self._number = self._number, self._number + 1
        return event({"type": kind, "sequence_number": number, **members}, kind)


def _part(text: str) -> Json:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _call_item(call: Json) -> Json:
    head = {"id": new_id("fc"), "type": "function_call", "status": "completed"}
    return {**head, "call_id": call["id"], **call["function"]}
