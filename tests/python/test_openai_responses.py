"""``/v1/responses`` of OpenAI's API, called with the official client."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from openai_models import CALL, TOOL, Models, client, models, openai, served

__all__ = ["client", "models", "openai", "served"]


def test_a_response(client: Any, models: Models) -> None:
    response = client.responses.create(model="echo", input="one two", instructions="be brief")
    assert (response.output_text, response.status) == ("be brief one two ", "completed")
    assert (response.object, response.instructions) == ("response", "be brief")
    items = [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}]
    short = client.responses.create(model="echo", input=[*items, *items], max_output_tokens=1)
    assert (short.output_text, short.status) == ("hi ", "incomplete")
    assert short.incomplete_details.reason == "max_output_tokens"
    whole = client.responses.create(model="whole", input="x", temperature=0.5)
    assert (whole.output_text, whole.usage.total_tokens) == ("whole", 6)
    assert whole.usage.input_tokens_details.cached_tokens == 0
    assert whole.usage.output_tokens_details.reasoning_tokens == 0
    assert (whole.status, whole.incomplete_details.reason) == ("incomplete", "content_filter")
    assert models.calls[-1]["temperature"] == 0.5


def test_a_streamed_response(client: Any) -> None:
    with client.responses.stream(model="echo", input="one two") as stream:
        events = list(stream)
        response = stream.get_final_response()
    assert response.output_text == "one two " and response.status == "completed"
    assert [it.type for it in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [it.sequence_number for it in events] == list(range(len(events)))
    with client.responses.stream(model="echo", input=" ") as stream:
        assert stream.get_final_response().output_text == ""


def test_a_refusal(client: Any) -> None:
    response = client.responses.create(model="refuses", input="x")
    [part] = response.output[0].content
    assert (part.type, part.refusal, response.output_text) == ("refusal", "I can't help.", "")
    with client.responses.stream(model="refuses", input="x") as stream:
        events = list(stream)
        [streamed] = stream.get_final_response().output[0].content
    assert streamed.refusal == part.refusal
    assert [it.type for it in events][2:7] == [
        "response.output_item.added",
        "response.content_part.added",
        "response.refusal.delta",
        "response.refusal.done",
        "response.content_part.done",
    ]


def test_options_that_ask_for_nothing(client: Any) -> None:
    options = {"include": [], "background": False, "reasoning": {"effort": None}}
    options |= {"text": {"verbosity": None}, "stream_options": {"include_obfuscation": False}}
    assert client.responses.create(model="echo", input="a", **options).output_text == "a "


def test_calls_of_one_turn_are_one_message(client: Any, models: Models) -> None:
    calls: Any = [
        {"type": "function_call", "call_id": str(it), "name": "add", "arguments": "{}"}
        for it in range(2)
    ]
    outputs: Any = [
        {"type": "function_call_output", "call_id": it["call_id"], "output": "4"} for it in calls
    ]
    begun = {"role": "assistant", "content": "let me see"}
    tools = [{"type": "function", **TOOL}]
    for first in ([], [begun]):
        client.responses.create(model="tools", input=[*first, *calls, *outputs], tools=tools)
        message, *results = models.calls[-1][0]
        assert [it["id"] for it in message["tool_calls"]] == ["0", "1"]
        assert message["content"] == (begun["content"] if first else None)
        assert [it["tool_call_id"] for it in results] == ["0", "1"]


def test_a_response_that_calls_a_tool(client: Any, models: Models) -> None:
    tools = [{"type": "function", **TOOL}]
    response = client.responses.create(
        model="tools", input="2?", tools=tools, tool_choice={"type": "function", "name": "add"}
    )
    [call] = response.output
    assert (call.type, call.name, call.arguments) == ("function_call", *CALL.values())
    chat_tools = [{"type": "function", "function": TOOL}]
    choice = {"type": "function", "function": {"name": "add"}}
    assert models.calls[0][1:] == (chat_tools, choice)
    with client.responses.stream(model="tools", input="2?", tools=tools) as stream:
        [streamed] = stream.get_final_response().output
    assert (streamed.name, streamed.arguments) == (call.name, call.arguments)
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "4"}
    sent = call.model_dump(exclude_none=True)
    client.responses.create(model="tools", input=[sent, output], tools=tools)
    assert models.calls[-1][0] == [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": call.call_id, "type": "function", "function": CALL}],
        },
        {"role": "tool", "tool_call_id": call.call_id, "content": "4"},
    ]


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"reasoning": {"effort": "low"}}, "reasoning_effort"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"input": [{"type": "item_reference", "id": "1"}]}, "input"),
        ({"input": 5}, "input"),
        ({"text": {"format": {"type": "json_object"}}}, "response_format"),
        ({"text": 5}, "text"),
        ({"tools": 5}, "tools"),
        ({"reasoning": 5}, "reasoning"),
        ({"instructions": 5}, "messages[0]"),
    ],
)
def test_what_responses_do_not_take(client: Any, options: Any, param: str) -> None:
    request = {"model": "echo", "input": "hi", **options}
    found = httpx.post(f"{client.base_url}responses", json=request)
    assert (found.status_code, found.json()["error"]["param"]) == (400, param), found.text


def test_a_failed_response(client: Any, openai: Any) -> None:
    with pytest.raises(openai.APIStatusError, match="out of paper"):
        client.responses.create(model="fails", input="0 7")
    events = list(client.responses.create(model="fails", input="1 7", stream=True))
    assert (events[-1].type, events[-1].message) == ("error", "out of paper")
