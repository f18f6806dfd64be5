"""The members of a request, and which of them a function gets.

A function gets those that it has a parameter for. Others are refused by name, unless their value
asks for nothing, so that no caller believes in an option without effect.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from ucall._openai.errors import ApiError
from ucall._openai.functions import Function, Json

if TYPE_CHECKING:
    from ucall._core import HttpRequest

__all__ = ["arguments_of", "checked_count", "members_of", "object_in", "stops_of"]

#: Members that change no result.
_WITHOUT_EFFECT = frozenset(
    ["metadata", "prompt_cache_key", "safety_identifier", "service_tier", "store", "user"]
)
#: Values of members that ask for nothing.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "background": (False,),
    "frequency_penalty": (0,),
    "include": ([],),
    "logit_bias": ({},),
    "logprobs": (False,),
    "modalities": (["text"],),
    "parallel_tool_calls": (True, False),
    "presence_penalty": (0,),
    "response_format": ({"type": "text"},),
    "temperature": (1,),
    "tool_choice": ("auto", "none"),
    "tools": ([],),
    "top_logprobs": (0,),
    "top_p": (1,),
    "truncation": ("disabled",),
}
#: As OpenAI has it.
_STOPS_MAX = 4


def members_of(request: HttpRequest) -> Json:
    """The members of a request that are not null.

    Raises:
        ApiError: The body is no JSON object.
    """
    try:
        members = json.loads(request.body, parse_constant=_refuse_constant)
        json.dumps(members, ensure_ascii=False).encode()  # Fails for half of a surrogate pair.
    except (ValueError, RecursionError) as error:
        raise ApiError(f"the body is not JSON: {error}") from None
    if not isinstance(members, dict):
        raise ApiError("the body: expected a JSON object")
    return {name: value for name, value in members.items() if value is not None}


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is no number of JSON")


def arguments_of(function: Function, members: Json, handled: Collection[str]) -> Json:
    """The params of a function out of a request, without the members that are handled here.

    Raises:
        ApiError: A member would have no effect.
    """
    arguments = {}
    for name, value in members.items():
        if name in handled:
            continue
        if function.takes(name):
            arguments[name] = value
        elif name not in _WITHOUT_EFFECT and value not in _NEUTRAL.get(name, ()):
            raise ApiError(f"{name}: the model does not take it", name)
    return arguments


def object_in(members: Json, name: str) -> Json:
    """A copy of a member that is an object; an empty one without it."""
    value = members.get(name, {})
    if not isinstance(value, dict):
        raise ApiError(f"{name}: expected an object", name)
    return dict(value)


def checked_count(members: Json, name: str, largest: int) -> int:
    """A member from 1 to a number; 1 without it."""
    value = members.get(name, 1)
    if type(value) is not int or not 1 <= value <= largest:
        raise ApiError(f"{name}: expected an int from 1 to {largest}", name)
    return value


def stops_of(members: Json) -> list[str]:
    """The texts that end an answer."""
    stops = members.get("stop", [])
    stops = [stops] if isinstance(stops, str) else stops
    are_texts = isinstance(stops, list) and all(isinstance(it, str) and it for it in stops)
    if not are_texts or len(stops) > _STOPS_MAX:
        raise ApiError(f"stop: expected a text, or a list of up to {_STOPS_MAX} texts", "stop")
    return stops
