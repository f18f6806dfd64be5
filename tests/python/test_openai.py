"""examples/openai/openai_server.py, called with OpenAI's own client."""

from __future__ import annotations

import asyncio
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ucall

EXAMPLE = Path(__file__).resolve().parents[2] / "examples/openai/openai_server.py"
MESSAGES = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": [{"type": "text", "text": "one two three"}]},
]
WORDS = ["be ", "brief ", "one ", "two ", "three "]

#: The package takes half a second to import, so one test process does.
pytestmark = pytest.mark.xdist_group("openai")


@pytest.fixture(scope="module")
def openai() -> Any:
    return pytest.importorskip("openai")


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """The names of the example, whose server runs."""
    made = ucall.Server
    monkeypatch.setattr(ucall, "Server", lambda **_: made(port=0))
    names = runpy.run_path(str(EXAMPLE))
    with names["server"]:
        yield names


@pytest.fixture
def client(example: dict[str, Any], openai: Any) -> Iterator[Any]:
    url = f"http://127.0.0.1:{example['server'].port}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        yield client


def test_a_completion(client: Any) -> None:
    completion = client.chat.completions.create(model="echo-1", messages=MESSAGES)
    assert completion.choices[0].message.content == "".join(WORDS)
    assert completion.choices[0].finish_reason == "stop"
    assert completion.usage.prompt_tokens == completion.usage.completion_tokens == len(WORDS)
    short = client.chat.completions.create(model="echo-1", messages=MESSAGES, max_tokens=2)
    assert short.choices[0].message.content == "be brief "
    assert short.choices[0].finish_reason == "length"


def test_a_streamed_completion(client: Any) -> None:
    stream = client.chat.completions.create(
        model="echo-1", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    *chunks, last = list(stream)
    deltas = [chunk.choices[0].delta.content for chunk in chunks]
    assert deltas == ["", *WORDS, None]
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert last.choices == [] and last.usage.completion_tokens == len(WORDS)
    assert len({chunk.id for chunk in [*chunks, last]}) == 1
    short = client.chat.completions.create(
        model="echo-1", messages=MESSAGES, max_tokens=2, stream=True
    )
    assert list(short)[-1].choices[0].finish_reason == "length"


def test_a_stream_that_is_left(client: Any, example: dict[str, Any]) -> None:
    for _ in range(3):
        with client.chat.completions.create(
            model="echo-1", messages=MESSAGES, stream=True
        ) as stream:
            assert next(iter(stream)).choices[0].delta.role == "assistant"
    assert client.models.list().data


def test_completions_at_once(example: dict[str, Any], openai: Any) -> None:
    url = f"http://127.0.0.1:{example['server'].port}/v1"

    async def words(client: Any, count: int) -> list[str]:
        messages = [{"role": "user", "content": "word " * count}]
        stream = await client.chat.completions.create(
            model="echo-1", messages=messages, stream=True
        )
        contents = [chunk.choices[0].delta.content async for chunk in stream]
        return [content for content in contents if content]

    async def run() -> list[list[str]]:
        async with openai.AsyncOpenAI(base_url=url, api_key="none") as client:
            return await asyncio.gather(*(words(client, count) for count in range(1, 17)))

    assert asyncio.run(run()) == [["word "] * count for count in range(1, 17)]


def test_embeddings(client: Any) -> None:
    for kwargs in ({}, {"encoding_format": "float"}, {"encoding_format": "base64"}):
        answer = client.embeddings.create(model="echo-1", input=["tea", "onion"], **kwargs)
        vectors = [item.embedding for item in answer.data]
        if kwargs.get("encoding_format") != "base64":
            assert vectors == [[1, 1, 1, 0, 0, 0, 0], [0, 0, 0, 2, 1, 2, 0]]
        assert answer.usage.prompt_tokens == answer.usage.total_tokens == 2
    assert len(client.embeddings.create(model="echo-1", input="tea").data) == 1


def test_models(client: Any, openai: Any) -> None:
    assert [model.id for model in client.models.list()] == ["echo-1"]
    assert client.models.retrieve("echo-1").owned_by == "you"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_errors_have_the_form_of_openai(client: Any, openai: Any) -> None:
    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(model="other", messages=MESSAGES)
    assert unknown.value.code == "model_not_found"
    assert unknown.value.type == "invalid_request_error"
    for messages in ([], ["text"], [{"role": "user"}]):
        with pytest.raises(openai.BadRequestError, match="messages"):
            client.chat.completions.create(model="echo-1", messages=messages)
    with pytest.raises(openai.BadRequestError, match="max_tokens"):
        client.chat.completions.create(model="echo-1", messages=MESSAGES, max_tokens=-1)
    with pytest.raises(openai.BadRequestError, match="input"):
        client.embeddings.create(model="echo-1", input=[[1, 2]])


def test_the_functions_are_served_by_json_rpc_too(example: dict[str, Any]) -> None:
    port = example["server"].port
    with ucall.client.Client("127.0.0.1", port) as client:
        assert client.embed(["tea"]).json == [[1, 1, 1, 0, 0, 0, 0]]
        assert client.generate("a b").json == ["a ", "b "]
