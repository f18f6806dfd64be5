"""Prompts of MCP, and the completion of their arguments: docs/mcp.md."""

from __future__ import annotations

import enum
from typing import Annotated, Any, Literal

import pytest
from mcp_offers import OLDER, Offers

import ucall
from ucall.mcp import Message

FRUIT = {"type": "image", "data": "AA==", "mimeType": "image/png"}


class Tone(enum.Enum):
    CALM = "calm"
    CROSS = "cross"


def desk() -> Offers:
    offers = Offers()

    @offers.prompt
    def greet() -> str:
        """Says hello."""
        return "Say hello."

    @offers.prompt(title="Review", complete={"language": ["C", "C++", "Python"]})
    def review(
        code: Annotated[str, "The code"], language: str = "Python", strict: bool = False
    ) -> list[str | Message]:
        return [f"{language}, {strict}: {code}", {"role": "assistant", "content": "Yes?"}]

    @offers.prompt(name="shout-out")
    async def shout(tone: Tone, size: Literal[1, 2], ctx: ucall.Context) -> dict[str, Any]:
        return {"type": "text", "text": f"{tone.name} {size} {ctx.user}"}

    @offers.prompt
    def look() -> list[Any]:
        return [FRUIT, {"role": "assistant", "content": FRUIT}]

    return offers


def test_prompts_are_listed() -> None:
    offers = desk()
    listed = offers.call("prompts/list")
    assert listed["prompts"] == [
        {"name": "greet", "description": "Says hello."},
        {
            "name": "review",
            "title": "Review",
            "arguments": [
                {"name": "code", "description": "The code", "required": True},
                {"name": "language", "required": False},
                {"name": "strict", "required": False},
            ],
        },
        {
            "name": "shout-out",
            "arguments": [{"name": "tone", "required": True}, {"name": "size", "required": True}],
        },
        {"name": "look"},
    ]
    assert [listed[it] for it in ("resultType", "ttlMs", "cacheScope")] == ["complete", 0, "public"]
    assert offers.registry.capabilities.keys() == {"prompts", "completions"}


def said(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": {"type": "text", "text": text}}


@pytest.mark.parametrize(
    ("name", "arguments", "messages"),
    [
        ("greet", None, [said("user", "Say hello.")]),
        ("greet", {}, [said("user", "Say hello.")]),
        (
            "review",
            {"code": "x", "strict": "true"},
            [said("user", "Python, True: x"), said("assistant", "Yes?")],
        ),
        ("shout-out", {"tone": "cross", "size": "2"}, [said("user", "CROSS 2 ann")]),
        (
            "look",
            {},
            [{"role": "user", "content": FRUIT}, {"role": "assistant", "content": FRUIT}],
        ),
    ],
)
def test_messages(name: str, arguments: Any, messages: list[Any]) -> None:
    offers = desk()
    params = {"name": name} | ({} if arguments is None else {"arguments": arguments})
    result = offers.call("prompts/get", user="ann", **params)
    assert (result["messages"], result["resultType"]) == (messages, "complete")
    assert "ttlMs" not in result  # A prompt may not be kept.
    assert result.get("description") == ("Says hello." if name == "greet" else None)
    assert offers.call("prompts/get", OLDER, user="ann", **params)["messages"] == messages


@pytest.mark.parametrize(
    ("params", "data"),
    [
        ({}, {"name": None}),
        ({"name": "nothing"}, {"name": "nothing"}),
        ({"name": ["greet"]}, {"name": ["greet"]}),
        ({"name": "greet", "arguments": []}, "arguments: expected an object, got list"),
        (
            {"name": "greet", "arguments": {"a": "b"}},
            "arguments.a: unexpected, expected no arguments",
        ),
        ({"name": "review"}, "arguments.code: missing, expected a string"),
        (
            {"name": "review", "arguments": {"code": 3, "strict": "yes", "speed": ""}},
            "arguments.code: expected a string, got int\n"
            "arguments.strict: expected 'true' or 'false', got 'yes'\n"
            "arguments.speed: unexpected, expected code, language, strict",
        ),
        (
            {"name": "shout-out", "arguments": {"tone": "CALM", "size": "3"}},
            "arguments.tone: expected one of 'calm', 'cross', got 'CALM'\n"
            "arguments.size: expected one of '1', '2', got '3'",
        ),
    ],
)
def test_wrong_params(params: dict[str, Any], data: Any) -> None:
    with pytest.raises(ucall.RPCError) as raised:
        desk().call("prompts/get", **params)
    assert (raised.value.code, raised.value.data) == (-32602, data)


@pytest.mark.parametrize(
    "returned", [3, None, {"role": "system", "content": "x"}, {"role": "user"}]
)
def test_what_is_no_message_is_the_functions_error(returned: object) -> None:
    offers = Offers()
    offers.prompt(name="bad")(lambda: returned)
    with pytest.raises(TypeError, match="prompt bad: expected a str, a message"):
        offers.call("prompts/get", name="bad")


def test_a_name_has_one_prompt() -> None:
    offers = desk()
    with pytest.raises(ValueError, match="'greet' is already the name of"):
        offers.prompt(name="greet")(desk)
    with pytest.raises(TypeError, match="other: complete: there is no argument 'a'"):
        offers.prompt(name="other", complete={"a": []})(desk)


def completed(offers: Offers, argument: dict[str, Any], **params: Any) -> Any:
    return offers.call("completion/complete", argument=argument, **params)["completion"]


@pytest.mark.parametrize(
    ("name", "argument", "beginning", "values"),
    [
        ("review", "language", "c", ["C", "C++"]),
        ("review", "language", "", ["C", "C++", "Python"]),
        ("review", "code", "x", []),
        ("review", "strict", "t", ["true"]),
        ("shout-out", "tone", "CR", ["cross"]),
        ("shout-out", "size", "", ["1", "2"]),
    ],
)
def test_completion(name: str, argument: str, beginning: str, values: list[str]) -> None:
    ref = {"type": "ref/prompt", "name": name}
    found = completed(desk(), {"name": argument, "value": beginning}, ref=ref)
    assert found == {"values": values, "total": len(values), "hasMore": False}


def test_functions_complete() -> None:
    offers = Offers()

    async def days(beginning: str, others: dict[str, str], ctx: ucall.Context) -> list[str]:
        return [beginning, others.get("month", "-"), str(ctx.user)]

    def numbers(beginning: str) -> range:
        return range(250)

    @offers.resource("notes://{month}/{day}", complete={"day": days, "month": numbers})
    def notes(month: str, day: str) -> str:
        return month + day

    ref = {"type": "ref/resource", "uri": "notes://{month}/{day}"}
    others = {"arguments": {"month": "May"}}
    argument = {"name": "day", "value": "1"}
    assert completed(offers, argument, ref=ref, context=others, user="ann") == {
        "values": ["1", "May", "ann"],
        "total": 3,
        "hasMore": False,
    }
    assert completed(offers, argument, ref=ref)["values"] == ["1", "-", "None"]
    many = completed(offers, {"name": "month", "value": ""}, ref=ref)
    assert (len(many["values"]), many["total"], many["hasMore"]) == (100, 250, True)
    with pytest.raises(TypeError, match="complete: day: expected a function of the text"):
        offers.resource("notes://{day}", complete={"day": lambda: []})(one)


def one(day: str) -> str:
    return day


REVIEW = {"type": "ref/prompt", "name": "review"}


@pytest.mark.parametrize(
    ("params", "data"),
    [
        ({}, "ref: expected an object, got None"),
        ({"ref": REVIEW}, "argument: expected an object, got None"),
        (
            {"ref": REVIEW | {"name": "x"}, "argument": {}},
            "ref: there is no such prompt or resource template",
        ),
        (
            {"ref": {"type": "ref/resource", "name": "review"}, "argument": {}},
            "ref: there is no such prompt or resource template",
        ),
        (
            {"ref": REVIEW, "argument": {"name": "code"}},
            "argument.value: expected a string, got None",
        ),
        (
            {"ref": REVIEW, "argument": {"name": "speed", "value": ""}},
            "argument.name: unexpected, expected code, language, strict",
        ),
    ],
)
def test_wrong_completions(params: dict[str, Any], data: str) -> None:
    with pytest.raises(ucall.RPCError) as raised:
        desk().call("completion/complete", **params)
    assert (raised.value.code, raised.value.data) == (-32602, data)
