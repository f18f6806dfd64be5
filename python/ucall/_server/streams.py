"""The task of an async generator: hands its items to the core one by one."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ucall import _core

__all__ = ["slots", "stream"]


async def stream(generator: AsyncGenerator[object, None], sink: _core.ItemSink) -> None:
    """Runs the generator to its end; cancelled, it closes the generator."""
    put = sink.put
    try:
        async for item in generator:
            if put(item):
                await sink.room()
                sink.begin_slice()
    finally:
        await generator.aclose()


async def slots(generator: AsyncGenerator[object, None], sink: _core.ItemSink) -> None:
    """Runs a generator that takes calls between its steps, until it ends or is cancelled."""
    step = generator.__anext__
    try:
        while True:
            while not sink.begin_step():
                await sink.room()
            sink.put(await step())
    except StopAsyncIteration:
        return
    finally:
        await generator.aclose()
