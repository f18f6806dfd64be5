"""Runs code that both clients share on the thread of a synchronous call."""

from __future__ import annotations

from collections.abc import Coroutine
from types import CoroutineType
from typing import Any, TypeVar

__all__ = ["result_of", "run"]

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that waits in no event loop: what it awaits blocks this thread."""
    try:
        work.send(None)
    except StopIteration as ended:
        result: T = ended.value
        return result
    work.close()
    raise RuntimeError("a synchronous client cannot wait in an event loop")


async def result_of(begun: Any) -> Any:
    """The result of a method of either client, which asyncio has to await."""
    return await begun if isinstance(begun, CoroutineType) else begun
