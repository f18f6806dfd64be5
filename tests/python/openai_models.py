"""Functions as models of OpenAI's API, and the official client of a server that has them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy
import pytest
from numpy.typing import NDArray
from serving import Serve

import ucall
from harness import HOST

MESSAGES: Any = [
    {"role": "system", "content": "be brief"},
    {
        "role": "user",
        "content": [{"type": "text", "text": "one two "}, {"type": "text", "text": "3"}],
    },
]
WORDS = ["be ", "brief ", "one ", "two ", "3 "]
TOOL = {"name": "add", "description": "Adds.", "parameters": {"type": "object"}}
CALL = {"name": "add", "arguments": '{"a": 2}'}


class Models:
    """Functions, and what they were called with."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.closed = self.yielded = 0
        self.item = "x"

    async def echo(
        self, messages: list[dict[str, Any]], max_tokens: int = 256
    ) -> AsyncIterator[str]:
        """Repeats the messages."""
        self.calls.append(messages)
        try:
            for word in words_of(messages)[:max_tokens]:
                await asyncio.sleep(0)
                yield word
        finally:
            self.closed += 1

    async def endless(self, messages: list[dict[str, Any]]) -> AsyncIterator[str]:
        """Yields until its caller leaves."""
        try:
            while True:
                await asyncio.sleep(0)
                self.yielded += 1
                yield self.item
        finally:
            self.closed += 1

    def tools(
        self, messages: list[dict[str, Any]], tools: list[Any], tool_choice: Any = None
    ) -> Iterator[Any]:
        """Calls the first tool, in two parts."""
        self.calls.append((messages, tools, tool_choice))
        yield {"tool_calls": [{"function": {"name": "add", "arguments": '{"a"'}}]}
        yield {"tool_calls": [{"index": 0, "function": {"arguments": ": 2}"}}]}
        yield {"usage": {"prompt_tokens": 3, "completion_tokens": 4}}

    def whole(self, messages: list[dict[str, Any]], **options: Any) -> ucall.openai.Delta:
        """Returns a whole answer, which ends for a reason of its own."""
        self.calls.append(options)
        return {
            "content": "whole",
            "finish_reason": "content_filter",
            "usage": {"prompt_tokens": 5, "completion_tokens": 1},
        }

    def odd(self, messages: list[dict[str, Any]]) -> Iterator[Any]:
        """Yields the object that its message is, after a text."""
        yield "x"
        yield json.loads(messages[0]["content"])

    def refuses(self, messages: list[dict[str, Any]]) -> Iterator[ucall.openai.Delta]:
        yield {"refusal": "I can't "}
        yield {"refusal": "help."}

    def fails(self, messages: list[dict[str, Any]]) -> Iterator[str]:
        """Raises what its message says, after as many items."""
        count, code = map(int, messages[0]["content"].split())
        yield from ["x"] * count
        raise ucall.RPCError(code, "out of paper", {"retry_after_ms": 70})


def words_of(messages: list[dict[str, Any]]) -> list[str]:
    return [f"{word} " for it in messages for word in it["content"].split()]


def letters(texts: list[str], dimensions: int = 2) -> list[list[float]]:
    return [[float(text.count(letter)) for letter in "te"[:dimensions]] for text in texts]


def lengths(texts: list[str]) -> list[NDArray[numpy.float32]]:
    return [numpy.array([len(text), len(texts)], "float32") for text in texts]


def matrix(texts: list[str]) -> NDArray[numpy.float32]:
    return numpy.array([[len(text)] for text in texts], "float32")


@pytest.fixture(scope="module")
def openai() -> Any:
    return pytest.importorskip("openai")


@pytest.fixture
def models() -> Models:
    return Models()


@pytest.fixture
def served(serve: Serve, models: Models) -> ucall.Server:
    server = serve()
    add_models(server, models)
    return server


def add_models(server: ucall.Server, models: Models) -> None:
    functions = models.echo, models.endless, models.tools, models.whole, models.fails
    functions += models.odd, models.refuses
    chats = [server.add(it) for it in functions]
    server.add(letters)
    server.add(matrix)
    server.batch(lengths, max_size=3, max_wait_ms=60_000)
    ucall.openai.mount(
        server,
        chat={it.__name__: it for it in chats},
        embeddings={"letters": letters, "lengths": lengths, "matrix": "matrix"},
    )


@pytest.fixture
def client(served: ucall.Server, openai: Any) -> Iterator[Any]:
    with openai.OpenAI(base_url=url(served), api_key="none", max_retries=0) as client:
        yield client


def url(server: ucall.Server) -> str:
    return f"http://{HOST}:{server.port}/v1"


def ask(client: Any, model: str, content: str = "one two", **options: Any) -> Any:
    messages = [{"role": "user", "content": content}]
    return client.chat.completions.create(model=model, messages=messages, **options)


def body(model: str, **options: Any) -> bytes:
    return json.dumps({"model": model, "messages": MESSAGES, **options}).encode()
