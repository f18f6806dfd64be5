"""``POST /v1/embeddings``."""

from __future__ import annotations

import asyncio
import base64
import struct
from typing import TYPE_CHECKING, Any

from ucall._openai.errors import ApiError
from ucall._openai.functions import Caller, Calls, Function, Json, model_named
from ucall._openai.options import arguments_of, members_of
from ucall.stubs import array_of

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping

    from ucall._core import HttpRequest

__all__ = ["embed"]

#: As OpenAI has it.
_TEXTS_MAX = 2048
_HANDLED = frozenset(["encoding_format", "input", "model"])


async def embed(request: HttpRequest, models: Mapping[str, Function], caller: Caller) -> Json:
    """Answers a request."""
    members = members_of(request)
    function = model_named(models, members)
    texts = _texts(members.get("input"))
    form = members.get("encoding_format", "float")
    if form not in ("float", "base64"):
        raise ApiError("encoding_format: expected float or base64", "encoding_format")
    arguments = arguments_of(function, members, _HANDLED)
    with caller.calls_of(request) as calls:
        vectors = await _vectors(calls, function, texts, arguments)
    write = _base64 if form == "base64" else _floats
    data = [
        {"object": "embedding", "index": index, "embedding": write(vector)}
        for index, vector in enumerate(vectors)
    ]
    usage = {"prompt_tokens": 0, "total_tokens": 0}  # Clients expect it.
    return {"object": "list", "data": data, "model": members["model"], "usage": usage}


def _texts(texts: Any) -> list[str]:
    texts = [texts] if isinstance(texts, str) else texts
    if not isinstance(texts, list) or not all(isinstance(it, str) for it in texts) or not texts:
        raise ApiError("input: expected a text, or a list of texts", "input")
    if len(texts) > _TEXTS_MAX:
        raise ApiError(f"input: expected at most {_TEXTS_MAX} texts", "input")
    return texts


async def _vectors(calls: Calls, function: Function, texts: list[str], others: Json) -> list[Any]:
    """A vector for each text: by one call, or by one for each text, of which the server makes
    batches."""
    param = function.params[0]
    if not function.takes_list:
        each = [{**others, param: text} for text in texts]
        return await _all([calls.call(function, it) for it in each])
    found = await calls.call(function, {**others, param: texts})
    vectors = list(array_of(found)) if isinstance(found, str) else found
    if not isinstance(vectors, list) or len(vectors) != len(texts):
        raise ApiError("the model returned another number of vectors than of texts", status=500)
    return vectors


async def _all(calls: list[Coroutine[Any, Any, Any]]) -> list[Any]:
    """The results of calls, of which the others end when one fails."""
    tasks = [asyncio.ensure_future(it) for it in calls]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _floats(vector: Any) -> Any:
    """A vector as JSON: a list already, or an array, which may be in base64."""
    vector = array_of(vector) if isinstance(vector, str) else vector
    return vector if isinstance(vector, list) else vector.tolist()


def _base64(vector: Any) -> str:
    """32-bit floats in base64, as the official client asks for them."""
    vector = _floats(vector)
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
