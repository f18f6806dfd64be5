"""Serves functions to clients of OpenAI's API: see docs/openai.md."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, TypedDict

from ucall._openai.chat import complete
from ucall._openai.embeddings import embed
from ucall._openai.errors import ApiError
from ucall._openai.events import FAILURES, as_api_error
from ucall._openai.functions import Caller, Function, Served, model_named, models_of
from ucall._openai.responses import respond

if TYPE_CHECKING:
    from ucall._core import HttpRequest
    from ucall.server import Server

__all__ = ["Delta", "mount"]


class Delta(TypedDict, total=False):
    """What a function yields if it is more than text.

    Attributes:
        content: A text.
        tool_calls: Calls of tools, or further parts of one: objects with ``function``, which has
            ``name`` and ``arguments``, a JSON text. A call without ``index`` is a new one; ``id``
            and ``type`` are added.
        finish_reason: Why the answer ends, such as ``"length"``.
        usage: ``prompt_tokens`` and ``completion_tokens``.
        refusal: A text that says why there is no answer.
        reasoning_content: A text that is no part of the answer.
    """

    content: str
    tool_calls: list[dict[str, Any]]
    finish_reason: str
    usage: dict[str, int]
    refusal: str
    reasoning_content: str


def mount(
    server: Server,
    *,
    chat: Served | Mapping[str, Served] | None = None,
    embeddings: Served | Mapping[str, Served] | None = None,
) -> None:
    """Serves functions of a server at ``/v1`` as models of OpenAI's API::

        @server
        async def generate(messages: list[dict[str, Any]], max_tokens: int = 256):
            yield "Hello"

        ucall.openai.mount(server, chat=generate)

    Args:
        server: The server, which has the functions already.
        chat: Answers ``/v1/chat/completions`` and ``/v1/responses``: takes ``messages``, and what
            else of a request it has params for, and yields texts or `Delta`, or returns one.
        embeddings: Answers ``/v1/embeddings``: its first param is a text or a list of texts, and
            its result a vector or one for each text.

    Each is a function, which is a model of its method's name, or a dict of functions by the names
    of models. A function may be given by the name of its method.

    Raises:
        TypeError: One is no function of the server, or cannot be called so.
        ValueError: A path is answered already.
    """
    chats = models_of(server, "chat", chat)
    embedders = models_of(server, "embeddings", embeddings)
    if not chats and not embedders:
        raise TypeError("expected chat or embeddings")
    for name, function in chats.items():
        if not function.takes("messages"):
            raise TypeError(f"chat: {name}: expected a function with a param messages")
    caller = Caller(server)
    if chats:
        _add(server, "/v1/chat/completions", functools.partial(_answer, complete, chats, caller))
        _add(server, "/v1/responses", functools.partial(_answer, respond, chats, caller))
    if embedders:
        _add(server, "/v1/embeddings", functools.partial(_answer, embed, embedders, caller))
    models = {**embedders, **chats}
    server.http("/v1/models")(lambda request: {"object": "list", "data": [*map(_model, models)]})

    @server.http("/v1/models/{model}")
    def retrieve(request: HttpRequest) -> object:
        try:
            model_named(models, request.path_params)
        except ApiError as error:
            return error.response
        return _model(request.path_params["model"])


def _add(server: Server, path: str, answer: Callable[[HttpRequest], Awaitable[object]]) -> None:
    async def respond(request: HttpRequest) -> object:
        return await answer(request)

    server.http(path, methods=["POST"])(respond)


async def _answer(
    endpoint: Callable[[HttpRequest, Mapping[str, Function], Caller], Awaitable[object]],
    models: Mapping[str, Function],
    caller: Caller,
    request: HttpRequest,
) -> object:
    try:
        return await endpoint(request, models, caller)
    except FAILURES as error:
        return as_api_error(error).response


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "ucall"}
