"""An OpenAI-compatible server over two functions, which JSON-RPC serves, too.

    python examples/openai/openai_server.py
    OPENAI_BASE_URL=http://localhost:8545/v1 OPENAI_API_KEY=none your-program

Replace `generate` and `embed` by those of your model. The rest is the adapter: chat completions,
streamed or not, embeddings and the list of models, with errors in OpenAI's form.
"""

import asyncio
import base64
import functools
import json
import struct
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from ucall import HttpRequest, HttpResponse, Server

MODEL = "echo-1"

server = Server(port=8545)


@server
async def generate(prompt: str, max_tokens: int = 256) -> AsyncIterator[str]:
    """Yields the tokens of an answer. This one repeats the prompt."""
    for word in prompt.split()[:max_tokens]:
        await asyncio.sleep(0)
        yield word + " "


@server
def embed(texts: list[str]) -> list[list[float]]:
    """A vector for each text. This one counts letters."""
    return [[float(text.count(letter)) for letter in "etaoins"] for text in texts]


class ApiError(Exception):
    """An error for the caller, in OpenAI's form."""

    def __init__(self, message: str, status: int = 400, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        kind = "invalid_request_error" if status < 500 else "server_error"
        self.body = {"error": {"message": message, "type": kind, "param": None, "code": code}}


Endpoint = Callable[[HttpRequest], Awaitable[object]]


def endpoint(path: str, method: str) -> Callable[[Endpoint], Endpoint]:
    """Registers a function whose `ApiError` becomes its response."""

    def register(function: Endpoint) -> Endpoint:
        @server.http(path, methods=[method])
        @functools.wraps(function)
        async def answer(request: HttpRequest) -> object:
            try:
                return await function(request)
            except ApiError as error:
                return HttpResponse(error.body, error.status)

        return function

    return register


@endpoint("/v1/chat/completions", "POST")
async def complete(request: HttpRequest) -> object:
    options = parse(request)
    messages = options.get("messages")
    if not isinstance(messages, list) or not messages:
        raise ApiError("messages: expected at least one")
    prompt = "\n".join(text_of(message) for message in messages)
    limit = options.get("max_completion_tokens") or options.get("max_tokens") or 256
    if not isinstance(limit, int) or limit < 1:
        raise ApiError("max_tokens: expected an int above 0")
    tokens = generate(prompt, limit)
    completion = {
        "id": f"chatcmpl-{uuid.uuid4().hex}",
        "created": int(time.time()),
        "model": options["model"],
    }
    if options.get("stream"):
        usage = (options.get("stream_options") or {}).get("include_usage")
        events = stream(tokens, completion, prompt, limit, bool(usage))
        return HttpResponse(events, content_type="text/event-stream")
    texts = [token async for token in tokens]
    message = {"role": "assistant", "content": "".join(texts)}
    choice = {"index": 0, "message": message, "finish_reason": finish_reason(len(texts), limit)}
    usage = count_tokens(prompt, len(texts))
    return {**completion, "object": "chat.completion", "choices": [choice], "usage": usage}


async def stream(
    tokens: AsyncIterator[str],
    completion: dict[str, Any],
    prompt: str,
    limit: int,
    with_usage: bool,
) -> AsyncIterator[bytes]:
    """Yields the events of a streamed completion."""
    completion = {**completion, "object": "chat.completion.chunk"}

    def chunk(delta: dict[str, str], finish_reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
        return event({**completion, "choices": [choice]})

    count = 0
    try:
        yield chunk({"role": "assistant", "content": ""})
        async for token in tokens:
            count += 1
            yield chunk({"content": token})
        yield chunk({}, finish_reason(count, limit))
        if with_usage:
            yield event({**completion, "choices": [], "usage": count_tokens(prompt, count)})
        yield b"data: [DONE]\n\n"
    except Exception as error:  # The status is sent already, so the error is an event.
        yield event(ApiError(str(error), 500).body)


@endpoint("/v1/embeddings", "POST")
async def embeddings(request: HttpRequest) -> object:
    options = parse(request)
    texts = options.get("input")
    texts = [texts] if isinstance(texts, str) else texts
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ApiError("input: expected a text, or a list of texts")
    in_base64 = options.get("encoding_format") == "base64"
    data = [
        {
            "object": "embedding",
            "index": index,
            "embedding": packed(vector) if in_base64 else vector,
        }
        for index, vector in enumerate(embed(texts))
    ]
    usage = count_tokens(" ".join(texts), 0)
    del usage["completion_tokens"]
    return {"object": "list", "data": data, "model": options["model"], "usage": usage}


@endpoint("/v1/models", "GET")
async def models(request: HttpRequest) -> object:
    return {"object": "list", "data": [model()]}


@endpoint("/v1/models/{model}", "GET")
async def retrieve(request: HttpRequest) -> object:
    check_model(request.path_params["model"])
    return model()


def parse(request: HttpRequest) -> dict[str, Any]:
    """The options of a request, for a model that exists."""
    try:
        options = json.loads(request.body)
    except ValueError as error:
        raise ApiError(f"the body is not JSON: {error}") from None
    if not isinstance(options, dict):
        raise ApiError("expected a JSON object")
    check_model(options.get("model"))
    return options


def check_model(name: object) -> None:
    if name != MODEL:
        raise ApiError(f"the model {name!r} does not exist", 404, "model_not_found")


def model() -> dict[str, Any]:
    return {"id": MODEL, "object": "model", "created": 0, "owned_by": "you"}


def text_of(message: object) -> str:
    """The text of a message, whose content is a str or a list of parts."""
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, list):
        content = "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    if not isinstance(content, str):
        raise ApiError("messages: expected objects with a content")
    return content


def finish_reason(count: int, limit: int) -> str:
    return "length" if count >= limit else "stop"


def count_tokens(prompt: str, completion: int) -> dict[str, int]:
    count = len(prompt.split())
    return {
        "prompt_tokens": count,
        "completion_tokens": completion,
        "total_tokens": count + completion,
    }


def packed(vector: list[float]) -> str:
    """32-bit floats in base64, as the client asks for them."""
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


def event(value: object) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


if __name__ == "__main__":
    server.run()
