"""Input that tools, prompts and resources ask their caller for: docs/mcp.md."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import enum
import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any, Literal

import pytest
from mcp_offers import CAPABILITIES, NEWEST, OLDER, Caller, Offers
from serving import Serve

import ucall
from harness import Wire, http, request
from ucall import mcp
from ucall._mcp import inputs, state
from ucall._mcp.inputs import Reply
from ucall._mcp.older import Exchanges
from ucall.auth import AccessToken

META = {"io.modelcontextprotocol/clientCapabilities": CAPABILITIES}


class Size(enum.Enum):
    SMALL = "small"
    LARGE = "large"


def caller(user: Any = None, version: str = NEWEST, **params: Any) -> Any:
    """The context of a call of a tool."""
    params = {"name": "order", "arguments": {"a": 1, "b": [2]}, "_meta": META, **params}
    return Caller("tools/call", (params, version), user)


def asked(function: Any, *args: Any, **options: Any) -> dict[str, Any]:
    """The result that a question ends its call with."""
    with pytest.raises(Reply) as raised:
        function(*args, **options)
    result = raised.value.member["result"]
    assert result["resultType"] == "input_required"
    return dict(result)


def refused(function: Any, *args: Any, **options: Any) -> dict[str, Any]:
    """The error that a question ends its call with."""
    with pytest.raises(Reply) as raised:
        function(*args, **options)
    return dict(raised.value.member["error"])


def accept(**content: Any) -> dict[str, Any]:
    return {"action": "accept", "content": content}


def order(ctx: Any) -> tuple[Any, ...]:
    """Asks twice, in two rounds."""
    name = mcp.elicit(ctx, "Name?", {"name": str}, key="name").content["name"]
    size = mcp.elicit(ctx, f"Size for {name}?", {"size": Size}, key="size")
    return name, size.action, size.content


def test_a_function_asks_in_rounds() -> None:
    first = asked(order, caller())
    assert first["inputRequests"] == {
        "name": {
            "method": "elicitation/create",
            "params": {
                "mode": "form",
                "message": "Name?",
                "requestedSchema": {
                    "type": "object",
                    "properties": {"name": {"type": "string"}},
                    "required": ["name"],
                },
            },
        }
    }
    answers = {"name": accept(name="Ann"), "other": 3}
    second = asked(order, caller(inputResponses=answers, requestState=first["requestState"]))
    assert list(second["inputRequests"]) == ["size"]
    assert second["requestState"] != first["requestState"]
    # The first answer is in the state alone, and stays as it was.
    answers = {"size": {"action": "decline"}, "name": accept(name="Eve")}
    third = caller(inputResponses=answers, requestState=second["requestState"])
    assert order(third) == ("Ann", "decline", {})


def test_answers_are_taken_without_a_state() -> None:
    answers = {"name": accept(name="Ann"), "size": accept(size="large", other=1)}
    assert order(caller(inputResponses=answers))[:2] == ("Ann", "accept")
    assert list(asked(order, caller(inputResponses={"x": {}}))["inputRequests"]) == ["name"]


def test_several_requests_share_a_round() -> None:
    requests = {
        "greeting": {"method": "sampling/createMessage", "params": {"maxTokens": 50}},
        "roots": {"method": "roots/list", "params": {}},
        "page": {
            "method": "elicitation/create",
            "params": {"mode": "url", "message": "Pay", "url": "https://example.com"},
        },
    }
    result = asked(mcp.ask, caller(), requests, state={"price": 12})
    assert result["inputRequests"] == requests
    answers = {"greeting": {"role": "assistant"}, "roots": {"roots": []}}
    partly = caller(inputResponses=answers, requestState=result["requestState"])
    assert mcp.state(partly) == {"price": 12}
    result = asked(mcp.ask, partly, requests)
    assert list(result["inputRequests"]) == ["page"]
    answers = {"page": {"action": "cancel"}}
    whole = caller(inputResponses=answers, requestState=result["requestState"])
    assert mcp.ask(whole, requests) == {
        "greeting": {"role": "assistant"},
        "roots": {"roots": []},
        "page": {"action": "cancel"},
    }
    assert mcp.state(whole) == {"price": 12}
    assert mcp.state(caller()) is None


def test_questions_without_keys_are_told_apart() -> None:
    first = asked(mcp.elicit, caller(), "A?", {"x": str})
    again = asked(mcp.elicit, caller(), "A?", {"x": str})
    other = asked(mcp.elicit, caller(), "A?", {"y": str})
    url = asked(mcp.elicit, caller(), "A?", url="https://example.com")
    keys = [next(iter(it["inputRequests"])) for it in (first, again, other, url)]
    assert keys[0] == keys[1]
    assert len(set(keys)) == 3
    for given in ({}, {"fields": {}, "url": ""}):
        with pytest.raises(TypeError, match="expected fields or url"):
            mcp.elicit(caller(), "A?", **given)


def test_fields() -> None:
    email = {"type": "string", "format": "email", "minLength": 3}
    fields = {
        "text": str,
        "count": int,
        "price": float | None,
        "sure": bool,
        "size": Size,
        "color": Literal["red", "blue"],
        "sizes": list[Size],
        "email": email,
        "age": {"type": "integer", "default": 30, "maximum": 150},
        "plan": {"oneOf": [{"const": "a", "title": "A"}, {"const": "b", "title": "B"}]},
    }
    request = asked(mcp.elicit, caller(), "?", fields, key="form")["inputRequests"]["form"]
    schema = request["params"]["requestedSchema"]
    assert schema["properties"] == {
        "text": {"type": "string"},
        "count": {"type": "integer"},
        "price": {"type": "number"},
        "sure": {"type": "boolean"},
        "size": {"type": "string", "enum": ["small", "large"]},
        "color": {"type": "string", "enum": ["red", "blue"]},
        "sizes": {"type": "array", "items": {"type": "string", "enum": ["small", "large"]}},
        "email": email,
        "age": fields["age"],
        "plan": fields["plan"],
    }
    required = ["text", "count", "sure", "size", "color", "sizes", "email", "plan"]
    assert schema["required"] == required
    content = {
        "text": "",
        "count": 1,
        "sure": False,
        "size": "small",
        "color": "red",
        "sizes": ["large"],
        "email": "a@b",
        "age": 150,
        "plan": "a",
    }
    answered = caller(inputResponses={"form": accept(**content)})
    assert mcp.elicit(answered, "?", fields, key="form") == ("accept", content)
    wrong: dict[str, Any] = {
        "text": 1,
        "count": 1.5,
        "price": True,
        "sure": 1,
        "size": "SMALL",
        "color": "green",
        "sizes": ["large", "x"],
        "email": "a@",
        "age": 151,
        "plan": "c",
    }
    error = refused(
        mcp.elicit,
        caller(inputResponses={"form": accept(**wrong)}),
        "?",
        fields,
        key="form",
    )
    lines = error["data"].splitlines()
    assert [it.split(":")[0] for it in lines] == [
        f"inputResponses.form.content.{name}" for name in wrong
    ]
    assert lines[0].endswith(": expected string, got int")
    assert lines[-1].endswith(": expected one of 'a', 'b', got str")
    for kind in (bytes, list[int], Literal[1], dict, str | int):
        with pytest.raises(TypeError, match="field 'x': "):
            mcp.elicit(caller(), "?", {"x": kind})


@pytest.mark.parametrize(
    ("responses", "problem"),
    [
        (None, "inputResponses: expected an object, got None"),
        ([], "inputResponses: expected an object, got list"),
        ({"name": 12345}, "inputResponses.name: expected an object, got int"),
        ({"name": {}}, "inputResponses.name.action: expected one of 'accept'"),
        ({"name": {"action": "no"}}, "inputResponses.name.action: expected one of 'accept'"),
        (
            {"name": {"action": "accept"}},
            "inputResponses.name.content: expected an object, got None",
        ),
        ({"name": accept()}, "inputResponses.name.content.name: missing, expected string"),
    ],
)
def test_wrong_answers(responses: Any, problem: str) -> None:
    error = refused(order, caller(inputResponses=responses))
    assert (error["code"], error["data"].startswith(problem)) == (-32602, True)


def changed(text: str) -> dict[str, str]:
    """A state with changes that a caller might try."""
    payload, mac = text.split(".")
    content = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    content[0] += 1
    later = base64.urlsafe_b64encode(json.dumps(content).encode()).decode().rstrip("=")
    return {
        "longer": text + "-TAMPERED",
        "another expiry": f"{later}.{mac}",
        "no MAC": payload,
        "an empty MAC": f"{payload}.",
        "a shorter MAC": text[:-1],
        "padding": f"{text}=",
        "empty": "",
        "no base64": "\N{SNOWMAN}.\N{SNOWMAN}",
        "a NUL": "\0",
    }


def test_a_changed_state_is_refused() -> None:
    text = asked(order, caller())["requestState"]
    for name, tampered in changed(text).items():
        error = refused(order, caller(requestState=tampered))
        problem = "requestState: was changed, or is not of this server"
        assert (error["code"], error["data"]) == (-32602, problem), name
    error = refused(order, caller(requestState=3))
    assert error["data"] == "requestState: expected a string, got int"


@dataclasses.dataclass
class Member:
    name: str


class Claims:
    def __init__(self, **claims: Any) -> None:
        self.__dict__ = claims


def token(subject: str, jti: str, *scopes: str) -> AccessToken:
    claims = {"iss": "https://login.example.com", "sub": subject, "jti": jti}
    return AccessToken(subject, frozenset(scopes), claims)


@pytest.mark.parametrize(
    ("user", "same", "other"),
    [
        (None, None, "ann"),
        ("ann", "ann", "bob"),
        (1, 1, True),
        (Member("ann"), Member("ann"), Member("bob")),
        (["ann", 1], ("ann", 1), ["ann"]),
        # A newer token of the same subject.
        ({"sub": "a", "exp": 1}, {"sub": "a", "exp": 2}, {"sub": "b", "exp": 1}),
        ({"iss": "x", "sub": "a"}, {"sub": "a", "iss": "x"}, {"iss": "y", "sub": "a"}),
        (Claims(sub="a", exp=1), Claims(sub="a", exp=2), Claims(sub="b", exp=1)),
        (token("a", "1"), token("a", "2", "write"), token("b", "1")),
    ],
)
def test_a_state_is_for_its_caller(user: Any, same: Any, other: Any) -> None:
    text = asked(order, caller(user))["requestState"]
    assert asked(order, caller(same, requestState=text))
    error = refused(order, caller(other, requestState=text))
    assert error["data"] == "requestState: belongs to another caller"


def test_a_user_without_identity_cannot_be_asked() -> None:
    with pytest.raises(TypeError, match="the user of the call, object, has no sub"):
        order(caller(object()))


@pytest.mark.parametrize(
    "params",
    [
        {"name": "other"},
        {"arguments": {"a": 1, "b": [3]}},
        {"arguments": {"a": 1}},
        {"arguments": None},
        {"uri": "x://y"},
    ],
)
def test_a_state_is_for_its_call(params: dict[str, Any]) -> None:
    text = asked(order, caller())["requestState"]
    assert asked(order, caller(requestState=text, arguments={"b": [2], "a": 1}))
    error = refused(order, caller(requestState=text, **params))
    assert error["data"].startswith("requestState: belongs to a call with another name")
    prompt = caller(requestState=text)._replace(method="prompts/get")
    assert refused(order, prompt)["data"].startswith("requestState: belongs to a call")


def test_a_state_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(state.time, "time", lambda: now[0])
    text = asked(mcp.elicit, caller(), "?", {"x": str}, expires_s=60)["requestState"]
    now[0] = 1059.9
    assert asked(mcp.elicit, caller(requestState=text), "?", {"x": str})
    now[0] = 1060.0
    error = refused(mcp.elicit, caller(requestState=text), "?", {"x": str})
    assert error["data"] == "requestState: has expired: call again without it"


PROGRAM = """
import sys
from ucall._mcp import state
from ucall import mcp
if sys.argv[1]:
    mcp.set_state_key(bytes.fromhex(sys.argv[1]))
class Caller: method = "tools/call"; user = None
print(state.seal([1], 60, Caller, {}))
"""


def sealed_elsewhere(key: str, secret: str = "") -> str:
    """A state of another process."""
    # The rest of the environment says which ucall is tested.
    variables = os.environ | ({"UCALL_WORKER_TICKETS": secret} if secret else {})
    command = [sys.executable, "-c", PROGRAM, key]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, env=variables)
    return ran.stdout.strip()


def test_hosts_share_a_key_and_workers_their_supervisors(monkeypatch: pytest.MonkeyPatch) -> None:
    ctx, key = Caller("tools/call", None), "ab" * 32
    monkeypatch.setattr(state, "_key", state._key)
    with pytest.raises(state.InvalidState):
        state.open_state(sealed_elsewhere(""), ctx, {})
    mcp.set_state_key(bytes.fromhex(key))
    assert state.open_state(sealed_elsewhere(key), ctx, {}) == [1]
    # Workers have the secret in place of a key.
    assert state.open_state(sealed_elsewhere("", key), ctx, {}) == [1]
    with pytest.raises(ValueError, match="expected at least 32 bytes, got 31"):
        mcp.set_state_key(bytes(31))
    mcp.set_state_key(bytes(32))
    with pytest.raises(TypeError, match="expected bytes, got str"):
        mcp.set_state_key("x" * 32)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("declared", "required"),
    [
        ({}, {"elicitation": {"form": {}}, "sampling": {}}),
        ({"sampling": {}}, {"elicitation": {"form": {}}}),
        ({"sampling": {}, "elicitation": {"url": {}}}, {"elicitation": {"form": {}}}),
        ({"elicitation": {}}, {"sampling": {}}),
        ({"sampling": None, "elicitation": {"form": {}}}, {"sampling": {}}),
    ],
)
def test_clients_are_asked_for_what_they_can(declared: Any, required: Any) -> None:
    ctx = caller(_meta={"io.modelcontextprotocol/clientCapabilities": declared})
    requests = {
        "a": {"method": "elicitation/create", "params": {"requestedSchema": {}}},
        "b": {"method": "sampling/createMessage", "params": {}},
    }
    error = refused(mcp.ask, ctx, requests)
    assert (error["code"], error["data"]) == (-32021, {"requiredCapabilities": required})
    assert mcp.client_capabilities(ctx) == declared
    # A client that answers all the same need not have said that it can.
    answers = {"a": {"action": "decline"}, "b": {}}
    params = {**ctx.request[0], "inputResponses": answers}
    assert mcp.ask(ctx._replace(request=(params, NEWEST)), requests) == answers


def test_url_mode_takes_a_client_that_opens_urls() -> None:
    ctx = caller(_meta={"io.modelcontextprotocol/clientCapabilities": {"elicitation": {}}})
    error = refused(mcp.elicit, ctx, "Pay", url="https://example.com")
    assert error["data"] == {"requiredCapabilities": {"elicitation": {"url": {}}}}
    answered = caller(inputResponses={"pay": {"action": "accept"}})
    answer = mcp.elicit(answered, "Pay", url="https://example.com", key="pay")
    assert answer == ("accept", {})


def test_older_versions_and_other_calls_cannot_be_asked() -> None:
    for ctx, problem in (
        (caller(version=OLDER), f"use version {NEWEST} of MCP, or serve it in a thread or async"),
        (caller()._replace(request=None), "call it over MCP"),
    ):
        with pytest.raises(ucall.RPCError) as raised:
            order(ctx)
        assert raised.value.code == -32600
        assert str(raised.value.data).endswith(problem)
        assert not isinstance(raised.value, Reply)


@pytest.mark.parametrize("is_async", [False, True])
def test_prompts_and_resources_ask(is_async: bool) -> None:
    offers = Offers()

    def ask(topic: str, ctx: ucall.Context) -> str:
        return topic + str(mcp.elicit(ctx, "Context?", {"c": str}, key="k").content["c"])

    async def ask_async(topic: str, ctx: ucall.Context) -> str:
        return ask(topic, ctx)

    function = ask_async if is_async else ask
    offers.prompt(name="ask")(function)
    offers.resource("ask://{topic}")(function)
    for method, params in (
        ("prompts/get", {"name": "ask", "arguments": {"topic": "t"}}),
        ("resources/read", {"uri": "ask://t"}),
    ):
        result = offers.call(method, **params)
        assert result.keys() == {"resultType", "inputRequests", "requestState"}
        answered = params | {"inputResponses": {"k": accept(c="!")}}
        whole = offers.call(method, requestState=result["requestState"], **answered)
        assert whole["resultType"] == "complete"
        assert "t!" in json.dumps(whole)
        with pytest.raises(ucall.RPCError) as raised:
            offers.call(method, requestState=result["requestState"] + "x", **answered)
        assert (type(raised.value), raised.value.code) == (ucall.RPCError, -32602)
        with pytest.raises(ucall.RPCError) as raised:
            offers.call(method, _meta={}, **params)
        assert raised.value.code == -32021


def order_later(item: str, ctx: ucall.Context) -> str:
    return f"{item}: {order(ctx)}"


async def order_async(item: str, ctx: ucall.Context) -> str:
    return order_later(item, ctx)


@pytest.mark.parametrize("function", [order_later, order_async])
def test_older_clients_are_asked_while_their_call_is_open(function: Any) -> None:
    offers = Offers(threads=True)
    offers.prompt(name="order")(function)
    answers = {"Name?": accept(name="Ann"), "Size for Ann?": {"action": "cancel"}}
    asked: list[str] = []

    def reply(message: dict[str, Any]) -> None:
        assert (message["jsonrpc"], message["method"]) == ("2.0", "elicitation/create")
        asked.append(message["id"])
        response = {"jsonrpc": "2.0", "id": asked[-1]}
        result = {"result": answers[message["params"]["message"]]}
        for other in ({"id": "guessed"}, {"user": "eve"}, {}, {}):  # The last one comes twice.
            caller = Caller("$/response", None, other.pop("user", "ann"))
            offers.registry.exchanges.respond(response | other | result, OLDER, caller)

    params: dict[str, Any] = {"name": "order", "arguments": {"item": "pear"}}
    result = offers.call("prompts/get", OLDER, "ann", reply, **params)
    assert result["messages"][0]["content"]["text"] == "pear: ('Ann', 'cancel', {})"
    assert len(set(asked)) == 2
    # What nobody waits for here may wait in another worker.
    assert offers.core.published.count("$/bus") == 4

    def fail(message: dict[str, Any]) -> None:
        response = {"id": message["id"], "error": {"code": -1, "message": "no screen"}}
        offers.registry.exchanges.respond(response, OLDER, Caller("$/response", None, "ann"))

    with pytest.raises(ucall.RPCError, match="The client failed: no screen"):
        asyncio.run(
            offers.registry.exchanges.run_async(
                lambda: order_async("pear", caller("ann", OLDER)._replace(send=fail)),
                caller("ann", OLDER)._replace(send=fail),
            )
        )


@pytest.mark.parametrize("is_async", [False, True])
def test_older_clients_may_not_answer(is_async: bool) -> None:
    offers = Offers()
    ctx = caller(version=OLDER)._replace(send=lambda message: None)

    def ask() -> Any:
        return mcp.elicit(ctx, "?", {"x": str}, expires_s=0.01)

    async def ask_async() -> Any:
        return ask()

    exchanges = offers.registry.exchanges
    with pytest.raises(ucall.RPCError, match="The client has not answered"):
        asyncio.run(exchanges.run_async(ask_async, ctx)) if is_async else exchanges.run(ask, ctx)
    gone = ctx._replace(cancelled=True)
    with pytest.raises(ucall.RPCError, match="The client has not answered"):
        exchanges.run(lambda: mcp.elicit(gone, "?", {"x": str}), gone)
    assert exchanges._waiting == {}


def test_questions_to_older_clients_leave_threads_for_others() -> None:
    exchanges = Exchanges(Offers().registry.bus, 1)
    asked: list[str] = []

    def ask(reply: Callable[[str], object]) -> Any:
        ctx = caller("ann", OLDER)._replace(send=lambda message: reply(message["id"]))
        return exchanges.run(lambda: mcp.elicit(ctx, "?", {"x": str}, expires_s=60), ctx)

    def refuse_another(id: str) -> None:
        with pytest.raises(ucall.RPCError, match="Too many calls wait"):
            ask(asked.append)
        answer(id)

    def answer(id: str) -> None:
        response = {"id": id, "result": {"action": "cancel"}}
        exchanges.respond(response, OLDER, Caller("$/response", None, "ann"))  # type: ignore[arg-type]

    for reply in (refuse_another, answer):
        assert ask(reply).action == "cancel"
    assert asked == []


def test_a_state_is_json() -> None:
    with pytest.raises(TypeError):
        mcp.ask(caller(), {"a": {"method": "roots/list"}}, state=object())
    assert inputs.REPLY == -32099


async def named(ctx: ucall.Context) -> str:
    return str(mcp.elicit(ctx, "Name?", {"name": str}).content["name"])


def test_nobody_is_asked_where_no_question_arrives(serve: Serve) -> None:
    server = serve(named, mcp=True)
    call = request("tools/call", {"name": "named", "arguments": {}})
    with Wire(server.port) as wire:
        # The replies of an array come as one JSON text, with nothing before it.
        batch = b"[" + call + b"," + request("ping", {}, 2) + b"]"
        wire.send(http(batch, "Accept: application/json, text/event-stream", target="/mcp"))
        failed, pong = json.loads(wire.reply()[2])
        assert failed["result"]["isError"] is True
        assert pong["result"] == {}
