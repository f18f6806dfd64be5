"""What functions yield, as the choices of an answer: text, tool calls, reasons and usage."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Any

from ucall._openai.errors import ApiError
from ucall._openai.functions import Json

__all__ = ["Choice", "merged", "new_id", "usage_of"]

_MEMBERS = frozenset(
    ["content", "finish_reason", "reasoning_content", "refusal", "tool_calls", "usage"]
)
_NO_DELTA = "the model yielded neither text nor a delta"


class Choice:
    """One answer to a request, while its function yields it.

    Args:
        stops: Texts that end it; the function does not know them.
        tokens_max: The tokens that the function was asked for.
    """

    def __init__(self, stops: Sequence[str], tokens_max: int | None) -> None:
        self.texts: list[str] = []
        self.tool_calls: list[Json] = []
        self.others: Json = {}
        self.usage: Json | None = None
        self.reason: str | None = None
        self._stops = stops
        self._tokens_max = tokens_max
        self._tokens = 0
        self._held = ""
        self._is_stopped = False

    @property
    def finish_reason(self) -> str:
        """Why it has ended."""
        if self.reason is not None:
            return self.reason
        if self.tool_calls:
            return "tool_calls"
        return "length" if self._tokens == self._tokens_max else "stop"

    @property
    def text(self) -> str:
        """All of its text."""
        return "".join(self.texts)

    async def deltas(self, items: AsyncIterator[Any]) -> AsyncGenerator[Json]:
        """Yields what each item adds to the message, up to a stop."""
        async with contextlib.aclosing(items):  # type: ignore[type-var]
            async for item in items:
                try:
                    delta = self._delta(item)
                except (AttributeError, LookupError, TypeError, ValueError) as error:
                    raise ApiError(f"{_NO_DELTA}: {error}", status=500) from error
                if delta:
                    yield delta
                if self._is_stopped:
                    return
        if self._held:
            self.texts.append(self._held)
            yield {"content": self._held}

    def _delta(self, item: object) -> Json:
        item = {"content": item} if isinstance(item, str) else item
        if not isinstance(item, dict) or not item.keys() <= _MEMBERS:
            raise ApiError(_NO_DELTA, status=500)
        item = {name: value for name, value in item.items() if value is not None}
        delta = {name: item[name] for name in ("reasoning_content", "refusal") if name in item}
        for name, text in delta.items():
            self.others[name] = self.others.get(name, "") + text
        self.reason = item.get("finish_reason", self.reason)
        self.usage = item.get("usage", self.usage)
        if text := item.get("content", "") + "":
            self._tokens += 1
            if text := self._unstopped(text):
                self.texts.append(text)
                delta["content"] = text
        if calls := item.get("tool_calls"):
            delta["tool_calls"] = [self._add_call(call) for call in calls]
        return delta

    def _unstopped(self, text: str) -> str:
        """What can be sent of the text: that before a stop, and no beginning of one."""
        if not self._stops:
            return text
        text = self._held + text
        self._held = ""
        places = [at for at in map(text.find, self._stops) if at >= 0]
        if places:
            self._is_stopped, self.reason = True, "stop"
            return text[: min(places)]
        longest = max(map(len, self._stops)) - 1
        for length in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stops):
                self._held = text[-length:]
                return text[:-length]
        return text

    def _add_call(self, call: Json) -> Json:
        """Adds a tool call, or a further part of one: a call without an index is a new one."""
        index = call.get("index", len(self.tool_calls))
        function = call.get("function", {})
        if index == len(self.tool_calls):
            call = {"id": new_id("call"), "type": "function", **call}
            whole = {"name": function.get("name", ""), "arguments": function.get("arguments", "")}
            self.tool_calls.append({**call, "function": whole})
            self.tool_calls[-1].pop("index", None)
        else:
            whole = self.tool_calls[index]["function"]
            whole["arguments"] += function.get("arguments", "")
        return {**call, "index": index}


async def merged(
    sources: Sequence[AsyncGenerator[Json]],
) -> AsyncGenerator[tuple[int, Json | None]]:
    """Yields what several sources do, with their numbers, and None at the end of each."""
    if len(sources) == 1:
        async with contextlib.aclosing(sources[0]):
            async for delta in sources[0]:
                yield 0, delta
        yield 0, None
        return
    queue: asyncio.Queue[tuple[int, Json | None] | Exception] = asyncio.Queue(len(sources))

    async def pump(number: int) -> None:
        try:
            async with contextlib.aclosing(sources[number]):
                async for delta in sources[number]:
                    await queue.put((number, delta))
            await queue.put((number, None))
        except Exception as error:
            await queue.put(error)

    tasks = [asyncio.create_task(pump(number)) for number in range(len(sources))]
    try:
        left = len(sources)
        while left:
            found = await queue.get()
            if isinstance(found, Exception):
                raise found
            left -= found[1] is None
            yield found
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def usage_of(choices: Sequence[Choice]) -> tuple[int, int] | None:
    """The tokens of the prompt and of all answers; None if the function reports none."""
    reported = [it.usage for it in choices if it.usage is not None]
    if not reported:
        return None
    prompt = max(int(it.get("prompt_tokens", 0)) for it in reported)
    return prompt, sum(int(it.get("completion_tokens", 0)) for it in reported)


def new_id(kind: str) -> str:
    """An id as OpenAI's are, such as ``chatcmpl-…``."""
    return f"{kind}{'-' if kind == 'chatcmpl' else '_'}{uuid.uuid4().hex}"
