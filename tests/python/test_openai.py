"""Functions as models of OpenAI's API, called with the official client."""

from __future__ import annotations

import ast
import asyncio
import dataclasses
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import numpy
import pytest
from certificates import Authority, Files, authority, files
from openai_models import (
    CALL,
    MESSAGES,
    TOOL,
    WORDS,
    Models,
    add_models,
    ask,
    body,
    client,
    letters,
    models,
    openai,
    served,
    url,
    words_of,
)
from serving import Serve

import ucall
from harness import HOST, Wire, eventually

__all__ = ["authority", "client", "files", "models", "openai", "served"]


def test_a_completion(client: Any, models: Models) -> None:
    completion = client.chat.completions.create(model="echo", messages=MESSAGES)
    [choice] = completion.choices
    assert choice.message.content == "".join(WORDS) and choice.message.role == "assistant"
    assert (choice.finish_reason, completion.usage, completion.model) == ("stop", None, "echo")
    assert models.calls == [[MESSAGES[0], {"role": "user", "content": "one two 3"}]]
    for limit in ({"max_tokens": 2}, {"max_completion_tokens": 2}):
        short = ask(client, "echo", "a b c", **limit).choices[0]
        assert (short.message.content, short.finish_reason) == ("a b ", "length")


def test_a_streamed_completion(client: Any) -> None:
    options = {"stream": True, "stream_options": {"include_usage": True}}
    chunks = list(client.chat.completions.create(model="echo", messages=MESSAGES, **options))
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert [delta.content for delta in deltas] == ["", *WORDS, None]
    assert [delta.role for delta in deltas][:2] == ["assistant", None]
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert len({chunk.id for chunk in chunks}) == 1
    *_, last = ask(client, "echo", "a b c", max_tokens=2, stream=True)
    assert last.choices[0].finish_reason == "length"
    *_, last = ask(client, "tools", tools=[{"type": "function", "function": TOOL}], **options)
    assert last.choices == [] and last.usage.total_tokens == 7
    with httpx.stream(
        "POST", f"{client.base_url}chat/completions", content=body("echo", stream=True)
    ) as response:
        assert response.headers["content-type"] == "text/event-stream"
        assert response.read().endswith(b"\n\ndata: [DONE]\n\n")


def test_a_result_that_is_no_stream(client: Any, models: Models) -> None:
    answer = ask(client, "whole", temperature=0.5, seed=7, stop="x", user="u", n=1)
    assert (answer.choices[0].message.content, answer.usage.total_tokens) == ("whole", 6)
    assert answer.choices[0].finish_reason == "content_filter"
    assert models.calls == [{"temperature": 0.5, "seed": 7, "stop": ["x"], "user": "u"}]
    chunks = list(ask(client, "whole", stream=True))
    assert [chunk.choices[0].delta.content for chunk in chunks] == ["", "whole", None]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("stop", "text"),
    [
        ("three", "one two "),
        (["o t", "zzz"], "one tw"),
        (["two", "one two"], ""),
        ("e two thr", "on"),
        (["two four", "thre"], "one two "),
        ("absent", "one two three "),
        ("e  ", "one two three "),
    ],
)
def test_a_stop_ends_an_answer(
    client: Any, models: Models, stop: Any, text: str, stream: bool
) -> None:
    """Also one that is in several items. The text before it may begin as another one does."""
    answer = ask(client, "echo", "one two three", stop=stop, stream=stream)
    if stream:
        choices = [chunk.choices[0] for chunk in answer]
        assert "".join(it.delta.content or "" for it in choices) == text
        assert choices[-1].finish_reason == "stop"
    else:
        assert answer.choices[0].message.content == text
        assert answer.choices[0].finish_reason == "stop"
    assert eventually(lambda: models.closed == 1)


def test_several_answers(client: Any, models: Models) -> None:
    answer = ask(client, "echo", n=3)
    assert [it.index for it in answer.choices] == [0, 1, 2]
    assert {it.message.content for it in answer.choices} == {"one two "}
    assert len(models.calls) == 3
    texts = {0: "", 1: ""}
    reasons = []
    for chunk in ask(client, "echo", n=2, stream=True):
        [choice] = chunk.choices
        texts[choice.index] += choice.delta.content or ""
        reasons += [choice.finish_reason] if choice.finish_reason else []
    assert texts == {0: "one two ", 1: "one two "} and reasons == ["stop", "stop"]


def test_a_function_gets_tools_and_calls_them(client: Any, models: Models) -> None:
    tools = [{"type": "function", "function": TOOL}]
    answer = ask(client, "tools", tools=tools, tool_choice="required")
    [choice] = answer.choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    [call] = choice.message.tool_calls
    assert (call.function.name, call.function.arguments) == ("add", CALL["arguments"])
    assert call.id.startswith("call_") and call.type == "function"
    assert models.calls[0][1:] == (tools, "required")
    deltas = [it.choices[0].delta for it in ask(client, "tools", tools=tools, stream=True)]
    parts = [call for delta in deltas for call in delta.tool_calls or []]
    assert "".join(part.function.arguments for part in parts) == CALL["arguments"]
    assert [part.index for part in parts] == [0, 0] and parts[1].id is None
    messages = [
        {"role": "user", "content": "2?"},
        {"role": "assistant", "tool_calls": [call.model_dump()]},
        {"role": "tool", "tool_call_id": call.id, "content": "4"},
    ]
    client.chat.completions.create(model="tools", messages=messages, tools=tools)
    assert models.calls[-1][0] == messages


@pytest.mark.parametrize(
    ("model", "options", "param"),
    [
        ("echo", {"tools": [{"type": "function", "function": TOOL}]}, "tools"),
        ("echo", {"temperature": 0.5}, "temperature"),
        ("echo", {"response_format": {"type": "json_object"}}, "response_format"),
        ("tools", {"tools": [], "max_tokens": 5}, "max_tokens"),
        ("tools", {"tools": [], "max_completion_tokens": 5}, "max_completion_tokens"),
        ("tools", {}, "tools"),
        ("echo", {"max_tokens": 0}, "max_tokens"),
        ("echo", {"n": 0}, "n"),
        ("echo", {"n": 129}, "n"),
        ("echo", {"stop": ["a"] * 5}, "stop"),
        ("echo", {"stop": [""]}, "stop"),
        ("echo", {"messages": []}, "messages"),
        ("echo", {"messages": ["text"]}, "messages[0]"),
        ("echo", {"messages": [{"role": "user"}]}, "messages[0]"),
        ("echo", {"messages": [{"role": "user", "content": [5]}]}, "messages[0]"),
        ("absent", {}, "model"),
        (None, {}, "model"),
    ],
)
def test_what_a_model_does_not_take_is_refused_by_name(
    client: Any, openai: Any, model: Any, options: Any, param: str
) -> None:
    found = httpx.post(f"{client.base_url}chat/completions", content=body(model, **options))
    error = found.json()["error"]
    assert found.status_code == (404 if param == "model" else 400), error
    assert (error["param"], error["type"]) == (param, "invalid_request_error")
    assert error["message"].startswith(f"{param}")
    if isinstance(model, str):
        with pytest.raises(openai.APIStatusError) as raised:
            client.chat.completions.create(**{"model": model, "messages": MESSAGES, **options})
        assert raised.value.param == param


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 1, "top_p": 1, "n": 1, "presence_penalty": 0, "frequency_penalty": 0},
        {"tools": [], "tool_choice": "auto", "parallel_tool_calls": True, "logprobs": False},
        {"response_format": {"type": "text"}, "user": "me", "stop": [], "temperature": None},
        {"n": 128, "stop": ["a", "b", "c", "d"], "max_tokens": 1},
        {"top_logprobs": 0, "modalities": ["text"]},
    ],
)
def test_options_that_ask_for_nothing_are_taken(client: Any, options: Any) -> None:
    found = httpx.post(
        f"{client.base_url}chat/completions", content=body("echo", **options), timeout=60
    )
    assert found.status_code == 200, found.text


@pytest.mark.parametrize(
    "text",
    [b"", b"[]", b"{", b'{"a":' * 100_000, b"\xff", b'{"model":"\\ud800"}', b'{"temperature":NaN}'],
)
def test_bodies_that_are_no_objects(client: Any, text: bytes) -> None:
    for path in ("chat/completions", "responses", "embeddings"):
        found = httpx.post(f"{client.base_url}{path}", content=text)
        assert found.status_code == 400
        assert found.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    "item",
    ["5", '{"content": 5}', '{"role": "user"}', '{"refusal": 5}', '{"tool_calls": [{"index": 3}]}'],
)
def test_what_is_no_delta(client: Any, openai: Any, item: str) -> None:
    with pytest.raises(openai.InternalServerError, match="neither text nor a delta"):
        ask(client, "odd", item)
    stream = ask(client, "odd", item, stream=True)
    assert [next(stream).choices[0].delta.content for _ in range(2)] == ["", "x"]
    with pytest.raises(openai.APIError, match="neither text nor a delta"):
        next(stream)


def test_members_that_are_null_are_none(client: Any) -> None:
    """As in the chunks of other servers, which a function may pass on."""
    item = {"content": "y", "refusal": None, "tool_calls": None, "usage": None}
    [choice] = ask(client, "odd", json.dumps({**item, "finish_reason": None})).choices
    assert (choice.message.content, choice.finish_reason) == ("xy", "stop")


def test_errors_of_functions(client: Any, openai: Any) -> None:
    for code, status in ((-32004, 403), (-32003, 503), (-32001, 504), (-32602, 400), (429, 429)):
        for stream in (False, True):
            with pytest.raises(openai.APIStatusError, match="out of paper") as raised:
                ask(client, "fails", f"0 {code}", stream=stream)
            assert raised.value.status_code == status
            assert raised.value.response.headers["retry-after-ms"] == "70"
    with pytest.raises(openai.InternalServerError, match="out of paper"):
        ask(client, "fails", "1 7")
    stream = ask(client, "fails", "1 7", stream=True)
    assert [next(stream).choices[0].delta.content for _ in range(2)] == ["", "x"]
    with pytest.raises(openai.APIError, match="out of paper"):
        next(stream)
    for item in ("fails", "whole"):
        with pytest.raises(openai.APIStatusError):
            ask(client, item, "not numbers", tools="x" if item == "whole" else [], n="y")


def test_a_stream_that_is_left_ends_its_function(client: Any, models: Models) -> None:
    for count in (1, 2):
        with ask(client, "endless", n=count, stream=True) as stream:
            begun: set[int] = set()
            while len(begun) < count:  # A function that has not begun has no end to count.
                begun.add(next(stream).choices[0].index)
        assert eventually(lambda count=count: models.closed == 2 * count - 1)


def test_completions_at_once(served: ucall.Server, openai: Any) -> None:
    async def words(client: Any, count: int) -> list[str]:
        messages = [{"role": "user", "content": "word " * count}]
        stream = await client.chat.completions.create(model="echo", messages=messages, stream=True)
        contents = [chunk.choices[0].delta.content async for chunk in stream]
        return [content for content in contents if content]

    async def run() -> list[list[str]]:
        async with openai.AsyncOpenAI(base_url=url(served), api_key="none") as client:
            return await asyncio.gather(*(words(client, count) for count in range(1, 17)))

    assert asyncio.run(run()) == [["word "] * count for count in range(1, 17)]


@pytest.mark.parametrize("form", [{}, {"encoding_format": "float"}, {"encoding_format": "base64"}])
def test_embeddings(client: Any, form: Any) -> None:
    def vectors(model: str, texts: Any, **options: Any) -> Any:
        found = client.embeddings.create(model=model, input=texts, **form, **options)
        assert [it.index for it in found.data] == list(range(len(found.data)))
        vectors = [it.embedding for it in found.data]
        if form.get("encoding_format") == "base64":
            import base64

            return [numpy.frombuffer(base64.b64decode(it), "<f4").tolist() for it in vectors]
        return vectors

    assert vectors("letters", ["tea", "onion"]) == [[1, 1], [0, 0]]
    assert vectors("letters", "tea", dimensions=1) == [[1]]
    assert vectors("lengths", ["tea", "onion", "a"]) == [[3, 3], [5, 3], [1, 3]]
    assert vectors("matrix", ["tea", "onion"]) == [[3], [5]]


def test_embeddings_that_are_refused(client: Any, openai: Any) -> None:
    for texts in ([[1, 2]], [], [5], ["a"] * 2049):
        with pytest.raises(openai.BadRequestError, match="input: expected"):
            client.embeddings.create(model="matrix", input=texts)
    assert len(client.embeddings.create(model="matrix", input=["a"] * 2048).data) == 2048
    with pytest.raises(openai.BadRequestError, match="dimensions: the model does not take it"):
        client.embeddings.create(model="matrix", input="a", dimensions=1)
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="echo", input="a")


def test_models(client: Any, openai: Any) -> None:
    names = {"echo", "endless", "tools", "whole", "fails", "odd", "refuses"}
    names |= {"letters", "lengths", "matrix"}
    assert {model.id for model in client.models.list()} == names
    assert client.models.retrieve("echo").object == "model"
    with pytest.raises(openai.NotFoundError) as raised:
        client.models.retrieve("other")
    assert raised.value.code == "model_not_found"


def test_slots_serve_a_chat(serve: Serve, openai: Any) -> None:
    """One loop makes the tokens of all answers."""

    @dataclasses.dataclass
    class Chat:
        messages: list[dict[str, Any]]
        max_tokens: int

    together = 1
    server = serve()

    @server.batch(slots=4, threads=True)
    def loop(slots: ucall.Slots[Chat]) -> Iterator[ucall.SlotItems[str]]:
        counts = [0] * slots.size
        while True:
            for slot in slots.joined:
                counts[slot.index] = slot.params.max_tokens
            items: list[Any] = []
            ready = slots.active if len(slots.active) == together else []
            time.sleep(0 if ready else 0.001)
            for slot in ready:
                counts[slot.index] -= 1
                items.append((slot, "token "))
                items += [(slot, ucall.END)] if not counts[slot.index] else []
            yield items

    ucall.openai.mount(server, chat=loop)
    with openai.OpenAI(base_url=url(server), api_key="none", timeout=60) as client:
        assert ask(client, "loop", max_tokens=3).choices[0].message.content == "token " * 3
        together = 4
        answer = ask(client, "loop", n=4, max_tokens=50)
        assert [it.message.content for it in answer.choices] == ["token " * 50] * 4


def test_the_caller_is_that_of_the_request(serve: Serve, openai: Any) -> None:
    users: list[Any] = []
    server = serve(auth=ucall.auth.bearer({"secret": "ada"}))

    @server
    def whoami(ctx: ucall.Context, messages: list[dict[str, Any]]) -> str:
        users.append(ctx.user)
        return str(ctx.user)

    ucall.openai.mount(server, chat=whoami)
    with openai.OpenAI(base_url=url(server), api_key="secret") as client:
        assert ask(client, "whoami").choices[0].message.content == "ada"
    with openai.OpenAI(base_url=url(server), api_key="other", max_retries=0) as client:
        with pytest.raises(openai.AuthenticationError):
            ask(client, "whoami")
        with pytest.raises(openai.AuthenticationError):
            client.models.list()
    assert users == ["ada"]


def test_a_function_with_its_own_key(serve: Serve, openai: Any) -> None:
    server = serve()

    @server(auth=ucall.auth.bearer({"secret": "ada"}))
    def whoami(messages: list[dict[str, Any]]) -> str:
        return "ada"

    ucall.openai.mount(server, chat=whoami)
    with openai.OpenAI(base_url=url(server), api_key="secret") as client:
        assert ask(client, "whoami").choices[0].message.content == "ada"
    with (
        openai.OpenAI(base_url=url(server), api_key="other", max_retries=0) as client,
        pytest.raises(openai.AuthenticationError),
    ):
        ask(client, "whoami")


def test_calls_have_the_address_of_the_client(serve: Serve, openai: Any) -> None:
    """So that `auth` and limits of each caller see who it is."""
    server = serve()

    @server
    def peer(ctx: ucall.Context, messages: list[dict[str, Any]]) -> str:
        return str(ctx.peer)

    @server
    def peers(ctx: ucall.Context, texts: list[str]) -> list[list[float]]:
        assert isinstance(ctx.peer, tuple)
        return [[float(ctx.peer[1])] for _ in texts]

    ucall.openai.mount(server, chat=peer, embeddings=peers)
    ports = set()
    for _ in range(20):  # More than those whose connections are kept.
        with httpx.Client() as client:
            text = body("peer")
            reply = client.post(f"{url(server)}/chat/completions", content=text).json()
            host, port = ast.literal_eval(reply["choices"][0]["message"]["content"])
            asked = {"model": "peers", "input": "x"}
            embedded = client.post(f"{url(server)}/embeddings", json=asked).json()
            assert embedded["data"][0]["embedding"] == [port] and host == HOST
            ports.add(port)
    assert len(ports) > 1


def test_embeddings_end_with_the_first_error(serve: Serve) -> None:
    begun: list[str] = []
    ended: list[str] = []

    async def embed(text: str) -> list[float]:
        begun.append(text)
        try:
            while text != "bad" or len(begun) < 3:
                await asyncio.sleep(0.001)
        finally:
            ended.append(text)
        raise ucall.RPCError(418, "no")

    server = serve()
    server.add(embed)
    ucall.openai.mount(server, embeddings=embed)
    asked = {"model": "embed", "input": ["a", "b", "bad"]}
    assert httpx.post(f"{url(server)}/embeddings", json=asked).status_code == 418
    assert eventually(lambda: sorted(ended) == ["a", "b", "bad"])


def test_headers_of_any_kind(served: ucall.Server) -> None:
    """Those that a client does not send are not those of the call."""
    odd = [b"X-Odd: \xff\xfe", b"X-Tab: a\tb", b"Accept-Encoding: gzip", b"TE: trailers"]
    odd += [b"Ucall-Timeout-Ms: 60000", b"Upgrade-Insecure-Requests: 1", b"Cookie: a=1; b=2"]
    text = body("echo")
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n" + b"\r\n".join(odd)
    with Wire(served.port) as wire:
        wire.send(head + b"\r\nContent-Length: %d\r\n\r\n%b" % (len(text), text))
        status, _, answer = wire.reply()
    assert (status, json.loads(answer)["object"]) == (200, "chat.completion")


def test_a_slow_reader_pauses_its_function(served: ucall.Server, models: Models) -> None:
    """And gets all when it reads on, however long that took."""
    models.item = "x" * 50_000
    seen = (0, time.monotonic())

    def is_paused() -> bool:
        nonlocal seen
        now = time.monotonic()
        if models.yielded != seen[0]:
            seen = (models.yielded, now)
        return seen[0] > 0 and now - seen[1] > 0.5

    text = body("endless", stream=True)
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: "
    with Wire(served.port) as wire:
        wire.send(head + b"%d\r\n\r\n%b" % (len(text), text))
        assert eventually(is_paused)
        assert models.yielded * len(models.item) < 32 << 20
        paused_at = models.yielded
        wire.take((paused_at + 100) * len(models.item))
        assert models.yielded > paused_at
    assert eventually(lambda: models.closed == 1)


def test_a_drain_lets_answers_end(served: ucall.Server, client: Any, models: Models) -> None:
    stream = ask(client, "echo", "word " * 1_000, max_tokens=5_000, stream=True)
    assert next(stream).choices[0].delta.role == "assistant"
    stopping = threading.Thread(target=served.stop)
    stopping.start()
    words = [chunk.choices[0].delta.content for chunk in stream]
    stopping.join(60)
    assert len(words) == 1_001 and not stopping.is_alive()


def test_a_server_under_tls_and_at_a_path(
    serve: Serve, openai: Any, files: Files, authority: Authority, models: Models
) -> None:
    tls = ucall.TLS(certfile=files.certificate, keyfile=files.key)
    server = serve(tls=tls, path="/api/rpc")
    add_models(server, models)
    http = httpx.Client(verify=False)
    base = f"https://{HOST}:{server.port}/v1"
    with openai.OpenAI(base_url=base, api_key="none", http_client=http) as client:
        assert ask(client, "echo").choices[0].message.content == "one two "


def test_a_server_that_runs_again(models: Models, openai: Any) -> None:
    server = ucall.Server(port=0)
    add_models(server, models)
    for _ in range(2):
        with server, openai.OpenAI(base_url=url(server), api_key="none") as client:
            assert ask(client, "echo").choices[0].message.content == "one two "


def test_functions_that_cannot_be_mounted() -> None:
    server = ucall.Server(port=0)
    server.add(letters)
    server.add(len, "len")
    mount = ucall.openai.mount
    for options, problem in (
        ({}, "expected chat or embeddings"),
        ({"chat": words_of}, "chat: expected a function of the server"),
        ({"chat": "absent"}, "chat: expected a function of the server, got 'absent'"),
        ({"chat": letters}, "letters: expected a function with a param messages"),
        ({"embeddings": "len"}, "embeddings: len has no params by name"),
    ):
        with pytest.raises(TypeError, match=problem):
            mount(server, **options)  # type: ignore[arg-type]
    mount(server, embeddings=letters)
    with pytest.raises(ValueError, match="is already answered"):
        mount(server, embeddings=letters)
